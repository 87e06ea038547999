"""Log lines of many runs, read once or followed: ``logs``, ``logs -f`` and ``run``.

In reading order: `log_files` finds the files, `tail` and `lines` read them as whole lines,
`log_times` knows when these were written. `render` filters and folds (`fold`) the lines and
`log_format` prints them. `follow` polls growing files at the pace that `remote_storage` allows, and
`watch` finds the files of runs as they begin and asks the cluster which runs are over.

To add a stream: a method of `log_files.RunLogs` and a choice of ``hpcrun logs --stream``.
"""
