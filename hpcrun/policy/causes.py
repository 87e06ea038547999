"""The cause of an attempt's end, decided from evidence by one pure function.

Elapsed time is never evidence. What was intended outweighs what Slurm says, Slurm outweighs what
the ranks say (a rank that fails because its job is being taken away is no crash), and the ranks
outweigh the exit code of whatever carried them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hpcrun import slurm_state
from hpcrun.errors import EXIT_FAILED, EXIT_OK, EXIT_SAVED
from hpcrun.shared_dataclass import dataclass, field
from hpcrun.state.ledger import CANCELLED as INTENT_CANCELLED
from hpcrun.text import agreeing, listed, ranges, shortened, signal_name

COMPLETED = "completed"
STOPPED = "stopped"
FAILED = "failed"
CANCELLED = "cancelled"
# A feature found that the run has done enough: also the reason to stop, and the kind of its cause.
PRUNED = "pruned"
# The outcomes with which a run is over, and nothing went wrong.
GOOD_ENDS = (COMPLETED, PRUNED)

# Kinds of causes, as the ledger names them.
TIME_LIMIT = "time_limit"
PREEMPTED = "preempted"
REQUEUED = "requeued"
SIGNAL = "signal"
SAVED = "saved"
NODE_FAILURE = "node_failure"
# The check at an attempt's start found a node that it should not use.
BAD_NODE = "bad_node"
# Shared storage could not be used as it began.
STORAGE = "storage"
SUPERVISOR_LOST = "supervisor_lost"
RANK_CRASH = "rank_crash"
OUT_OF_MEMORY = "out_of_memory"
NON_FINITE = "non_finite_loss"
# The loss or the gradient norm was far above the usual.
LOSS_SPIKE = "loss_spike"
# Ranks that hold the same weights do not any more.
REPLICAS_DIFFER = "replicas_differ"
BAD_CHECKPOINT = "bad_checkpoint"
HANG = "hang"
LAUNCH = "launch"
UNKNOWN = "unknown"

KINDS = (
    *(TIME_LIMIT, PREEMPTED, REQUEUED, SIGNAL, SAVED, NODE_FAILURE, BAD_NODE, STORAGE),
    SUPERVISOR_LOST,
    *(RANK_CRASH, OUT_OF_MEMORY, NON_FINITE, LOSS_SPIKE, REPLICAS_DIFFER, BAD_CHECKPOINT),
    *(HANG, LAUNCH, UNKNOWN, CANCELLED),
)

USAGE = 2
"""The exit code of argparse, and of shells, for arguments that are not understood."""
# In the place of a signal's name, where a rank left no exit code and nobody saw how it ended.
UNSEEN = "a signal that nobody saw"
# What the kernel ends a process with that takes too much memory.
KILLING = ("SIGKILL", UNSEEN)

# Ends that the run itself caused: they count against it until it has made progress.
OWN = frozenset(
    {
        *(TIME_LIMIT, SAVED, RANK_CRASH, OUT_OF_MEMORY, NON_FINITE, REPLICAS_DIFFER),
        *(LOSS_SPIKE, BAD_CHECKPOINT, HANG, LAUNCH, UNKNOWN),
    }
)

# Ctrl-C of `hpcrun run`: a reason to stop, whose end is ``cancelled``.
INTERRUPTED = "interrupted"
BY_USER = "cancelled by the user"

# The job itself ends, or somebody wants it to.
TAKEN_AWAY = frozenset({TIME_LIMIT, PREEMPTED, REQUEUED, SIGNAL})

_FROM_OUTSIDE = {*TAKEN_AWAY, SAVED, NODE_FAILURE, BAD_NODE, STORAGE, SUPERVISOR_LOST}

# Python's, NumPy's and Arrow's.
_OF_NODE_MEMORY = ("MemoryError", "_ArrayMemoryError", "ArrowMemoryError")
_EXCEPTIONS = {
    "NonFiniteLossError": NON_FINITE,
    "LossSpikeError": LOSS_SPIKE,
    "ReplicasDifferError": REPLICAS_DIFFER,
    "CheckpointError": BAD_CHECKPOINT,
    "OutOfMemoryError": OUT_OF_MEMORY,
    **dict.fromkeys(_OF_NODE_MEMORY, OUT_OF_MEMORY),
}

# Ranges of ranks, and nodes, that a message names.
_SHOWN = 4
# Exceptions by which torch, JAX, TensorFlow and the system tell much, and their words for memory
# that an allocator did not get.
_OF_ALLOCATORS = frozenset(
    {
        *("RuntimeError", "AcceleratorError", "OSError"),
        *("XlaRuntimeError", "JaxRuntimeError", "ResourceExhaustedError"),
    }
)
NO_GPU_MEMORY = (
    r"(?:CUDA|HIP|XPU)(?: error:)? out of memory|CUBLAS_STATUS_ALLOC_FAILED"
    r"|RESOURCE_EXHAUSTED: Out of memory|OOM when allocating tensor"
)
NO_NODE_MEMORY = (
    r"DefaultCPUAllocator: (?:can't allocate|not enough) memory|std::bad_alloc"
    r"|\[Errno 12\] Cannot allocate memory"
)
_NO_MEMORY = f"{NO_NODE_MEMORY}|{NO_GPU_MEMORY}"
_NOT_SAVED = r"step \d+ was not saved: |/step-\S+ cannot be made: "
# How C++ tells the exception that nothing caught, before it aborts.
_THROWN = r"terminate called after [^\n]*\n\s*what\(\): +([^\n]+)"


@dataclass(frozen=True)
class JobFacts:
    """Slurm's report on the start of the job that carried an attempt."""

    state: str = ""
    """Slurm's word, such as ``RUNNING`` or ``NODE_FAIL``; empty if it did not answer."""
    cancelled_by: str | None = None
    """The user who cancelled it, as sacct prints it; None if nobody did."""
    preempted: bool = False
    """Slurm has chosen it for preemption, or has preempted it."""
    words: str | None = None
    """The reason in slurmstepd's own line in the batch log, such as ``DUE TO PREEMPTION`` or ``DUE
    TO JOB REQUEUE``; empty for a plain scancel, None without such a line."""
    restarts: int | None = None
    """Number of requeues before this start; None when Slurm did not answer."""
    out_of_memory: bool = False
    """A step of it ended OUT_OF_MEMORY."""
    memory: str = ""
    """The memory that it asked for and used at most, in words; empty if unknown."""
    ends: float | None = None
    """The time of its end, or the latest possible one, in seconds since the epoch: at its time
    limit, or once it is preempted when its grace is over; None where Slurm does not say."""


