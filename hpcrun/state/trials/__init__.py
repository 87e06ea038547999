"""Trials of configurations: what is to be tried in a run, and what was measured.

One module: `trial_log` (the block ``trials`` of a run's spec, and the run's ``trials.jsonl``).
Which trial comes next is decided in `hpcrun.run.tune`; `hpcrun.tune` asks and reports.

To add something that is measured: a field of `trial_log.TrialRecord`.
"""
