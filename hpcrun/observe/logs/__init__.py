"""Log lines of many runs, read once or followed: ``logs``, ``logs -f`` and ``run``.

In reading order: `log_files` finds the files and knows when their lines were written, `tail` reads
them as whole lines. `render` filters, folds (`fold`) and prints the lines. `follow` polls growing
files at the pace that their storage allows, and `watch` finds the files of runs as they begin and
asks the cluster which runs are over; `log_places` tells a reader that was cut off where it was.

To add a stream: a method of `log_files.RunLogs` and a choice of ``hpcrun logs --stream``; to choose
lines in another way: a field of `log_files.LogChoice`, applied there and in `watch`.
"""