@dataclass(frozen=True)
class Evidence:
    """All evidence on one attempt as it ends, or after it has."""

    intent: str | None = None
    """``finished``, ``cancelled`` or None, from disk."""
    finished: bool = False
    """Rank 0 recorded that the entry had come to its end."""
    exit_code: int | None = None
    """The exit code of the ranks' launcher; None if they never started, were killed, or nobody was
    left to see."""
    failure: Mapping[str, Any] | None = None
    """The first rank that ended badly: ``rank``, ``node``, ``exit_code``, ``signal``,
    ``exception``, ``message``, ``log_tail``, ``alike`` (the other ranks that ended so by themselves
    -> their nodes), and ``permanent`` and ``seen_on`` as the ledger has them; None if none did."""
    stop: str | None = None
    """The supervisor's reason to have the ranks save and leave: ``time_limit``, ``preempted``,
    ``requeued``, ``signal`` or ``interrupted``."""
    signal: str | None = None
    """The name of the signal that began that, or ended the supervisor."""
    enough: str = ""
    """Why a feature had them do so, which makes the reason ``pruned``."""
    lost_nodes: tuple[str, ...] = ()
    """Nodes whose agents fell silent or were cut off."""
    cut_off: str | None = None
    """A sentence if they are cut off from the fabric alone; None if they did not answer."""
    not_wanted: str | None = None
    """The reason why it is not to begin, which is nobody's fault."""
    launch_error: str | None = None
    """The reason why the ranks could not be started."""
    unusable_nodes: tuple[str, ...] = ()
    """The nodes that failed to start; empty if all failed, or none."""
    storage: bool = False
    """They could not use shared storage."""
    permanent: str | None = None
    """The reason why no new start mends it, unless it is the fault of `unusable_nodes`."""
    bad_nodes: tuple[str, ...] = ()
    """The nodes that the check at the start found bad, and the attempt is not to use."""
    response: str | None = None
    """What `hpcrun.policy.node_health` decided about them: ``replace``, ``exclude``, ``refuse``."""
    hardware: Mapping[str, str] = field(default_factory=dict)
    """Those of them whose hardware is broken -> what is wrong with it."""
    doubt: str | None = None
    """A clause that says why the ranks' exit code 0 may be wrong; None if nothing does."""
    hang: Mapping[str, Any] | None = None
    """``message``, ``rank`` and ``node`` of ranks that made no progress, and the ``lock`` that they
    wait for if one was found; None if they did."""
    supervisor_lost: bool = False
    """The supervisor recorded no end of the attempt."""
    orphaned: bool = False
    """An agent saw that and had the job requeued: Slurm then reports no other reason."""
    job: JobFacts = field(default_factory=JobFacts)
    """Slurm's report; empty under the local executor."""


