"""How shared storage is looked at where another host may have changed it a moment ago.

A client of NFS believes that a name is absent, once it has looked for it, until the attributes of
its directory expire: for up to a minute after another host has made it. Opening the directory asks
the server (nfs(5), "close-to-open"; not with ``nocto``), and so does making the name. What follows
from absence follows after such a look, and names that are polled before they exist are read from
their directory (`names`), so that this host never holds their absence. docs/storage.md has the
rules; `hpcrun.state.files` opens every file by them.
"""

from __future__ import annotations

import errno
import functools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

S = TypeVar("S")
T = TypeVar("T")

# Seconds after which every client of storage that keeps nfs(5)'s default times sees a name, also
# where opening its directory asks nothing: acdirmax is 60.
SEEN_WITHIN = 75.0
# Seconds by which the clocks of two hosts may differ, and up to which slow storage looks like it.
CLOCKS, _AGREEING = 600.0, 5.0
# The first looks of many, the seconds that each waits for slow storage, looks at once then, and how
# many may be ahead of the answer that is wanted next.
_TRIED, _SLOW, _AT_ONCE, _AHEAD = 8, 0.0004, 32, 256
_LOOK = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def refresh(directory: Path | str) -> bool:
    """Have this host ask the server what a directory holds; return whether it is one.

    Where it seems absent the directories above it are asked first, whose answers may be old too.
    """
    for is_last in (False, True):
        try:
            os.close(os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        except OSError as error:
            if not is_absence(error):
                return not isinstance(error, NotADirectoryError)
            above = os.path.dirname(directory)  # noqa: PTH120 - a path of its own is slow
            if is_last or above in ("", str(directory)) or not refresh(above):
                return False
        else:
            return True
    return False


def is_absence(error: OSError) -> bool:
    """Check whether an error says that a name is not there, or not any more what it was."""
    return error.errno in (errno.ENOENT, errno.ESTALE)


def answer_of(look: Callable[[], T], directory: Path | str) -> T:
    """Return the answer of a look; where a name seems absent, that of a second look.

    Before that one this host asks the server what the directory of the name holds. Raises what the
    look raises.
    """
    try:
        return look()
    except OSError as error:
        if not is_absence(error) or not refresh(directory):
            raise
    return look()


def names(directory: Path) -> list[str]:
    """Return what a directory holds, in any order; nothing if there is none.

    Raises OSError if it cannot be read.
    """
    try:
        # There may be ten thousand of them.
        return answer_of(functools.partial(os.listdir, directory), directory.parent)
    except NotADirectoryError:
        return []
    except OSError as error:
        if not is_absence(error):
            raise
        return []


def is_there(path: Path) -> bool:
    """Check for a name, also one that this host believes to be absent."""
    return os.path.lexists(path) or (refresh(path.parent) and os.path.lexists(path))


def status(path: Path) -> os.stat_result:
    """Return what is known of a file, also of one that this host believes to be absent.

    Raises OSError if there is none.
    """
    return answer_of(path.stat, path.parent)


def is_directory(path: Path) -> bool:
    """Check for a directory, also one that this host believes to be absent."""
    return os.path.isdir(path) or (refresh(path.parent) and os.path.isdir(path))  # noqa: PTH112


def modified(path: Path) -> float:
    """Return when a file or directory was last changed, as its server says.

    Raises OSError if it cannot be opened.
    """
    return _of_server(path).st_mtime


def _of_server(path: Path) -> os.stat_result:
    descriptor = os.open(path, _LOOK)
    try:
        return os.fstat(descriptor)
    finally:
        os.close(descriptor)


def each(look: Callable[[S], T], items: Sequence[S]) -> Iterator[T]:
    """Yield what a look at each item returns, in order; several at once where the storage is slow.

    That is told by the first looks: each had to wait, and not for a processor. Raises what a look
    raises, in its turn.
    """
    if len(items) <= _TRIED:
        yield from map(look, items)
        return
    from resource import RUSAGE_THREAD, getrusage

    waited, waits = 0.0, 0
    for item in items[:_TRIED]:
        began, before = time.perf_counter(), getrusage(RUSAGE_THREAD)
        found = look(item)
        after = getrusage(RUSAGE_THREAD)
        waited += time.perf_counter() - began - (after.ru_utime - before.ru_utime)
        waits += after.ru_nvcsw > before.ru_nvcsw
        yield found
    is_slow = waits == _TRIED and waited > _SLOW * _TRIED
    yield from (_at_once if is_slow else map)(look, items[_TRIED:])


def _at_once(look: Callable[[S], T], items: Sequence[S]) -> Iterator[T]:
    """Do the same in daemon threads: whoever leaves does not wait for storage that is silent."""
    from concurrent.futures import Future  # where storage is fast nobody needs them
    from queue import SimpleQueue

    tasks: SimpleQueue[tuple[Future[T], S] | None] = SimpleQueue()
    left = threading.Event()

    def work() -> None:
        while (task := tasks.get()) is not None and not left.is_set():
            answer, item = task
            try:
                answer.set_result(look(item))
            except BaseException as error:
                answer.set_exception(error)

    threads = min(_AT_ONCE, len(items))
    for _ in range(threads):
        threading.Thread(target=work, daemon=True).start()
    # What was found waits here for its turn: not all of it.
    waiting: deque[Future[T]] = deque()
    try:
        for item in items:
            waiting.append(Future())
            tasks.put((waiting[-1], item))
            if len(waiting) == _AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        left.set()
        for _ in range(threads):
            tasks.put(None)


def mark(path: Path) -> list[int] | None:
    """Return inode, bytes, time of change (ns) and owner of a file or directory by its server.

    None if there is none. Raises OSError if it cannot be opened.
    """
    return _mark(lambda: answer_of(functools.partial(_of_server, path), path.parent))


def known_mark(path: Path) -> list[int] | None:
    """Return the same as this host knows it, which may be as late as `SEEN_WITHIN`."""
    return _mark(path.stat)


def _mark(look: Callable[[], os.stat_result]) -> list[int] | None:
    try:
        found = look()
    except OSError as error:
        if not is_absence(error):
            raise
        return None
    return [found.st_ino, found.st_size, found.st_mtime_ns, found.st_uid]


def clock_ahead(told: float, modified: float) -> float:
    """Return how far the clock of a host is ahead of the storage's; 0 of one that is about right.

    ``told`` is what it wrote into a file when the storage says that this was ``modified``.
    """
    ahead = told - modified
    return ahead if _AGREEING < abs(ahead) < CLOCKS else 0.0


def storage_time(directory: Path) -> float:
    """Return the time by the clock of the storage, from a file that is made there for that.

    Raises OSError if none can be made.
    """
    path = directory / f".{os.urandom(6).hex()}.tmp"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        return os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)
        path.unlink(missing_ok=True)
