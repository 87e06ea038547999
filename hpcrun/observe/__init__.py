"""Readers of runs' files and of Slurm, on the login node; nothing here writes.

In reading order: `read` selects runs and reads their files, `status` decides their states, `logs`
shows their output; `diagnosis` explains ends and costs. `results` is the table of swept values
beside metrics, with the front of several objectives, `diff` compares two experiments or runs,
`step_profile` tells where steps' time went (the ranks' side is `hpcrun.run.profile`); `tables`
prints tables.

To add a column of results, also in their JSON and in the report: ``results._FACTS``; a figure of a
metric: `results.collect`; a format: a method of `results.Results` beside ``csv`` and ``latex``, and
``--format`` in cli/results.py. To add a quantity of a profile: a field of
`step_profile.RankProfile`, its kind in ``_RANK`` and a column of its tables.
To add a command that reads: its rows in one of these rooms, its options and printing in `cli`.
"""
