"""A frozen environment: one archive for each content, and what a submission records of it.

::

    ROOT/.hpcrun/environments/
      DIGEST/                   made under another name, and renamed once it is complete
        environment.tar         bin/, lib/, …: a virtual environment whose scripts find their Python
                                beside them, wherever it is unpacked
        environment.json        `FrozenEnvironment`, with the packages in it
      .DIGEST.building/         one that is being made
        HOST:PID:TICKS          by whom; renewed as it grows
    ROOT/NAME/.hpcrun/environments/     the same, where the root's are another user's
"""

from __future__ import annotations

import dataclasses
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from hpcrun import python_packages, shared_look
from hpcrun.errors import HpcrunError
from hpcrun.fields import COUNT, MAPPING, TEXT, Kinds, wrong
from hpcrun.shared_dataclass import dataclass
from hpcrun.state import files
from hpcrun.state.layout import ExperimentPaths, SubmissionPaths

NAME = "environments"
COPY, LOCK = "copy", "lock"
# The key of a submission's record.
KEY = "environment"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_KINDS: Kinds = {
    **dict.fromkeys(("digest", "form", "source", "base", "version"), TEXT),
    **dict.fromkeys(("bytes", "files"), COUNT),
    "moved": MAPPING,
}
_AGAIN = "`hpcrun submit` freezes the environment of now"


@dataclass(frozen=True)
class FrozenEnvironment:
    """A frozen environment, as its own record and a submission's describe it."""

    digest: str
    """Names it: of all files' names, sizes and times (``copy``), or of the lock (``lock``)."""
    form: str
    """``copy``, of what the job's Python had; or ``lock``, what was built from one."""
    source: str
    """The job's Python, or the lock."""
    base: str
    """The Python that it starts, which is not in it; empty where that is in it too."""
    version: str
    """Of Python: ``3.11.2``."""
    bytes: int
    """Of the archive."""
    files: int
    moved: Mapping[str, str] = field(default_factory=dict)
    """Directory of PYTHONPATH at submission -> the path of its copy."""
    packages: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, data: Any) -> FrozenEnvironment | None:
        """Return what a file holds; None if that is no record of an environment."""
        names = {one.name for one in dataclasses.fields(cls)}
        if not isinstance(data, dict) or data.keys() != names or wrong(data, _KINDS, _KINDS):
            return None
        if not _DIGEST.fullmatch(data["digest"]) or not all(
            map(_is_inside, data["moved"].values())
        ):
            return None
        return cls(**{**data, "packages": python_packages.read(data["packages"]) or {}})

    @property
    def name(self) -> str:
        """The digest as people see it."""
        return self.digest[:12]

    def to_data(self) -> dict[str, Any]:
        return {**vars(self), "moved": dict(self.moved), "packages": dict(self.packages)}


def _is_inside(path: object) -> bool:
    return isinstance(path, str) and not path.startswith("/") and ".." not in path.split("/")


def shared_place(root: Path) -> Path:
    """Return the directory of a root's frozen environments."""
    return root / ".hpcrun" / NAME


def places(experiment: ExperimentPaths) -> tuple[Path, Path]:
    """Return the directories of frozen environments: the root's, the experiment's own."""
    return shared_place(experiment.root), experiment.directory / ".hpcrun" / NAME


def archive(directory: Path) -> Path:
    return directory / "environment.tar"


def record(directory: Path) -> Path:
    return directory / "environment.json"


def building(place: Path, digest: str) -> Path:
    """Return the directory in which an environment is made."""
    return place / f".{digest}.building"


def read_record(submission: SubmissionPaths) -> FrozenEnvironment | None:
    """Return what a submission recorded of its environment; None if that was not frozen."""
    try:
        return FrozenEnvironment.of(files.read_json(submission.submission).get(KEY))
    except (OSError, ValueError, AttributeError):
        return None


def find(experiment: ExperimentPaths, digest: str) -> Path | None:
    """Return the directory of a frozen environment of this user's; None if there is none."""
    for place in places(experiment):
        directory = place / digest
        shared_look.refresh(directory)
        try:
            parts = [directory.lstat(), archive(directory).lstat()]
        except OSError:
            continue
        kinds = stat.S_ISDIR(parts[0].st_mode) and stat.S_ISREG(parts[1].st_mode)
        if kinds and all(_is_mine(one) for one in parts):
            return directory
    return None


def _is_mine(found: os.stat_result) -> bool:
    return found.st_uid == os.geteuid() and not found.st_mode & stat.S_IWOTH


def of_submission(submission: SubmissionPaths) -> tuple[FrozenEnvironment, Path]:
    """Return a submission's environment and its archive.

    Raises HpcrunError if it was removed, is another user's, or is not what was frozen.
    """
    found = read_record(submission)
    if found is None:
        raise HpcrunError(f"{submission.submission} names no frozen environment", hint=_AGAIN)
    directory = find(submission.experiment, found.digest)
    if directory is None:
        where = places(submission.experiment)[0] / found.digest
        raise HpcrunError(f"the frozen environment is gone: {where}", hint=_AGAIN)
    if archive(directory).stat().st_size != found.bytes:
        raise HpcrunError(f"{archive(directory)} is not what was frozen: its size", hint=_AGAIN)
    return found, archive(directory)
