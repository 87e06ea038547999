"""The state of a run as a table: evidence in, state and reason out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcrun.observe.status.run_state import STATES, RunEvidence, decide
from hpcrun.slurm.queue import JobState
from hpcrun.state.journal import Job
from hpcrun.state.layout import SubmissionPaths
from hpcrun.state.ledger import Attempt

T = 1_700_000_000.0


def job(state: str, **more: Any) -> JobState:
    return JobState("100", state, **more)


PENDING = job("PENDING", reason="Priority")
RUNNING = job("RUNNING")
ENDING = job("COMPLETING")
GONE = job("GONE")


def sub(event: str = "submitted", job: str | None = "100", number: int = 1, **more: Any) -> Job:
    paths = SubmissionPaths(Path(f"/r/study/submissions/{number}"))
    record = {"time": more.pop("time", T)}
    return Job(0, paths, event, record, job if event == "submitted" else None, **more)


def attempt(
    number: int = 1,
    outcome: str | None = None,
    *,
    job: str = "100",
    submission: int = 1,
    workers: bool = True,
    time: float = T + 60,
    **cause: Any,
) -> Attempt:
    ended = None if outcome is None else {"outcome": outcome, "cause": cause or None}
    started = {"job_id": job, "submission": submission, "time": time, "nodes": ["n1"]}
    return Attempt(number, started, T + 61 if workers else None, ended)


def smaller(found: Attempt) -> Attempt:
    """An attempt whose micro batch was halved."""
    batch = {"micro_batch": 2, "accumulation": 8, "planned_micro_batch": 4}
    return replace(found, started={**found.started, **batch})


CRASH = {"kind": "rank_crash", "message": "rank 1 was ended by SIGKILL"}
TERM = {"kind": "signal", "message": "the supervisor received SIGTERM"}
REQUEUED = replace(attempt(1, "failed", **CRASH), decided={"action": "requeue"})
PRUNED = attempt(1, "pruned", kind="pruned", message="loss 5 at step 3")
SAVED = {"kind": "saved", "message": "saved its state"}
RESUMED = {"resumes": True, "message": "resumes from out/checkpoint-500"}
OVER = {"step": 1, "message": "began over at step 1, though step 93 had been reached"}
SHARED = {"file": "out/model.pt", "ranks": [0, 1, 2, 5]}
SILENT = "Slurm does not answer"
LOCAL = sub(job="local:7")

TABLE: list[tuple[str, dict[str, Any], str, str | None, bool]] = [
    ("nothing but a plan", {}, "planned", None, False),
    ("refused", {"submission": sub("refused", message="bad QOS")}, "planned", "bad QOS", False),
    ("submitting", {"submission": sub("submitting")}, "unknown", "repeat the submit", False),
    ("pending", {"submission": sub(), "job": PENDING}, "pending", "Priority: waits", False),
    (
        "pending for a reason that has no words",
        {"submission": sub(), "job": job("PENDING", reason="(Odd)")},
        "pending",
        "(Odd)",
        False,
    ),
    ("configuring", {"submission": sub(), "job": job("CONFIGURING")}, "pending", "configur", False),
    ("job began", {"submission": sub(), "job": RUNNING}, "running", "not seen yet", False),
    ("unknown job", {"submission": sub()}, "unknown", "does not know job 100", False),
    ("silent, pending", {"submission": sub(), "silence": SILENT}, "pending", "as of", False),
    (
        "cancelled in the queue by scancel",
        {"submission": sub(), "job": job("CANCELLED")},
        "cancelled",
        "in Slurm",
        True,
    ),
    (
        "job over before an attempt",
        {"submission": sub(), "job": job("FAILED", exit_code=1)},
        "failed",
        "Slurm: FAILED, exit code 1",
        True,
    ),
    (
        "completed a moment ago, and nothing of it is seen",
        {"submission": sub(), "job": job("COMPLETED"), "unseen": True},
        "unknown",
        "not seen on this host yet",
        False,
    ),
    (
        "completed a moment ago, and its end is not seen",
        {"attempts": [attempt()], "job": job("COMPLETED"), "unseen": True},
        "unknown",
        "not seen on this host yet",
        False,
    ),
    (
        "accounting knows no end",
        {"submission": sub(), "job": job("UNKNOWN", reason="forgotten")},
        "unknown",
        "forgotten",
        False,
    ),
    ("starting", {"attempts": [attempt(workers=False)], "job": RUNNING}, "running", "nodes", False),
    ("running", {"attempts": [attempt()], "job": RUNNING}, "running", None, False),
    (
        "running, resumed",
        {"attempts": [replace(attempt(2), resume=RESUMED)], "job": RUNNING},
        "running",
        "attempt 2 resumes from out/checkpoint-500",
        False,
    ),
    (
        "running, begun over",
        {"attempts": [replace(attempt(2), resume=RESUMED, began_over=OVER)], "job": RUNNING},
        "running",
        "attempt 2 began over at step 1",
        False,
    ),
    ("completing", {"attempts": [attempt()], "job": job("COMPLETING")}, "running", None, False),
    (
        "suspended",
        {"attempts": [attempt()], "job": job("SUSPENDED")},
        "running",
        "Slurm has suspended its job: it stands still",
        False,
    ),
    ("silent, running", {"attempts": [attempt()], "silence": SILENT}, "running", "as of", False),
    ("open, job unknown", {"attempts": [attempt()]}, "unknown", "no end of attempt 1", False),
    (
        "open, accounting without an end",
        {"attempts": [attempt()], "job": job("UNKNOWN", reason="forgotten")},
        "unknown",
        "forgotten",
        False,
    ),
    ("open, requeued", {"attempts": [attempt()], "job": PENDING}, "requeued", "Priority", False),
    (
        "open, node failure",
        {"attempts": [attempt()], "job": job("NODE_FAIL")},
        "failed",
        "Slurm: NODE_FAIL), and the ledger has no end of attempt 1",
        True,
    ),
    (
        "open, job completed",
        {"attempts": [attempt()], "job": job("COMPLETED")},
        "failed",
        "no end of attempt 1",
        True,
    ),
    (
        "open, scancel",
        {"attempts": [attempt()], "job": job("CANCELLED")},
        "cancelled",
        "in Slurm",
        True,
    ),
    ("completed", {"attempts": [attempt(1, "completed")], "job": RUNNING}, "completed", None, True),
    (
        "finished by intent",
        {"intent": "finished", "attempts": [attempt()]},
        "completed",
        None,
        True,
    ),
    ("pruned", {"attempts": [PRUNED], "job": RUNNING}, "pruned", "loss 5 at step 3", True),
    ("pruned by intent", {"intent": "pruned", "attempts": [attempt()]}, "pruned", None, True),
    (
        "pruned, and submitted again",
        {"attempts": [PRUNED], "submission": sub(job="101", number=2), "job": job("PENDING")},
        "pending",
        None,
        False,
    ),
    (
        "crashed",
        {"attempts": [attempt(1, "failed", **CRASH)], "job": job("FAILED")},
        "failed",
        "rank 1 was ended by SIGKILL",
        True,
    ),
    (
        "crashed, job still ending",
        {"attempts": [attempt(1, "failed", **CRASH)], "job": RUNNING},
        "failed",
        "SIGKILL",
        True,
    ),
    (
        "crashed, then requeued by Slurm",
        {"attempts": [attempt(1, "failed", **CRASH)], "job": PENDING},
        "requeued",
        "Priority",
        False,
    ),
    (
        "crashed, second attempt runs",
        {"attempts": [attempt(1, "failed", **CRASH), attempt(2)], "job": RUNNING},
        "running",
        None,
        False,
    ),
    (
        "ranks write one file",
        {"attempts": [replace(attempt(), shared_write=SHARED)], "job": RUNNING},
        "running",
        "its ranks 0-2,5 write one file, out/model.pt",
        False,
    ),
    (
        "ranks wrote one file, after a restart",
        {"attempts": [replace(attempt(2), shared_write=SHARED, resume=RESUMED)], "job": RUNNING},
        "running",
        "resumes from out/checkpoint-500; its ranks 0-2,5 write one file",
        False,
    ),
    (
        "ranks wrote one file, completed",
        {"attempts": [replace(attempt(1, "completed"), shared_write=SHARED)]},
        "completed",
        "its ranks 0-2,5 write one file",
        True,
    ),
    (
        "memory ran out before",
        {"attempts": [smaller(attempt(2))], "job": RUNNING},
        "running",
        "micro batches of 2 (8 accumulated) in place of 4: memory ran out",
        False,
    ),
    (
        "memory ran out before, completed",
        {"attempts": [smaller(attempt(2, "completed"))]},
        "completed",
        "micro batches of 2 (8 accumulated) in place of 4: memory ran out",
        True,
    ),
    (
        "crashed, Slurm silent",
        {"attempts": [attempt(1, "failed", **CRASH)], "silence": SILENT},
        "failed",
        "SIGKILL",
        True,
    ),
    (
        "time limit",
        {"attempts": [attempt(1, "failed", **TERM)], "job": job("TIMEOUT")},
        "failed",
        "SIGTERM (Slurm: TIMEOUT)",
        True,
    ),
    (
        "scancel seen by the supervisor as a signal",
        {"attempts": [attempt(1, "failed", **TERM)], "job": job("CANCELLED")},
        "cancelled",
        "in Slurm",
        True,
    ),
    (
        "stopped, job requeued",
        {"attempts": [attempt(1, "stopped", **SAVED)], "job": PENDING},
        "requeued",
        "Priority",
        False,
    ),
    (
        "stopped, job lives",
        {"attempts": [attempt(1, "stopped", **SAVED)], "job": RUNNING},
        "restarting",
        "saved",
        False,
    ),
    (
        "stopped, job over",
        {"attempts": [attempt(1, "stopped", **SAVED)], "job": job("COMPLETED")},
        "failed",
        "submit it again",
        True,
    ),
    (
        "stopped, Slurm silent",
        {"attempts": [attempt(1, "stopped", **SAVED)], "silence": SILENT},
        "unknown",
        "as of",
        False,
    ),
    (
        "to be requeued, Slurm silent",
        {"attempts": [REQUEUED], "silence": SILENT},
        "unknown",
        "as of",
        False,
    ),
    ("cancelled by its end", {"attempts": [attempt(1, "cancelled")]}, "cancelled", None, True),
    (
        "cancelled in the queue, by scancel, after an attempt",
        {"attempts": [REQUEUED], "submission": sub(), "job": job("CANCELLED")},
        "cancelled",
        "its job was cancelled in Slurm",
        True,
    ),
    (
        "cancelled, ranks still end",
        {"intent": "cancelled", "attempts": [attempt()], "submission": sub(), "job": ENDING},
        "cancelled",
        "still ending",
        False,
    ),
    (
        "cancelled, Slurm was not told",
        {"intent": "cancelled", "attempts": [attempt()], "submission": sub(), "job": RUNNING},
        "cancelled",
        "Slurm says RUNNING of its job: where that lasts, `hpcrun cancel` it again",
        False,
    ),
    (
        "cancelled, job gone",
        {"intent": "cancelled", "attempts": [attempt()], "job": job("CANCELLED")},
        "cancelled",
        None,
        True,
    ),
    ("cancelled before it was submitted", {"intent": "cancelled"}, "cancelled", None, True),
    (
        "cancelled in the queue",
        {"intent": "cancelled", "submission": sub(), "job": PENDING},
        "cancelled",
        "Slurm says PENDING of its job: where that lasts, `hpcrun cancel` it again",
        False,
    ),
    (
        "cancelled, Slurm silent",
        {"intent": "cancelled", "submission": sub(), "silence": SILENT},
        "cancelled",
        "does not answer",
        False,
    ),
    (
        "cancelled, end on record, job still there",
        {"intent": "cancelled", "attempts": [attempt(1, "failed", **TERM)], "job": RUNNING},
        "cancelled",
        None,
        True,
    ),
    (
        "cancelled before its local turn",
        {"intent": "cancelled", "submission": LOCAL, "job": RUNNING},
        "cancelled",
        None,
        True,
    ),
    (
        "resubmitted and pending",
        {
            "submission": sub(job="200", number=2, time=T + 900),
            "attempts": [attempt(1, "failed", **CRASH)],
            "job": PENDING,
        },
        "pending",
        "Priority",
        False,
    ),
    (
        "resubmitted within one submission",
        {
            "submission": sub(job="200", time=T + 900),
            "attempts": [attempt(1, "failed", **CRASH)],
            "job": PENDING,
        },
        "pending",
        "Priority",
        False,
    ),
    (
        "foreground attempt after an old submission",
        {
            "submission": sub(job="50"),
            "attempts": [attempt(job="local:9", submission=2)],
            "job": RUNNING,
        },
        "running",
        None,
        False,
    ),
    ("local, its turn comes", {"submission": LOCAL, "job": RUNNING}, "waiting", "turn", False),
    ("local, executor gone", {"submission": LOCAL, "job": GONE}, "failed", "executor ended", True),
    (
        "local, supervisor ended first",
        {"submission": sub(job="local:7", ended=True), "job": GONE},
        "failed",
        "its supervisor ended before an attempt",
        True,
    ),
    (
        "local, elsewhere",
        {"submission": LOCAL, "silence": "it runs on there"},
        "waiting",
        "it runs on there; as of",
        False,
    ),
    (
        "local, process gone",
        {"submission": LOCAL, "attempts": [attempt(job="local:7")], "job": GONE},
        "failed",
        "its process is gone, and the ledger has no end",
        True,
    ),
]


@pytest.mark.parametrize(
    ("given", "state", "reason", "is_over"),
    [row[1:] for row in TABLE],
    ids=[row[0] for row in TABLE],
)
def test_state(given: dict[str, Any], state: str, reason: str | None, is_over: bool) -> None:
    if given.get("attempts") and "submission" not in given:
        given = {"submission": sub(), **given}
    verdict = decide(RunEvidence(**{"updated": T, **given}))
    assert verdict.state in STATES
    assert (verdict.state, verdict.over) == (state, is_over)
    if reason is None:
        assert verdict.reason is None
    else:
        assert reason in (verdict.reason or "")


@pytest.mark.parametrize("job", [None, job("UNKNOWN"), job("SPECIAL_EXIT"), RUNNING])
@pytest.mark.parametrize("attempts", [[], [attempt()], [attempt(workers=False)]])
@pytest.mark.parametrize("silence", [None, SILENT])
def test_without_a_known_end_a_run_is_never_failed(
    job: JobState | None, attempts: list[Attempt], silence: str | None
) -> None:
    evidence = RunEvidence(sub(), attempts, None, job, silence, T)
    assert decide(evidence).state != "failed"


@pytest.mark.parametrize(
    ("said", "attempts", "state"),
    [
        (job("PENDING", known_at=T + 30), [attempt()], "running"),
        (job("PENDING", known_at=T + 90), [attempt()], "requeued"),
        (job("FAILED", known_at=T + 30), [attempt()], "running"),
        (job("PENDING", known_at=T + 30), [], "pending"),
    ],
)
def test_what_slurm_said_before_the_ledger_did_is_old_news(
    said: JobState, attempts: list[Attempt], state: str
) -> None:
    verdict = decide(RunEvidence(sub(), attempts, None, said, SILENT, T))
    assert verdict.state == state
    assert not verdict.over
    assert "as of" in str(verdict.reason)
