"""Progress of the ranks: written by them, judged by the supervisor.

Reading order: `progress` (what a rank writes), `hang_detector` and `straggler` (decisions from it),
`stack_summary` and `native_stack` (where a rank that hangs is).

To change a threshold: the constants at the top of `hang_detector` and `straggler`; users set
``recovery.hang_after``.
"""