@dataclass(frozen=True)
class End:
    """The end of an attempt."""

    outcome: str
    """``completed``; ``pruned``; ``cancelled``; ``stopped`` (from outside, the run itself did
    nothing wrong); ``failed``."""
    exit_code: int
    """The exit code of the supervisor."""
    cause: dict[str, Any] | None = None
    """``kind``, ``message`` and details; None for a run that completed."""
    doubt: str | None = None
    """The doubt of `Evidence`, of a run that completed."""

    @property
    def kind(self) -> str | None:
        return str(self.cause["kind"]) if self.cause else None

    @property
    def message(self) -> str:
        return str(self.cause["message"]) if self.cause else self.outcome


def decide(evidence: Evidence) -> End:
    """Decide the end of an attempt."""
    job = evidence.job
    if evidence.intent == INTENT_CANCELLED:
        return _end(CANCELLED, BY_USER)
    if evidence.not_wanted:
        return End(CANCELLED, EXIT_OK, {"kind": CANCELLED, "message": evidence.not_wanted})
    if evidence.finished and evidence.exit_code in (0, None) and evidence.failure is None:
        return End(COMPLETED, EXIT_OK, doubt=evidence.doubt)
    if evidence.stop == PRUNED:
        return End(PRUNED, EXIT_OK, {"kind": PRUNED, "message": evidence.enough})
    if evidence.stop == INTERRUPTED:
        return _end(CANCELLED, f"interrupted by {interrupted_by(evidence.signal)}")
    if job.cancelled_by:
        return _end(CANCELLED, f"cancelled in Slurm by {job.cancelled_by}")
    if job.words == "" and job.state in ("", slurm_state.COMPLETING):
        return _end(CANCELLED, "cancelled in Slurm")
    taken = _taken_away(evidence)
    if taken is not None:
        return taken
    if evidence.bad_nodes:
        decided = {"response": evidence.response, "hardware": dict(evidence.hardware)}
        return _end(BAD_NODE, str(evidence.launch_error), evidence.bad_nodes, decided)
    if evidence.launch_error and evidence.permanent:
        details: dict[str, Any] = {"permanent": evidence.permanent}
        details |= {"seen_on": list(nodes)} if (nodes := evidence.unusable_nodes) else {}
        return _end(LAUNCH, evidence.launch_error, details=details)
    if evidence.launch_error:
        kind = STORAGE if evidence.storage else LAUNCH
        return _end(kind, evidence.launch_error, evidence.unusable_nodes)
    if evidence.hang is not None:
        found = dict(evidence.hang)
        return _end(HANG, found.pop("message"), details=found)
    if evidence.failure is not None:
        return _rank_failed(evidence, evidence.failure)
    if evidence.supervisor_lost and job.out_of_memory:
        more = f" ({job.memory})" if job.memory else ""
        return _end(OUT_OF_MEMORY, f"its job was out of memory, and its supervisor with it{more}")
    if evidence.supervisor_lost:
        told = f" (Slurm: {job.state})" if job.state and not evidence.orphaned else ""
        return _end(SUPERVISOR_LOST, f"the supervisor was lost and recorded no end{told}")
    return _end(
        UNKNOWN,
        "the ranks ended without an error and before the entry had finished"
        if evidence.exit_code == 0
        else f"the ranks ended with {_code(evidence.exit_code)}, and none left a record of why",
    )


