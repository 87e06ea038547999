"""Progress of the ranks: written by them, judged by the supervisor.

Reading order: `progress` (what a rank writes), `hang_detector` and `straggler` (decisions from it),
`program_hangs` (decisions about programs without a session), `stack_summary`, `python_stacks` and
`native_stack` (where a rank that hangs is), `rank_stacks` (all of a node's); `replica_check` (what
ranks hold alike is compared), `bad_steps` (losses that are not finite, spikes, and their batches).

To change a threshold: the constants at the top of `hang_detector`, `program_hangs` and `straggler`;
users set ``recovery.hang_after``.
"""
