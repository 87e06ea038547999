"""Readers of runs' files and of Slurm, on the login node; nothing here writes.

In reading order: `read` selects runs and reads their files, `status` decides their states, `logs`
shows their output; `diagnosis` explains ends and costs, `results` compares runs, `profile`
tells where steps' time went. `tables` prints tables.

To add a command that reads: its rows in one of these rooms, its options and printing in `cli`.
"""
