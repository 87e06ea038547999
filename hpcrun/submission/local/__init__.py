"""Runs on this machine without Slurm, by the same supervisor as in a job.

In reading order:

- `executor`: start the supervisors of a submission, a few at once, and end them.
- `processes`: find, signal and kill the processes of a submission through /proc.

Both run from the frozen ``hpcrun.zip`` and import the standard library alone.

To pass one more of the user's variables to local runs: add its name to ``_PASSED`` in `processes`.
"""
