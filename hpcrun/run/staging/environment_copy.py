"""The copy of a frozen environment on a node: its archive, unpacked, shared as copies of data are.

It is where the same archive is unpacked on every node whose temporary directory has the same path,
so that operators that were compiled for it are found again.
"""

from __future__ import annotations

import os
import shutil
import tarfile
import time
from pathlib import Path

from hpcrun.errors import HpcrunError
from hpcrun.run.staging.copied_files import CopyMeter
from hpcrun.run.staging.shared_copy import SharedCopy
from hpcrun.state import files
from hpcrun.state.environment.environment_names import PYTHON
from hpcrun.state.environment.frozen_environment import FrozenEnvironment, of_submission
from hpcrun.state.layout import SubmissionPaths
from hpcrun.state.plan import RunPlan
from hpcrun.state.staging.staged_sources import SourceFile, StagedSource

NAME = "environment"
_CHUNK = 1 << 20


class EnvironmentCopy(SharedCopy):
    """A hold on a node's copy of an environment."""

    def __init__(self, base: Path, environment: FrozenEnvironment, archive: Path) -> None:
        self._archive = archive
        self.trains = {"torch", "deepspeed"} <= environment.packages.keys()
        """It has what operators are compiled for."""
        self._environment = environment
        self.bytes, self.files = environment.bytes, environment.files
        # Its name says what is in it, whatever the time of its file.
        source = StagedSource(NAME, str(archive))
        super().__init__(base, source, [SourceFile("", environment.bytes, 0)])

    @classmethod
    def of_run(
        cls, base: Path, submission: SubmissionPaths, run: RunPlan
    ) -> EnvironmentCopy | None:
        """Return the copy that a run is to have on this node; None if it has no frozen environment.

        Raises
        ------
        HpcrunError
            It is gone.
        """
        if not run.environment.is_frozen:
            return None
        return cls(base, *of_submission(submission))

    @property
    def installation(self) -> tuple[str, ...]:
        """What operators depend on that are compiled for it."""
        return (self._environment.digest, str(self.path))

    @property
    def python(self) -> Path:
        """Where its Python is."""
        return self.path / PYTHON

    def _missing(self) -> list[SourceFile]:
        """Nothing is, once it is complete; what ranks add to it is theirs."""
        return [] if self._paths.complete.exists() else list(self._files)

    def _fill(self, lacking: list[SourceFile], meter: CopyMeter) -> None:
        # What a kill has left of an earlier one.
        shutil.rmtree(self.path, ignore_errors=True)
        try:
            with files.open_stream(self._archive) as stream:
                found = os.fstat(stream.fileno())
                if found.st_uid != os.geteuid() or found.st_size != self.bytes:
                    raise HpcrunError(f"{self._archive} is not what was frozen")
                before = meter.done
                unpack(stream, self.path, meter)
                # What it has beside the files' bytes.
                meter.add(max(0, self.bytes - (meter.done - before)))
        except (tarfile.TarError, EOFError, ValueError) as error:
            raise HpcrunError(f"{self._archive} cannot be unpacked: {error}") from error


def unpack(stream: object, target: Path, meter: CopyMeter) -> None:
    """Unpack an archive of `hpcrun.submission.environment` into a directory that is new."""
    made: set[str] = set()
    target.mkdir(parents=True)
    with tarfile.open(fileobj=stream, mode="r|", bufsize=_CHUNK) as tar:  # type: ignore[call-overload]
        for member in tar:
            name = member.name
            if name.startswith("/") or ".." in name.split("/"):
                raise ValueError(f"{name!r} would be written elsewhere")
            above, _, _ = name.rpartition("/")
            if above not in made:
                Path(target, above).mkdir(parents=True, exist_ok=True)
                made.add(above)
            place = f"{target}/{name}"
            if member.issym():
                Path(place).symlink_to(member.linkname)
            elif member.isreg():
                _write(tar, member, place, meter)
            else:
                raise ValueError(f"{name!r} is neither a file nor a link")


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, place: str, meter: CopyMeter) -> None:
    source = tar.extractfile(member)
    assert source is not None
    descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "wb", buffering=0) as writer:
        left = member.size
        while left and (part := source.read(min(left, _CHUNK))):
            writer.write(part)
            left -= len(part)
            meter.add(len(part))
        if left:
            raise ValueError(f"{member.name!r} is cut short")
        os.fchmod(writer.fileno(), 0o400 | member.mode & 0o100)
        # Python compares it with that in its compiled files.
        os.utime(writer.fileno(), (time.time(), member.mtime))