def too_little(cause: Mapping[str, Any]) -> str | None:
    """Return the key of ``resources`` that was too little, ``mem`` or ``time``; None of neither.

    Memory is that of the nodes, which the kernel or an allocator on the CPU found full.
    """
    if cause.get("kind") == TIME_LIMIT:
        return "time"
    said = str(cause.get("message"))
    of_node = cause.get("exception") in (None, *_OF_NODE_MEMORY)
    of_node = of_node and re.search(NO_GPU_MEMORY, said) is None
    of_node = of_node or re.search(NO_NODE_MEMORY, said) is not None
    return "mem" if cause.get("kind") == OUT_OF_MEMORY and of_node else None


def interrupted_by(signal: str | None) -> str:
    """Return in words what a signal that interrupted ``hpcrun run`` stands for."""
    return {"SIGHUP": "a closed terminal (SIGHUP)", "SIGTERM": "SIGTERM"}.get(str(signal), "Ctrl-C")


def _code(code: int | None) -> str:
    if code is not None and code < 0:
        return f"their launcher killed by {signal_name(-code)}"
    return f"exit code {code}"


def _taken_away(evidence: Evidence) -> End | None:
    """Return the end of an attempt whose job, time or node was taken away; None for others."""
    job, words = evidence.job, evidence.job.words or ""
    # Slurm 24.11 gives a job that it preempted before no second grace, and calls that a requeue.
    told = evidence.stop == PREEMPTED
    if told or job.preempted or job.state == slurm_state.PREEMPTED or "PREEMPTION" in words:
        return _end(PREEMPTED, "preempted by Slurm")
    if evidence.stop == TIME_LIMIT or job.state == slurm_state.TIMEOUT or "TIME LIMIT" in words:
        return _end(TIME_LIMIT, "reached its time limit")
    if evidence.lost_nodes:
        nodes = ", ".join(evidence.lost_nodes)
        what = "node" if len(evidence.lost_nodes) == 1 else "nodes"
        message = evidence.cut_off or f"{what} {nodes} did not answer any more"
        cut_off = dict.fromkeys(evidence.lost_nodes, message) if evidence.cut_off else {}
        details = {"hardware": cut_off} if cut_off else None
        return _end(NODE_FAILURE, message, evidence.lost_nodes, details)
    if job.state in slurm_state.NODE_LOST or "NODE FAILURE" in words:
        return _end(NODE_FAILURE, "Slurm lost a node of the job")
    if evidence.orphaned:
        return None
    if evidence.stop == REQUEUED or "JOB REQUEUE" in words or job.state == slurm_state.REQUEUED:
        return _end(REQUEUED, "requeued by its owner or an administrator")
    if evidence.stop == SIGNAL:
        message = f"asked to stop by {evidence.signal or 'a signal'}"
        return _end(SIGNAL, message, details={"signal": evidence.signal})
    return None


