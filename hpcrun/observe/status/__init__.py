"""The state of runs, decided from their files and from Slurm's answers.

In reading order: `run_state` decides a run's state from evidence, as a pure function; `status`
collects the evidence, with the cluster's answers from `jobs`; `slurm_cache` spares Slurm;
`overview` finds what is running or queued in all experiments, without reading what is over;
`list_cache` keeps the rows of experiments in which nothing changes by itself.
`status_table` prints one row per run, with bars and curves, on a live screen too, and how far a
search is.

To add a column: a field of `status.RunStatus`, its header and its cell in `status_table`;
``hpcrun top`` shows it too, and by ``_SPARE`` of its views leaves it out where there is no room.
"""
