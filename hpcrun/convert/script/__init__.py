"""What a script asks Slurm for, and what it starts.

In reading order: `sbatch_lines` (the #SBATCH lines), `walk_state` (variables and what was found),
`walk_commands` (what each command does), `script_walk` (blocks, loops and functions) and
`launch_line` (srun, launchers, containers and Python), with `inner_launch` for ``bash -c``.

To read another command, add a method ``_do_NAME`` to `walk_commands`.
"""
