"""The files of one source, copied to a directory of the node and compared with their source."""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections.abc import Collection, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path

from hpcrun.errors import HpcrunError
from hpcrun.state.staged_sources import SourceFile, StagedSource

_CHUNK = 1 << 22
_THREADS = 4


class SourceChanged(HpcrunError):
    """A file is not the one that was listed."""


class StagingStopped(HpcrunError):
    """The attempt that wanted the copy is over."""


class CopyMeter:
    """The bytes of a node's copies, counted by several threads; ``stop`` ends them."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.total = self.done = self.copied = 0
        self._lock = threading.Lock()

    def add(self, count: int, *, copied: bool = True) -> None:
        """Count bytes that are there now; raise StagingStopped if nobody wants more of them."""
        with self._lock:
            self.done += count
            self.copied += count if copied else 0
        if self.stop.is_set():
            raise StagingStopped("staging was stopped")


def missing(files: Collection[SourceFile], target: Path) -> list[SourceFile]:
    """Return the files whose copies are not there, or have another size or time."""
    return [file for file in files if not _is_copy(file, _place(target, file))]


def copy(
    source: StagedSource, files: Collection[SourceFile], target: Path, meter: CopyMeter
) -> None:
    """Copy files to ``target``, several at a time; each is the user's to read, and no more.

    Raises
    ------
    SourceChanged
        A file is another one than was listed, or changed while it was read.
    OSError
        The disk is full, or something could not be read or written.
    """
    for directory in sorted({_place(target, file).parent for file in files}):
        directory.mkdir(parents=True, exist_ok=True)
    # Large ones first, so that the last of them does not run alone.
    queue = iter(sorted(files, key=lambda file: -file.size))
    lock = threading.Lock()

    def work() -> None:
        for file in _shared(queue, lock):
            _copy_file(source, file, _place(target, file), meter)

    with ThreadPoolExecutor(_THREADS) as pool:
        workers = [pool.submit(work) for _ in range(min(_THREADS, len(files)))]
        wait(workers, return_when=FIRST_EXCEPTION)
        failed = [one for one in workers if one.done() and one.exception()]
        if failed:
            # The others stop at their next file.
            with lock:
                for _ in queue:
                    pass
    for one in failed or workers:
        one.result()


def _shared(queue: Iterator[SourceFile], lock: threading.Lock) -> Iterator[SourceFile]:
    """Yield the files that no other thread has taken."""
    while True:
        with lock:
            file = next(queue, None)
        if file is None:
            return
        yield file


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


def _copy_file(source: StagedSource, file: SourceFile, place: Path, meter: CopyMeter) -> None:
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
