"""The copy of a frozen environment on a node: its archive, unpacked, shared as copies of data are.

It is where the same archive is unpacked on every node whose temporary directory has the same path,
so that operators that were compiled for it are found again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tarfile
from collections import deque
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO

from hpcrun.errors import HpcrunError
from hpcrun.run.copies.copied_files import CopyMeter, CopySource, CopyStopped, SourceFile
from hpcrun.run.copies.shared_copy import SharedCopy
from hpcrun.run.protocol.output import say
from hpcrun.state import files
from hpcrun.state.environment.environment_names import PYTHON
from hpcrun.state.layout import SubmissionPaths
from hpcrun.state.plan import RunPlan

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

    from hpcrun.state.environment.frozen_environment import FrozenEnvironment

NAME = "environment"
# Of the archive: what is read at once, files that are written by one of the threads, and how many.
_PART, _CHUNK = 1 << 22, 1 << 20
_THREADS, _AHEAD = 4, 64


class EnvironmentCopy(SharedCopy):
    """A hold on a node's copy of an environment.

    ``archive`` is on shared storage, ``sent`` where the node may have it already.
    """

    def __init__(
        self,
        base: Path,
        environment: FrozenEnvironment,
        archive: Path,
        sent: Path | None = None,
    ) -> None:
        self._archive, self._sent = archive, sent
        self.trains = {"torch", "deepspeed"} <= environment.packages.keys()
        """It has what operators are compiled for."""
        self._environment = environment
        self.bytes, self.files = environment.bytes, environment.files
        # Its name says what is in it, whatever the time of its file.
        source = CopySource(NAME, str(archive))
        super().__init__(base, source, [SourceFile("", environment.bytes, 0)])

    @classmethod
    def of_run(
        cls, base: Path, submission: SubmissionPaths, run: RunPlan, sent: Path
    ) -> EnvironmentCopy | None:
        """Return the copy that a run is to have on this node; None if it has no frozen environment.

        Raises HpcrunError if that is gone.
        """
        if not run.environment.is_frozen:
            return None
        from hpcrun.state.environment.frozen_environment import of_submission

        return cls(base, *of_submission(submission), sent)

    @property
    def installation(self) -> tuple[str, ...]:
        """Return what the operators depend on that are compiled for this copy."""
        return (self._environment.digest, str(self.path))

    @property
    def python(self) -> Path:
        """Where its Python is."""
        return self.path / PYTHON

    def _missing(self) -> list[SourceFile]:
        """Nothing is, once it is complete; what ranks add to it is theirs."""
        return [] if self._paths.complete.exists() else list(self._files)

    def remove_sent(self) -> None:
        """Remove the archive that was sent to this node."""
        if self._sent is not None:
            with contextlib.suppress(OSError):
                self._sent.unlink()

    def _fill(self, lacking: list[SourceFile], meter: CopyMeter) -> None:
        if self._sent is not None and os.path.lexists(self._sent):
            before = meter.done, meter.copied
            try:
                self._unpack(self._sent, meter)
                return
            except CopyStopped:
                raise
            except (HpcrunError, OSError) as error:
                say(f"the environment is read from shared storage: what was sent failed: {error}")
                meter.done, meter.copied = before
                self.remove_sent()
        self._unpack(self._archive, meter)

    def _unpack(self, archive: Path, meter: CopyMeter) -> None:
        # What a kill, or another archive, has left.
        shutil.rmtree(self.path, ignore_errors=True)
        try:
            with files.open_stream(archive) as stream:
                found = os.fstat(stream.fileno())
                if found.st_uid != os.geteuid() or found.st_size != self.bytes:
                    raise HpcrunError(f"{archive} is not what was frozen")
                before = meter.done
                unpack(stream, self.path, meter)
                # What it has beside the files' bytes.
                meter.add(max(0, self.bytes - (meter.done - before)))
        except (tarfile.TarError, EOFError, ValueError) as error:
            raise HpcrunError(f"{archive} cannot be unpacked: {error}") from error


def unpack(stream: BinaryIO, target: Path, meter: CopyMeter) -> None:
    """Unpack an archive of `hpcrun.submission.environment` into a directory that is new.

    Several threads read ahead, and several write: shared storage answers late, and small files cost
    a disk more than their bytes.
    """
    from concurrent.futures import ThreadPoolExecutor

    made: set[str] = set()
    target.mkdir(parents=True)
    with ThreadPoolExecutor(_THREADS) as readers, ThreadPoolExecutor(_THREADS) as writers:
        written: deque[Future[None]] = deque()
        ahead: Any = _ReadAhead(stream.fileno(), readers)
        try:
            with tarfile.open(fileobj=ahead, mode="r|", bufsize=_CHUNK) as tar:
                for member in tar:
                    place = _place(target, member, made)
                    if member.issym():
                        Path(place).symlink_to(member.linkname)
                        continue
                    source = tar.extractfile(member)
                    assert source is not None
                    if member.size > _CHUNK:
                        _write_large(source, member, place, meter)
                        continue
                    content = source.read()
                    if len(content) != member.size:
                        raise ValueError(f"{member.name!r} is cut short")
                    meter.add(len(content))
                    written.append(writers.submit(_write, place, content, member))
                    if len(written) > _AHEAD:
                        written.popleft().result()
            for one in written:
                one.result()
        finally:
            ahead.close()
            for one in written:
                one.cancel()


class _ReadAhead:
    """A file that is read in large parts, several at a time, and passed on in order."""

    def __init__(self, descriptor: int, pool: ThreadPoolExecutor) -> None:
        self._descriptor, self._pool, self._next = descriptor, pool, 0
        self._parts: deque[Future[bytes]] = deque()
        self._part, self._used = b"", 0

    def read(self, size: int) -> bytes:
        while len(self._parts) <= _THREADS:
            place, self._next = self._next, self._next + _PART
            self._parts.append(self._pool.submit(_read, self._descriptor, place))
        if self._used == len(self._part):
            self._part, self._used = self._parts.popleft().result(), 0
        found = self._part[self._used : self._used + size]
        self._used += len(found)
        return found

    def close(self) -> None:
        for one in self._parts:
            one.cancel()


def _read(descriptor: int, place: int) -> bytes:
    """Read a part; storage may give less of it than it has."""
    parts: list[bytes] = []
    left = _PART
    while left and (part := os.pread(descriptor, left, place)):
        parts.append(part)
        place, left = place + len(part), left - len(part)
    return b"".join(parts)


def _place(target: Path, member: tarfile.TarInfo, made: set[str]) -> str:
    """Return where a file or link of the archive goes, with the directory that it lies in."""
    name = member.name
    if name.startswith("/") or ".." in name.split("/"):
        raise ValueError(f"{name!r} would be written elsewhere")
    if not (member.issym() or member.isreg()):
        raise ValueError(f"{name!r} is neither a file nor a link")
    above, _, _ = name.rpartition("/")
    if above not in made:
        Path(target, above).mkdir(parents=True, exist_ok=True)
        made.add(above)
    return f"{target}/{name}"


def _open_new(place: str, member: tarfile.TarInfo) -> int:
    mode = 0o400 | member.mode & 0o100
    return os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)


def _write(place: str, content: bytes, member: tarfile.TarInfo) -> None:
    with open(_open_new(place, member), "wb", buffering=0) as writer:
        part = memoryview(content)
        while part:
            part = part[writer.write(part) :]
        # Python compares it with that in its compiled files.
        os.utime(writer.fileno(), (member.mtime, member.mtime))


def _write_large(source: IO[bytes], member: tarfile.TarInfo, place: str, meter: CopyMeter) -> None:
    with open(_open_new(place, member), "wb") as writer:
        left = member.size
        while left and (part := source.read(min(left, _PART))):
            writer.write(part)
            left -= len(part)
            meter.add(len(part))
        if left:
            raise ValueError(f"{member.name!r} is cut short")
        writer.flush()
        os.utime(writer.fileno(), (member.mtime, member.mtime))