def _rank_failed(evidence: Evidence, failure: Mapping[str, Any]) -> End:
    rank, code = failure.get("rank"), failure.get("exit_code")
    if code == EXIT_SAVED:
        return _end(SAVED, "saved its state and asks to be started again")
    where = f"rank {rank}" + (f" ({failure['role']})" if failure.get("role") else "")
    where += f" on {failure['node']}" if failure.get("node") else ""
    alike: Mapping[int, str | None] = failure.get("alike") or {}
    failed_on = [*dict.fromkeys(filter(None, (failure.get("node"), *alike.values())))]
    if alike:
        where += f" (and {_ranks(alike)})"
    kind = of_exception(failure.get("exception"), failure.get("message"))
    if failure.get("exception"):
        said = str(failure.get("message") or "")
        message = f"{where} raised {failure['exception']}: {said}".rstrip(": ")
        # All ranks raise it, and it names those that are meant.
        message = said if kind == REPLICAS_DIFFER else message
    elif failure.get("by_slurm"):
        message = (
            f"Slurm ended the step of the ranks, {where} with it: one called MPI_Abort or left in "
            "the midst of MPI, or somebody ended the step"
        )
    elif failure.get("signal"):
        message = f"{where} was ended by {failure['signal']}"
        thrown = re.search(_THROWN, "\n".join(failure.get("log_tail") or ()))
        if failure["signal"] == "SIGABRT" and thrown:
            message += f": {shortened(thrown[1], 200)}"
            kind = of_exception("RuntimeError", thrown[1])
    elif code == EXIT_OK:
        message = f"{where} left with exit code 0 before the run was done"
    else:
        message = f"{where} ended with exit code {code}"
        if failure.get("permanent"):
            message += f": {failure['permanent']}"
    by_kernel = failure.get("signal") in KILLING and evidence.job.out_of_memory
    if by_kernel or failure.get("out_of_memory"):
        kind = OUT_OF_MEMORY
        message = f"{where} was killed because its job was out of memory"
    if kind == OUT_OF_MEMORY and evidence.job.memory and not failure.get("exception"):
        message += f" ({evidence.job.memory})"
    keep = ("rank", "node", "exit_code", "signal", "exception", "log_tail")
    details = {key: failure.get(key) for key in keep}
    details |= {"role": failure["role"]} if failure.get("role") else {}
    details |= {"failed_on": failed_on} if len(failed_on) > 1 else {}
    if kind == RANK_CRASH:
        details |= {key: failure[key] for key in ("permanent", "seen_on") if key in failure}
    return _end(kind, message, details=details)


def of_exception(name: object, message: object) -> str:
    """Return the kind of cause that a rank's exception is, by its class's name and its message."""
    if name in _OF_ALLOCATORS and re.search(_NO_MEMORY, str(message or "")):
        return OUT_OF_MEMORY
    # Of a save that failed, a full disk or the program is the cause, and no checkpoint is bad.
    is_save = name == "CheckpointError" and re.search(_NOT_SAVED, str(message or ""))
    return RANK_CRASH if is_save else _EXCEPTIONS.get(str(name), RANK_CRASH)


def _ranks(nodes: Mapping[int, str | None]) -> str:
    """Return ``ranks 2, 5-7 on n2, n3`` for ranks and their nodes."""
    shown = listed(ranges(nodes), _SHOWN)
    names = listed([*dict.fromkeys(filter(None, nodes.values()))], _SHOWN)
    return f"{agreeing(len(nodes), 'rank', 'ranks')} {shown}" + (f" on {names}" if names else "")


def _end(
    kind: str,
    message: str,
    nodes: tuple[str, ...] = (),
    details: Mapping[str, Any] | None = None,
) -> End:
    cause: dict[str, Any] = {"kind": kind, "message": message, **(details or {})}
    if nodes:
        cause["nodes"] = list(nodes)
    if kind == CANCELLED:
        return End(CANCELLED, EXIT_FAILED, cause)
    if kind in _FROM_OUTSIDE:
        return End(STOPPED, EXIT_SAVED, cause)
    return End(FAILED, int((details or {}).get("exit_code") or EXIT_FAILED), cause)
