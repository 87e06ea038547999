"""Why an attempt ended, as a table: evidence -> what the ledger says."""

from __future__ import annotations

from typing import Any

import pytest

from hpcrun.policy import causes
from hpcrun.policy.causes import Evidence, JobFacts


def _failure(**fields: Any) -> dict[str, Any]:
    empty = {"exit_code": None, "signal": None, "exception": None, "message": None, "log_tail": []}
    return {"rank": 1, "node": "n1", **empty, **fields}


CRASH = _failure(exit_code=1, exception="ValueError", message="bad loss")
KILLED = _failure(signal="SIGKILL")
SAVED = _failure(exit_code=75)
PREEMPTED = JobFacts(state="PREEMPTED")
IN_GRACE = JobFacts(state="RUNNING", preempted=True)
SCANCELLED = JobFacts(state="CANCELLED", cancelled_by="ada", words="")

# name: evidence -> (outcome, exit code, kind, a part of the message)
TABLE: dict[str, tuple[Evidence, tuple[str, int, str | None, str]]] = {
    "all is well": (Evidence(finished=True, exit_code=0), ("completed", 0, None, "completed")),
    "finished, and the supervisor died before it could say so": (
        Evidence(finished=True, supervisor_lost=True),
        ("completed", 0, None, "completed"),
    ),
    "pruned": (
        Evidence(stop="pruned", enough="loss 5 at step 3", exit_code=75),
        ("pruned", 0, "pruned", "loss 5 at step 3"),
    ),
    "finished as it was pruned": (
        Evidence(stop="pruned", finished=True, exit_code=0),
        ("completed", 0, None, "completed"),
    ),
    "cancelled as it was pruned": (
        Evidence(stop="pruned", intent="cancelled", exit_code=75),
        ("cancelled", 1, "cancelled", "by the user"),
    ),
    "finished, yet srun failed": (
        Evidence(finished=True, exit_code=1),
        ("failed", 1, "unknown", "ended with exit code 1, and none left a record"),
    ),
    "no one finished": (
        Evidence(exit_code=0),
        ("failed", 1, "unknown", "without an error and before the entry had finished"),
    ),
    "an exception": (
        Evidence(failure=CRASH),
        ("failed", 1, "rank_crash", "rank 1 on n1 raised ValueError: bad loss"),
    ),
    "an exception of ranks on two nodes": (
        Evidence(failure={**CRASH, "alike": {0: "n0", 2: "n1", 3: "n1"}}),
        ("failed", 1, "rank_crash", "rank 1 on n1 (and ranks 0, 2-3 on n0, n1) raised ValueError"),
    ),
    "an exit code of a rank beside it": (
        Evidence(failure={**_failure(exit_code=3), "alike": {2: None}}),
        ("failed", 3, "rank_crash", "rank 1 on n1 (and rank 2) ended with exit code 3"),
    ),
    "an exception of very many ranks": (
        Evidence(failure={**CRASH, "alike": {r: f"m{r}" for r in range(2, 30, 2)}}),
        (
            "failed",
            1,
            "rank_crash",
            "(and ranks 2, 4, 6, 8 and 10 more on m2, m4, m6, m8 and 10 more) raised ValueError",
        ),
    ),
    "an exception without words": (
        Evidence(failure={**CRASH, "message": ""}),
        ("failed", 1, "rank_crash", "rank 1 on n1 raised ValueError"),
    ),
    "an exit code": (
        Evidence(failure=_failure(exit_code=3), exit_code=3),
        ("failed", 3, "rank_crash", "rank 1 on n1 ended with exit code 3"),
    ),
    "left without an error while others went on": (
        Evidence(failure=_failure(exit_code=0), exit_code=1),
        ("failed", 1, "rank_crash", "rank 1 on n1 left with exit code 0 before the run was done"),
    ),
    "no node is known": (
        Evidence(failure=_failure(exit_code=2, node=None)),
        ("failed", 2, "rank_crash", "rank 1 ended with exit code 2"),
    ),
    "killed by somebody": (
        Evidence(failure=KILLED, job=JobFacts(state="RUNNING")),
        ("failed", 1, "rank_crash", "rank 1 on n1 was ended by SIGKILL"),
    ),
    "ended by Slurm with the others": (
        Evidence(failure={**KILLED, "by_slurm": True}, job=JobFacts(state="RUNNING")),
        ("failed", 1, "rank_crash", "Slurm ended the step of the ranks, rank 1 on n1 with it"),
    ),
    "killed by the kernel, says accounting": (
        Evidence(failure=KILLED, job=JobFacts(state="RUNNING", out_of_memory=True)),
        ("failed", 1, "out_of_memory", "rank 1 on n1 was killed because its job was out of memory"),
    ),
    "killed by the kernel, says srun": (
        Evidence(
            failure={**KILLED, "out_of_memory": True},
            job=JobFacts(memory="it asked for 500M"),
        ),
        ("failed", 1, "out_of_memory", "(it asked for 500M)"),
    ),
    "a segfault is no lack of memory": (
        Evidence(failure=_failure(signal="SIGSEGV"), job=JobFacts(out_of_memory=True)),
        ("failed", 1, "rank_crash", "was ended by SIGSEGV"),
    ),
    "the GPU's memory": (
        Evidence(failure=_failure(exit_code=1, exception="OutOfMemoryError", message="CUDA …")),
        ("failed", 1, "out_of_memory", "raised OutOfMemoryError: CUDA"),
    ),
    "torch's allocator of the CPU": (
        Evidence(
            failure=_failure(
                exit_code=1,
                exception="RuntimeError",
                message="[enforce fail at alloc_cpu.cpp:122] err == 0. DefaultCPUAllocator: can't "
                "allocate memory: you tried to allocate 4503599627370496 bytes.",
            )
        ),
        ("failed", 1, "out_of_memory", "can't allocate memory"),
    ),
    "a CUDA error that is no exception of its own": (
        Evidence(
            failure=_failure(
                exit_code=1, exception="AcceleratorError", message="CUDA error: out of memory"
            )
        ),
        ("failed", 1, "out_of_memory", "raised AcceleratorError: CUDA error: out of memory"),
    ),
    "an error with such words of another kind": (
        Evidence(
            failure=_failure(exit_code=1, exception="ValueError", message="CUDA out of memory")
        ),
        ("failed", 1, "rank_crash", "raised ValueError"),
    ),
    "a loss that is none": (
        Evidence(failure=_failure(exit_code=1, exception="NonFiniteLossError", message="step 9")),
        ("failed", 1, "non_finite_loss", "step 9"),
    ),
    "a loss that is far too high": (
        Evidence(failure=_failure(exit_code=1, exception="LossSpikeError", message="step 9")),
        ("failed", 1, "loss_spike", "step 9"),
    ),
    "nothing to go on from": (
        Evidence(failure=_failure(exit_code=1, exception="CheckpointError", message="damaged")),
        ("failed", 1, "bad_checkpoint", "damaged"),
    ),
    "a script that saved and wants more": (
        Evidence(failure=SAVED, exit_code=75),
        ("stopped", 75, "saved", "asks to be started again"),
    ),
    "stopped before its time limit": (
        Evidence(failure=SAVED, exit_code=75, stop="time_limit", job=JobFacts(state="RUNNING")),
        ("stopped", 75, "time_limit", "reached its time limit"),
    ),
    "the time limit came first": (
        Evidence(supervisor_lost=True, job=JobFacts(state="TIMEOUT")),
        ("stopped", 75, "time_limit", "reached its time limit"),
    ),
    "preempted with a grace": (
        Evidence(failure=SAVED, exit_code=75, stop="preempted", job=IN_GRACE),
        ("stopped", 75, "preempted", "preempted by Slurm"),
    ),
    "a rank that falls while its job is taken away is no crash": (
        Evidence(failure=CRASH, exit_code=1, stop="preempted", job=IN_GRACE),
        ("stopped", 75, "preempted", "preempted by Slurm"),
    ),
    "preempted without a word": (
        Evidence(supervisor_lost=True, job=PREEMPTED),
        ("stopped", 75, "preempted", "preempted by Slurm"),
    ),
    "preempted once more, which Slurm calls a requeue": (
        Evidence(stop="preempted", job=JobFacts(state="REQUEUED", words="DUE TO JOB REQUEUE")),
        ("stopped", 75, "preempted", "preempted by Slurm"),
    ),
    "preempted while accounting is down": (
        Evidence(signal="SIGTERM", job=JobFacts(words="DUE TO PREEMPTION")),
        ("stopped", 75, "preempted", "preempted by Slurm"),
    ),
    "requeued by an administrator": (
        Evidence(failure=SAVED, stop="requeued", job=JobFacts(words="DUE TO JOB REQUEUE")),
        ("stopped", 75, "requeued", "requeued by its owner or an administrator"),
    ),
    "asked to stop by hand": (
        Evidence(failure=SAVED, stop="signal", signal="SIGUSR2", job=JobFacts(state="RUNNING")),
        ("stopped", 75, "signal", "asked to stop by SIGUSR2"),
    ),
    "a node that fell silent": (
        Evidence(lost_nodes=("n2",), failure=CRASH, job=JobFacts(state="RUNNING")),
        ("stopped", 75, "node_failure", "node n2 did not answer any more"),
    ),
    "a node that Slurm noticed first": (
        Evidence(supervisor_lost=True, job=JobFacts(state="NODE_FAIL")),
        ("stopped", 75, "node_failure", "Slurm lost a node of the job"),
    ),
    "a supervisor that nobody knows anything of": (
        Evidence(supervisor_lost=True, job=JobFacts(state="FAILED")),
        ("stopped", 75, "supervisor_lost", "(Slurm: FAILED)"),
    ),
    "a supervisor whose agents had the job requeued": (
        Evidence(
            supervisor_lost=True,
            orphaned=True,
            job=JobFacts(state="REQUEUED", words="DUE TO JOB REQUEUE"),
        ),
        ("stopped", 75, "supervisor_lost", "the supervisor was lost"),
    ),
    "a supervisor that was lost with its node": (
        Evidence(
            supervisor_lost=True,
            orphaned=True,
            lost_nodes=("n1",),
            job=JobFacts(state="REQUEUED"),
        ),
        ("stopped", 75, "node_failure", "node n1 did not answer any more"),
    ),
    "agents that did not start": (
        Evidence(launch_error="no answer within 300 s"),
        ("failed", 1, "launch", "no answer within 300 s"),
    ),
    "a node that could not be prepared": (
        Evidence(launch_error="node n3 cannot be used: full", unusable_nodes=("n3",)),
        ("failed", 1, "launch", "node n3 cannot be used: full"),
    ),
    "a node that was found bad": (
        Evidence(launch_error="node n3: no GPU", bad_nodes=("n3",), response="replace"),
        ("stopped", 75, "bad_node", "node n3: no GPU"),
    ),
    "shared storage that a node does not see": (
        Evidence(launch_error="node n3: gone", unusable_nodes=("n3",), storage=True),
        ("stopped", 75, "storage", "node n3: gone"),
    ),
    "operators that compile nowhere": (
        Evidence(launch_error="no compiler", permanent="they do not compile"),
        ("failed", 1, "launch", "no compiler"),
    ),
    "a node that was found bad in a job that is preempted": (
        Evidence(launch_error="node n3: no GPU", bad_nodes=("n3",), stop="preempted"),
        ("stopped", 75, "preempted", "preempted by Slurm"),
    ),
    "cancelled": (
        Evidence(intent="cancelled", failure=KILLED),
        ("cancelled", 1, "cancelled", "cancelled by the user"),
    ),
    "cancelled as it finished": (
        Evidence(intent="cancelled", finished=True, exit_code=0),
        ("cancelled", 1, "cancelled", "cancelled by the user"),
    ),
    "Ctrl-C": (
        Evidence(failure=SAVED, exit_code=75, stop="interrupted", signal="SIGINT"),
        ("cancelled", 1, "cancelled", "interrupted by Ctrl-C"),
    ),
    "Ctrl-C as it finished": (
        Evidence(finished=True, exit_code=0, stop="interrupted", signal="SIGINT"),
        ("completed", 0, None, "completed"),
    ),
    "a plain scancel": (
        Evidence(failure=SAVED, stop="signal", job=SCANCELLED),
        ("cancelled", 1, "cancelled", "cancelled in Slurm by ada"),
    ),
    "a plain scancel while accounting is down": (
        Evidence(signal="SIGTERM", job=JobFacts(state="COMPLETING", words="")),
        ("cancelled", 1, "cancelled", "cancelled in Slurm"),
    ),
    "finished while a scancel came": (
        Evidence(finished=True, exit_code=0, job=SCANCELLED),
        ("completed", 0, None, "completed"),
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_the_table(name: str) -> None:
    evidence, (outcome, code, kind, message) = TABLE[name]
    end = causes.decide(evidence)
    assert (end.outcome, end.exit_code, end.kind) == (outcome, code, kind)
    assert message in end.message


def test_a_crash_keeps_what_why_needs() -> None:
    end = causes.decide(Evidence(failure={**CRASH, "log_tail": ["one", "two"]}))
    assert end.cause is not None
    assert (end.cause["rank"], end.cause["node"], end.cause["exit_code"]) == (1, "n1", 1)
    assert end.cause["log_tail"] == ["one", "two"]


def test_lost_nodes_are_named() -> None:
    cause = causes.decide(Evidence(lost_nodes=("n2", "n4"))).cause
    assert cause is not None
    assert cause["nodes"] == ["n2", "n4"]
    assert "nodes n2, n4" in cause["message"]


def test_what_no_new_start_mends_is_kept() -> None:
    found = {"permanent": "a module is missing", "seen_on": ["n1"]}
    cause = causes.decide(Evidence(failure={**CRASH, **found})).cause
    assert cause is not None
    assert {key: cause[key] for key in found} == found
    plain = causes.decide(Evidence(failure=CRASH)).cause
    assert plain is not None
    assert not {*found} & {*plain}


def test_the_nodes_of_all_ranks_that_ended_so_are_kept() -> None:
    end = causes.decide(Evidence(failure={**CRASH, "alike": {0: "n0", 2: "n1"}}))
    assert end.cause is not None
    assert end.cause["failed_on"] == ["n1", "n0"]
    end = causes.decide(Evidence(failure={**CRASH, "alike": {2: "n1"}}))
    assert "failed_on" not in (end.cause or {})


@pytest.mark.parametrize(
    ("exception", "message", "key"),
    [
        ("RuntimeError", "[enforce fail] DefaultCPUAllocator: can't allocate memory: you", "mem"),
        ("RuntimeError", "[enforce fail] DefaultCPUAllocator: not enough memory: you tried", "mem"),
        ("RuntimeError", "std::bad_alloc", "mem"),
        ("_ArrayMemoryError", "Unable to allocate 7.45 GiB for an array with shape (1,)", "mem"),
        ("ArrowMemoryError", "malloc of size 4096 failed", "mem"),
        ("OSError", "[Errno 12] Cannot allocate memory", "mem"),
        ("MemoryError", "", "mem"),
        ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB", None),
        ("AcceleratorError", "CUDA error: out of memory", None),
        ("XlaRuntimeError", "RESOURCE_EXHAUSTED: Out of memory while trying to allocate", None),
        ("ResourceExhaustedError", "OOM when allocating tensor with shape[8,8]", None),
    ],
)
def test_memory_that_an_allocator_did_not_get(
    exception: str, message: str, key: str | None
) -> None:
    end = causes.decide(Evidence(failure={**CRASH, "exception": exception, "message": message}))
    assert end.cause is not None
    assert end.cause["kind"] == causes.OUT_OF_MEMORY
    assert causes.too_little(end.cause) == key


@pytest.mark.parametrize(
    ("thrown", "kind", "key"),
    [
        ("std::bad_alloc", causes.OUT_OF_MEMORY, "mem"),
        ("CUDA out of memory. Tried to allocate 2.00 GiB", causes.OUT_OF_MEMORY, None),
        ("[PG 0] NCCL watchdog thread terminated", causes.RANK_CRASH, None),
    ],
)
def test_what_cpp_threw_is_told(thrown: str, kind: str, key: str | None) -> None:
    tail = ["terminate called after throwing an instance of 'it'", f"  what():  {thrown}"]
    failure = {**CRASH, "exception": None, "signal": "SIGABRT", "log_tail": tail}
    end = causes.decide(Evidence(failure=failure))
    assert end.message.endswith(f"was ended by SIGABRT: {thrown}")
    assert end.kind == kind
    assert causes.too_little(end.cause or {}) == key


@pytest.mark.parametrize(
    "message",
    [
        "step 4 was not saved: rank 1: [Errno 28] No space left on device",
        "/r/checkpoints/step-00000004-a2 cannot be made: rank 0: [Errno 30] Read-only file system",
    ],
)
def test_a_save_that_failed_is_no_bad_checkpoint(message: str) -> None:
    failure = {**CRASH, "exception": "CheckpointError", "message": message}
    assert causes.decide(Evidence(failure=failure)).kind == causes.RANK_CRASH


@pytest.mark.parametrize("message", ["[Errno 2] No such file", "out of memory of what was"])
def test_other_errors_are_no_lack_of_memory(message: str) -> None:
    end = causes.decide(Evidence(failure={**CRASH, "exception": "OSError", "message": message}))
    assert end.cause is not None
    assert end.cause["kind"] == causes.RANK_CRASH


@pytest.mark.parametrize(
    ("cause", "key"),
    [
        ({"kind": causes.TIME_LIMIT}, "time"),
        ({"kind": causes.OUT_OF_MEMORY}, "mem"),
        ({"kind": causes.OUT_OF_MEMORY, "exception": "MemoryError"}, "mem"),
        (
            {
                "kind": causes.OUT_OF_MEMORY,
                "exception": "RuntimeError",
                "message": "DefaultCPUAllocator: can't allocate memory",
            },
            "mem",
        ),
        ({"kind": causes.OUT_OF_MEMORY, "exception": "OutOfMemoryError"}, None),
        (
            {
                "kind": causes.OUT_OF_MEMORY,
                "exception": "RuntimeError",
                "message": "CUDA error: out of memory",
            },
            None,
        ),
        ({"kind": causes.RANK_CRASH}, None),
        ({}, None),
    ],
)
def test_what_was_too_little(cause: dict[str, str], key: str | None) -> None:
    """A GPU's memory is nothing that Slurm gives more of."""
    assert causes.too_little(cause) == key


def test_a_supervisor_that_the_kernel_killed_with_its_job() -> None:
    job = causes.JobFacts(state="OUT_OF_MEMORY", out_of_memory=True, memory="it asked for 500M")
    end = causes.decide(causes.Evidence(supervisor_lost=True, job=job))
    assert end.kind == causes.OUT_OF_MEMORY
    assert "it asked for 500M" in end.message
