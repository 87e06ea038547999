"""What a script asks Slurm for, and what it starts.

In reading order: `sbatch_lines` (the #SBATCH lines), `walk_state` (variables and what was found),
`inner_launch` (which commands start programs, also in ``bash -c``), `walk_commands` (what each
other command does), `script_walk` (blocks, loops and functions) and `launch_line` (srun, launchers,
containers and Python).

To read another command, add a method ``_do_NAME`` to `walk_commands`.
"""
