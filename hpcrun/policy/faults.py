"""What `hpcrun drill` can do to a run. Both sides know it: who asks for it, and who does it."""

from __future__ import annotations

# Where the plan has it, beside the blocks of the run's spec: ``faults`` and ``steps``.
KEY = "drill"

KILL_RANK = "kill-rank"
STOP_RANK = "stop-rank"
CORRUPT_CHECKPOINT = "corrupt-checkpoint"
PREEMPT = "preempt"
LOSE_NODE = "lose-node"

FAULTS = {
    KILL_RANK: "the last rank is killed (SIGKILL)",
    STOP_RANK: "the last rank is stopped (SIGSTOP) and never goes on",
    CORRUPT_CHECKPOINT: "a bit of the newest checkpoint flips, then rank 0 is killed",
    PREEMPT: "the run is signalled as before a preemption (SIGTERM)",
    LOSE_NODE: "the last node falls silent: its ranks are gone, its agent says nothing more",
}
# Optimizer steps between a start and the fault.
STEPS = 5
