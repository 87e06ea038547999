"""A node's look at shared storage: what is of it, and how often it is repeated."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcrun import shared_look
from hpcrun.errors import HpcrunError
from hpcrun.run.check_in import patient_look
from hpcrun.run.check_in.node_failures import EXIT_STORAGE
from hpcrun.state.layout import SubmissionPaths


@pytest.fixture
def submission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SubmissionPaths:
    monkeypatch.setattr(patient_look, "PAUSES", (0.0, 0.01, 0.01))
    found = SubmissionPaths(tmp_path / "root" / "study" / "submissions" / "1")
    found.submission.parent.mkdir(parents=True)
    return found


def on(name: str, number: int, other: str | None = None) -> OSError:
    return OSError(number, os.strerror(number), name, None, other)


def wrapped(error: Exception) -> HpcrunError:
    try:
        try:
            raise error
        except type(error) as inner:
            raise HpcrunError("it cannot be unpacked") from inner
    except HpcrunError as outer:
        return outer


ROOT, LOCAL = "/root/study/attempts/2", "/tmp/hpcrun-1/code"
ERRORS: dict[str, tuple[Exception, bool]] = {
    "absent": (on(ROOT, errno.ENOENT), True),
    "not allowed": (on(ROOT, errno.EACCES), True),
    "an input error": (on(ROOT, errno.EIO), True),
    "a stale handle": (on(ROOT, errno.ESTALE), True),
    "a stale handle of a stream": (OSError(errno.ESTALE, "stale"), True),
    "full": (on(ROOT, errno.ENOSPC), True),
    "a quota": (on(ROOT, errno.EDQUOT), True),
    "read-only": (on(ROOT, errno.EROFS), True),
    "told by an error of ours": (wrapped(on(ROOT, errno.ENOENT)), True),
    "its name was dropped": (wrapped(OSError(errno.EIO, "input/output error")), True),
    "a copy of what is gone": (on(ROOT, errno.ENOENT, LOCAL), True),
    "several copies": (shutil.Error([(ROOT, LOCAL, "stale file handle")]), True),
    "a copy to a disk that is full": (on(ROOT, errno.ENOSPC, LOCAL), False),
    "the node's disk": (on(LOCAL, errno.ENOSPC), False),
    "the node's disk, of a stream": (OSError(errno.ENOSPC, "no space left"), False),
    "a program that the node lacks": (on("apptainer", errno.ENOENT), False),
    "no port": (OSError(errno.EADDRINUSE, "in use"), False),
    "a FIFO in a file's place": (on(ROOT, errno.EINVAL), False),
    "an error without one of storage": (HpcrunError("cut off from the fabric"), False),
}


@pytest.mark.parametrize("case", ERRORS)
def test_what_is_of_shared_storage(case: str) -> None:
    error, expected = ERRORS[case]
    assert patient_look.is_shared(error, Path("/root")) is expected


def test_what_an_error_is_about(submission: SubmissionPaths) -> None:
    absent = on(str(submission.plan), errno.ENOENT)
    assert patient_look.about(submission, "build", absent) == "storage"
    assert patient_look.about(submission, "build", HpcrunError("no compiler")) == "build"
    assert patient_look.about(submission, "prepare", HpcrunError("no port")) == ""


def look(*errors: Exception | None) -> Callable[[], int]:
    """A look that meets these errors, one after another."""
    left = list(errors)

    def once() -> int:
        if left and (error := left.pop(0)) is not None:
            raise error
        return len(left)

    return once


def test_an_absence_that_passes(submission: SubmissionPaths) -> None:
    absent = on(str(submission.plan), errno.ENOENT)
    assert patient_look.patiently(look(absent, absent), submission.plan, submission) == 0


def test_the_directories_are_opened_before_the_next_look(
    submission: SubmissionPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(shared_look, "refresh", lambda path: opened.append(str(path)))
    work = str(submission.experiment.directory / "runs" / "work")
    patient_look.patiently(look(on(f"{work}/x", errno.ENOENT)), submission.directory, submission)
    assert opened == [str(submission.directory), work]


@pytest.mark.parametrize(
    ("number", "looks"), [(errno.ENOENT, 4), (errno.EIO, 4), (errno.ENOSPC, 1), (errno.EROFS, 1)]
)
def test_an_error_that_stays(submission: SubmissionPaths, number: int, looks: int) -> None:
    seen: list[int] = []

    def fails() -> None:
        seen.append(1)
        raise on(str(submission.plan), number)

    with pytest.raises(OSError, match=os.strerror(number)):
        patient_look.patiently(fails, submission.plan.parent, submission)
    assert len(seen) == looks


def test_other_errors_are_not_looked_at_again(submission: SubmissionPaths) -> None:
    with pytest.raises(HpcrunError, match="no port"):
        patient_look.patiently(look(HpcrunError("no port")), submission.plan, submission)


def test_who_is_given_up_does_not_wait(
    submission: SubmissionPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patient_look, "PAUSES", (60.0,))
    absent = on(str(submission.plan), errno.ENOENT)
    with pytest.raises(FileNotFoundError):
        patient_look.patiently(look(absent, absent), submission.plan, submission, lambda: True)


def test_an_agent_that_cannot_see_its_plan_leaves_with_a_code(submission: SubmissionPaths) -> None:
    with pytest.raises(SystemExit) as caught:
        patient_look.read_plan(submission, 0)
    assert caught.value.code == EXIT_STORAGE
    submission.plan.parent.mkdir(exist_ok=True)
    submission.plan.write_text("{")
    with pytest.raises(HpcrunError, match="is not a plan"):
        patient_look.read_plan(submission, 0)


def test_the_looks_outlast_what_a_client_of_nfs_keeps() -> None:
    """nfs(5): acdirmax, 60 seconds by default."""
    assert shared_look.SEEN_WITHIN <= sum(patient_look.PAUSES) < 90
