"""The files of one source, copied to a directory of the node and compared with their source."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import threading
from collections import deque
from collections.abc import Collection, Iterator
from pathlib import Path

from hpcrun.errors import HpcrunError, UsageError
from hpcrun.shared_dataclass import dataclass
from hpcrun.text import one_line

_CHUNK = 1 << 22
_THREADS = 4


@dataclass(frozen=True)
class SourceFile:
    """A file as it was listed."""

    name: str
    """Relative to its source; empty where that is the file."""
    size: int
    mtime_ns: int


class SourceProblem(UsageError):
    """A path that cannot be copied."""


@dataclass(frozen=True)
class CopySource:
    """A file or directory of shared storage, and what it is called on the nodes."""

    name: str
    path: str

    def files(self) -> list[SourceFile]:
        """List all files, those behind symbolic links included, in an order of their names.

        Raises SourceProblem if something in it cannot be read, is no file, or links in a circle.
        """
        try:
            return sorted(_walk(self.path, "", ()), key=lambda file: file.name)
        except OSError as error:
            where = one_line(str(error.filename or self.path))
            raise SourceProblem(
                f"{where} cannot be read: {error.strerror}",
                hint="correct its permissions, or leave it out",
            ) from error


def _walk(path: str, name: str, above: tuple[tuple[int, int], ...]) -> Iterator[SourceFile]:
    """Yield the files at and below a path; ``above`` are the directories that it lies in."""
    found = os.stat(path)
    if stat.S_ISREG(found.st_mode):
        yield SourceFile(name, found.st_size, found.st_mtime_ns)
        return
    if not stat.S_ISDIR(found.st_mode):
        raise SourceProblem(
            f"{one_line(path)} is neither a file nor a directory",
            hint="leave it out: pipes, sockets and devices cannot be copied",
        )
    own = (found.st_dev, found.st_ino)
    if own in above:
        raise SourceProblem(f"{one_line(path)} is a link to a directory above it")
    with os.scandir(path) as entries:
        names = [entry.name for entry in entries]
    for each in names:
        yield from _walk(f"{path}/{each}", f"{name}/{each}" if name else each, (*above, own))


def key(source: CopySource, files: Collection[SourceFile]) -> str:
    """Return a digest of a source's place and of its files' names, sizes and times."""
    found = hashlib.sha256(os.path.realpath(source.path).encode(errors="surrogateescape"))
    for file in files:
        line = f"\0{file.name}\0{file.size}\0{file.mtime_ns}"
        found.update(line.encode(errors="surrogateescape"))
    return found.hexdigest()[:20]


class SourceChanged(HpcrunError):
    """A file is not the one that was listed."""


class CopyStopped(HpcrunError):
    """The attempt that wanted the copy is over."""


class CopyMeter:
    """The bytes of a node's copies, counted by several threads; ``stop`` ends them."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.total = self.done = self.copied = 0
        self._lock = threading.Lock()

    def add(self, count: int, *, copied: bool = True) -> None:
        """Count bytes that are there now; raise CopyStopped if nobody wants more of them."""
        with self._lock:
            self.done += count
            self.copied += count if copied else 0
        if self.stop.is_set():
            raise CopyStopped("the copy was stopped")


def missing(files: Collection[SourceFile], target: Path) -> list[SourceFile]:
    """Return the files whose copies are not there, or have another size or time."""
    return [file for file in files if not _is_copy(file, _place(target, file))]


def copy(source: CopySource, files: Collection[SourceFile], target: Path, meter: CopyMeter) -> None:
    """Copy files to ``target``, several at a time; each is the user's to read, and no more.

    Raises
    ------
    SourceChanged
        A file is another one than was listed, or changed while it was read.
    OSError
        The disk is full, or something could not be read or written.
    """
    from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

    for directory in sorted({_place(target, file).parent for file in files}):
        directory.mkdir(parents=True, exist_ok=True)
    # Large ones first, so that the last of them does not run alone.
    queue = deque(sorted(files, key=lambda file: -file.size))

    def work() -> None:
        while True:
            try:
                file = queue.popleft()
            except IndexError:
                return
            _copy_file(source, file, _place(target, file), meter)

    with ThreadPoolExecutor(_THREADS) as pool:
        workers = [pool.submit(work) for _ in range(min(_THREADS, len(files)))]
        wait(workers, return_when=FIRST_EXCEPTION)
        failed = [one for one in workers if one.done() and one.exception()]
        if failed:
            # The others stop at their next file.
            queue.clear()
    for one in failed or workers:
        one.result()


def _place(target: Path, file: SourceFile) -> Path:
    return target / file.name if file.name else target


def _is_copy(file: SourceFile, place: Path) -> bool:
    try:
        found = place.lstat()
    except OSError:
        return False
    # Not every file system keeps the parts of a second; what is not complete can be written.
    is_complete = stat.S_ISREG(found.st_mode) and not found.st_mode & stat.S_IWUSR
    seconds = file.mtime_ns // 1_000_000_000
    return is_complete and found.st_size == file.size and int(found.st_mtime) == seconds


def _copy_file(source: CopySource, file: SourceFile, place: Path, meter: CopyMeter) -> None:
    origin = Path(source.path, file.name) if file.name else Path(source.path)
    with contextlib.suppress(FileNotFoundError):
        place.unlink()
    buffer = memoryview(bytearray(_CHUNK))
    with open(origin, "rb", buffering=0) as reader, open(place, "xb", buffering=0) as writer:
        if not _is_listed(os.fstat(reader.fileno()), file):
            raise SourceChanged(f"{origin} is another file than a moment ago")
        left = file.size
        while left and (count := reader.readinto(buffer[: min(left, _CHUNK)])):
            part = buffer[:count]
            while part:
                part = part[writer.write(part) :]
            left -= count
            meter.add(count)
        found = os.fstat(reader.fileno())
        if left or not _is_listed(found, file):
            raise SourceChanged(f"{origin} changed while it was copied")
        os.utime(writer.fileno(), ns=(file.mtime_ns, file.mtime_ns))
        # The last thing: what was torn by a kill is no copy.
        os.fchmod(writer.fileno(), 0o400 | found.st_mode & 0o100)


def _is_listed(found: os.stat_result, file: SourceFile) -> bool:
    return (found.st_size, found.st_mtime_ns) == (file.size, file.mtime_ns)
