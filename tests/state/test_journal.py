"""The last word of a submission's journal on each run."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from hpcrun.errors import BrokenFile
from hpcrun.host import start_ticks
from hpcrun.state import files, journal, layout
from hpcrun.state.layout import SubmissionPaths
from tests.support.nfs import Host


@pytest.fixture
def submission(tmp_path: Path) -> SubmissionPaths:
    paths = layout.experiment(tmp_path, "study").submission(2)
    paths.directory.mkdir(parents=True)
    return paths


def test_an_array_that_slurm_took(submission: SubmissionPaths) -> None:
    journal.write(submission, journal.SUBMITTING, 1, [10, 11], host="login1", part=2)
    asked = journal.read(submission)[10]
    assert (asked.event, asked.job_id, asked.submission) == (journal.SUBMITTING, None, 2)
    assert asked.script == submission.script(1, 2)
    assert asked.answered("70").job_id == "70_10"
    journal.write(submission, journal.SUBMITTED, 1, [10, 11], offset=10, job_id="70")
    found = journal.jobs(submission)
    assert {run: job.job_id for run, job in found.items()} == {10: "70_0", 11: "70_1"}
    assert not any(job.foreground or job.is_local or job.ended for job in found.values())
    assert journal.newest_jobs(submission.experiment) == found


def test_what_was_changed_of_jobs(submission: SubmissionPaths) -> None:
    journal.write(submission, journal.SUBMITTED, 0, [1, 2], job_id="70")
    journal.write(submission, journal.UPDATED, 0, [1, 2, 9], changes={"time": "90", "qos": "low"})
    journal.write(submission, journal.UPDATED, 0, [2], changes={"time": "30", "nodes": "4"})
    # A job of its own in place of the array's task.
    journal.write(submission, journal.SUBMITTED, 0, [2], job_id="80", part=5)
    found = {run: job.changes for run, job in journal.read(submission).items()}
    told = {run: {name: one.value for name, one in these.items()} for run, these in found.items()}
    assert told == {1: {"time": "90", "qos": "low"}, 2: {"time": "30", "qos": "low"}}
    assert found[2]["time"].time > found[2]["qos"].time
    files.append(submission.journal, {"event": "updated", "runs": [1], "changes": ["time"]})
    with pytest.raises(BrokenFile):
        journal.read(submission)


def test_a_refusal_and_a_submit_that_is_gone(submission: SubmissionPaths) -> None:
    journal.write(submission, journal.SUBMITTING, 0, [1, 2])
    journal.write(submission, journal.REFUSED, 0, [1], message="no such partition")
    me = {"host": os.uname().nodename, "pid": os.getpid()}
    journal.write(submission, journal.WAITING, 0, [2], **me, start_ticks=start_ticks(os.getpid()))
    found = journal.read(submission)
    assert (found[1].event, found[1].message) == (journal.REFUSED, "no such partition")
    assert found[2].event == journal.WAITING
    assert journal.jobs(submission) == {}
    journal.write(submission, journal.WAITING, 0, [2], **me, start_ticks=1)
    gone = journal.read(submission)[2]
    assert (gone.event, gone.message) == (journal.REFUSED, "its submit is gone; repeat it")


def test_the_end_of_a_local_run_and_a_job_in_the_users_allocation(
    submission: SubmissionPaths,
) -> None:
    journal.write(submission, journal.SUBMITTED, 0, [1], job_id="local:12")
    journal.write(submission, journal.SUBMITTED, 0, [2], job_id="77")
    journal.write_end(submission, 1, 1, "its Python is gone")
    files.append(submission.journal, {"event": "ended", "run": 9}, {"event": "submitted"})
    found = journal.read(submission)
    assert (found[1].ended, found[1].message, found[1].foreground) == (
        True,
        "its Python is gone",
        False,
    )
    assert (found[2].job_id, found[2].foreground) == ("77", True)
    assert found.keys() == {1, 2}


def test_hosts_that_append_at_once(
    two_hosts: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a job's process is about to write, a command begins to; no line is lost."""
    job, command = (layout.experiment(host.path, "study").submission(1) for host in two_hosts)
    job.directory.mkdir(parents=True)
    journal.write(job, journal.SUBMITTED, 0, [1, 2], job_id="70", packed=True)
    write, began = os.write, threading.Event()
    other = threading.Thread(target=journal.write_end, args=(command, 2, 1))

    def after_the_other(descriptor: int, data: bytes) -> int:
        if not began.is_set():
            began.set()
            other.start()
            other.join(0.5)
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", after_the_other)
    journal.write_end(job, 1, 0)
    other.join()
    for place in (job, command):
        assert [one.ended for one in journal.read(place).values()] == [True, True]
    assert [*job.directory.iterdir()] == [job.journal]


@pytest.mark.parametrize(
    "owner",
    ["elsewhere:1:1", f"{os.uname().nodename}:{os.getpid()}:1"],
    ids=["of another host", "of this one"],
)
def test_a_writer_that_died(submission: SubmissionPaths, owner: str) -> None:
    """On this host its process tells; on another one, that it is silent for longer than a write."""
    left = submission.directory / ".journal.jsonl.lock" / owner
    left.parent.mkdir()
    left.touch()
    os.utime(left, (time.time() - 30,) * 2)
    journal.write_end(submission, 1, 0)
    assert [*submission.directory.iterdir()] == [submission.journal]
