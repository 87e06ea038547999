"""The sources of a program's progress: what it shows of its steps and metrics, each by one module.

`trainer_state` (the Trainer's), `tensorboard_events`, `csv_log` (Lightning's), `log_lines` (a
pattern, by `pattern_search`), `keras_bars` and `progress_bars` (tqdm's).

To add one: a class with ``begin`` and ``poll``, as `hpcrun.run.program.progress_source` describes
it, and its name in `hpcrun.extensions` and in ``Progress.source`` of the spec. Another package's
reader needs no change here: see docs/extending.md.
"""
