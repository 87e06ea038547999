"""Slurm's words for the state of a job, as squeue(1) and sacct(1) have them.

Each release may bring more: a word that is not here is one of a job that lives.
"""

from __future__ import annotations

PENDING = "PENDING"
REQUEUED = "REQUEUED"
CONFIGURING = "CONFIGURING"
RUNNING = "RUNNING"
RESIZING = "RESIZING"
COMPLETING = "COMPLETING"
COMPLETED = "COMPLETED"
FAILED = "FAILED"
CANCELLED = "CANCELLED"
PREEMPTED = "PREEMPTED"
TIMEOUT = "TIMEOUT"
OUT_OF_MEMORY = "OUT_OF_MEMORY"

WAITING = frozenset({PENDING, REQUEUED, "REQUEUE_HOLD", "SPECIAL_EXIT"})
NODE_LOST = frozenset({"NODE_FAIL", "BOOT_FAIL"})
HOLDS_NODES = frozenset({RUNNING, "SUSPENDED", COMPLETING})
# Over, until somebody requeues it.
TERMINAL = NODE_LOST | {COMPLETED, FAILED, CANCELLED, PREEMPTED, TIMEOUT, OUT_OF_MEMORY}
TERMINAL |= {"DEADLINE", "LAUNCH_FAILED", "REVOKED"}
