"""Forwarding of a run's metrics to trackers, each in a process of its own.

In reading order: `tracker_processes` (the supervisor starts and ends them; the program is
`hpcrun.run.tracker`), `metrics_feed` (the lines to send next), `interface` (what a tracker is),
`tensorboard_tracker`, `wandb_tracker` (with the reader of its files), `mlflow_tracker`.

To add a tracker, such as Aim: write ``aim_tracker.py`` with a class that has the methods of
`interface.Tracker` and add it to ``TRACKERS`` in `hpcrun.extensions`; then give it a field, by the
name of its Python package, in `Tracking` of `hpcrun.state.spec.experiment`. The check of the
job's Python and the reference of the spec follow. Another package's tracker needs no change here:
see docs/extending.md.
"""
