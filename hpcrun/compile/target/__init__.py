"""The systems that a run is compiled for: its own code, DeepSpeed, and sbatch.

In reading order: `entry` (finds a script, function or command), `command_line` (its arguments and
flags, at first and as it resumes), `framework_detection` (the framework of its words and imports),
`lone_ranks` (ranks that nothing joins),
`draft` (what the following checks have in common), `deepspeed` (checks the configuration and solves
the batch triple), `engine_settings` (what it computes in, and settings that do not go together),
`deepspeed_keys` (the keys that DeepSpeed reads), `optimizers` (what each takes, and where it runs),
`learning_rate` (the ``optimization`` block), `parallel_layout` (ranks that share a model),
`packing` (runs that share a job),
`recovery_checks` (whether other batches reach the program), `role_layout` (ranks, nodes and
programs of roles),
`slurm_options` (the values and options that sbatch accepts), `sbatch_request` (keys of a spec made
of sbatch's options), `launch_words` (what a command with srun, torchrun or python starts) and
`sbatch_script` (renders the job script).

To add an option of sbatch with a field of its own, add the field to ``Resources`` in
`hpcrun.state.spec.experiment`, its form to ``_FORMS`` and its name to ``OWNED_BY_FIELD`` in
`slurm_options`, and its value to ``options`` in `sbatch_script`.
"""
