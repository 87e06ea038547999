"""One rank's side of a run: what `hpcrun.run.session` and the worker are made of.

In reading order: `rank_environment`, `warm_up` (before the user's code begins), `rank_view`,
`config` and `samples` (what a training function asks for), `device_precision` (what a rank's device
computes in), `optimization` (schedules and parameter groups), `model_blocks` (found, compiled),
`torch_engine` (what engines without DeepSpeed share), `replica_engine` (models that ranks hold
whole), `sharded_engine` (models that FSDP2 divides), `rng`, `metrics` (what it logs),
`async_allreduce`, `collectives`, `peer_messages` and `process_groups` (how ranks agree),
`session_writer` (session.jsonl).

To set another variable, such as one of NCCL's: `rank_environment.environment`, among ``defaults``,
over which the user's values go; what is ``forced`` is refused in a spec where ``_SET_BY_JOB`` of
`hpcrun.compile.target.slurm_options` names it. To add an event to session.jsonl: write it through
`session_writer.SessionLogWriter`, and give it a type in `hpcrun.state.session_log`, from where all
readers have it.
"""
