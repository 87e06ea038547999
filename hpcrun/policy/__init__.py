"""Decisions as functions of their arguments, tested by tables of cases.

In reading order:

- `causes`: why an attempt ended, from evidence.
- `permanent_errors`: the errors of a program that no new start mends.
- `recovery`: what is done after that: restart, requeue or stop; which nodes are avoided.
- `node_health`: what follows from the check of the nodes as an attempt begins.
- `resume`: what a script or command is started with to go on, and the recipes that ship.
- `next_attempt`: what an attempt has otherwise than its plan, after the ends before it.
- `stop_lead_time`: how long before its time limit a run is asked to stop.
- `retention`: which checkpoints stay.
- `batch`: train batch = micro batch x accumulation x ranks.
- `training_ways`: layouts, ZeRO stages, offload and precisions that do not go together.
- `secret_names`: what looks like a secret, and is warned about or not frozen.
- `frameworks`: what the ranks of each training framework find, and what is read of them.
- `log_excerpt`: the lines of a log that tell why its program ended; progress bars count once.
- `faults`: what `hpcrun drill` can do to a run.

To add a cause: a kind in `causes` with its place in ``decide``, its budget in `recovery`, its
advice in `hpcrun.observe.diagnosis.advice`, and rows in the tables of ``tests/policy``. To add a
recipe: a `Recipe` in `resume`, and its name in `hpcrun.extensions`.
"""
