"""The faults of `hpcrun drill`, known to the command and to the run."""

from __future__ import annotations

# The key of ``faults`` and ``steps`` in a run's plan, beside the blocks of its spec.
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
