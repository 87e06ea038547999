"""An agent's work on its node: preparation, rank processes, telemetry.

Reading order: `prepare` (a node before an attempt), `node_dir` (its local directory), `network` and
`rendezvous_port`, `op_cache` (DeepSpeed's compiled operators), `build_locks`, `rank_processes`,
`log_sizes` and `program_activity` (programs without a session), then telemetry: `telemetry`,
`counters`, `cgroup`, `gpus`.

To change what NCCL uses: `hpcrun.run.fabric` and `hpcrun.run.rank.rank_environment`. To add a
figure to telemetry: `counters.Counters.read` or `gpus.Gpus.read`.
"""
