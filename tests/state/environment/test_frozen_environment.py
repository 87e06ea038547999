"""The record of a frozen environment, and what a start of a job makes of one that is not right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcrun.errors import HpcrunError
from hpcrun.state import files
from hpcrun.state.environment import frozen_environment
from hpcrun.state.environment.frozen_environment import FrozenEnvironment
from hpcrun.state.layout import ExperimentPaths, SubmissionPaths

DIGEST = "0f" * 32
DATA: dict[str, Any] = {
    **{"digest": DIGEST, "form": "copy", "source": "/venv/bin/python", "base": "/usr/bin/python3"},
    **{"version": "3.11.2", "bytes": 7, "files": 1, "moved": {"/more": "layers/1"}},
    "packages": {"precise": "1.0"},
}


def test_a_record_is_read_as_it_was_written() -> None:
    found = FrozenEnvironment.of(DATA)
    assert found is not None
    assert found.to_data() == DATA
    assert found.name == DIGEST[:12]


@pytest.mark.parametrize(
    "changes",
    [
        {"digest": "../" * 21 + "a"},
        {"digest": 7},
        {"bytes": -1},
        {"files": True},
        {"moved": {"/more": "../../etc"}},
        {"moved": {"/more": "/etc"}},
        {"moved": None},
        {"another": 1},
    ],
)
def test_what_is_no_record(changes: dict[str, Any]) -> None:
    assert FrozenEnvironment.of({**DATA, **changes}) is None
    assert FrozenEnvironment.of([DATA]) is None


@pytest.fixture
def submission(tmp_path: Path) -> SubmissionPaths:
    made = ExperimentPaths(tmp_path / "root" / "e").submission(1)
    made.directory.mkdir(parents=True)
    files.write_json(made.submission, {frozen_environment.KEY: DATA})
    return made


def _freeze(submission: SubmissionPaths, content: bytes = b"archive") -> Path:
    directory = frozen_environment.shared_place(submission.experiment.root) / DIGEST
    directory.mkdir(parents=True)
    frozen_environment.archive(directory).write_bytes(content)
    return directory


def test_a_start_finds_it(submission: SubmissionPaths) -> None:
    directory = _freeze(submission)
    found, archive = frozen_environment.of_submission(submission)
    assert found.to_data() == DATA
    assert archive == directory / "environment.tar"


def test_it_is_gone(submission: SubmissionPaths) -> None:
    with pytest.raises(HpcrunError, match=r"the frozen environment is gone: .*0f0f") as told:
        frozen_environment.of_submission(submission)
    assert told.value.hint == "`hpcrun submit` freezes the environment of now"


def test_it_is_not_what_was_frozen(submission: SubmissionPaths) -> None:
    _freeze(submission, b"arch")
    with pytest.raises(HpcrunError, match=r"environment\.tar is not what was frozen: its size"):
        frozen_environment.of_submission(submission)


@pytest.mark.parametrize("link", ["directory", "archive"])
def test_a_link_is_not_followed(submission: SubmissionPaths, tmp_path: Path, link: str) -> None:
    directory = _freeze(submission)
    path = directory if link == "directory" else frozen_environment.archive(directory)
    path.rename(tmp_path / "aside")
    path.symlink_to(tmp_path / "aside")
    with pytest.raises(HpcrunError, match="is gone"):
        frozen_environment.of_submission(submission)


def test_one_that_everybody_may_change(submission: SubmissionPaths) -> None:
    frozen_environment.archive(_freeze(submission)).chmod(0o666)
    with pytest.raises(HpcrunError, match="is gone"):
        frozen_environment.of_submission(submission)


def test_a_submission_without_one(submission: SubmissionPaths) -> None:
    files.write_json(submission.submission, {"packages": {}})
    assert frozen_environment.read_record(submission) is None
    with pytest.raises(HpcrunError, match="names no frozen environment"):
        frozen_environment.of_submission(submission)
    submission.submission.unlink()
    assert frozen_environment.read_record(submission) is None
