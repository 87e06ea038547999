"""What `hpcrun profile` and the ranks that it looks at know of each other."""

from __future__ import annotations

# The key of ``steps`` and ``warmup`` in a run's plan, beside the blocks of its spec.
KEY = "profile"
# The variable of a rank, ``STEPS,WARMUP``, by which its programs know that they are profiled.
VARIABLE = "HPCRUN_PROFILE"
STEPS, WARM_UP = 5, 3

# The parts of a step, in the order of tables; they add up to it.
COMPUTE, COMMUNICATION, OPTIMIZER = "compute", "communication", "optimizer"
DATA, HOST = "data", "host"
PARTS = {
    COMPUTE: "forward, backward and loss",
    COMMUNICATION: "collectives that no computation hides, with the waiting in them",
    OPTIMIZER: "the optimizer's step",
    DATA: "batches read, made and copied to the device",
    HOST: "everything else: Python, launches, logging",
}


def needed(steps: int, warmup: int) -> int:
    """Return the optimizer steps of a profile.

    After the warm-up, ``steps`` are timed as they are, one lets the profiler settle, ``steps`` are
    profiled, and in the last one operations and memory are counted.
    """
    return warmup + 2 * steps + 2
