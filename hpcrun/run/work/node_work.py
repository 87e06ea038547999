"""An agent's side of the working directory: opened before its node's ranks start, closed after.

What a program writes into its node's copy of the code, which goes with the attempt, is copied. The
agent compares the copy of the code with how it was prepared: every few seconds for files that
nobody has written since the last look, and once more when no rank is left. New and changed files
are copied to the attempt's directory, from which the supervisor puts them into ``RUN/work``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import threading
import time
from pathlib import Path

from hpcrun.run.node.node_dir import NodeDir
from hpcrun.run.protocol.output import say
from hpcrun.run.work import links
from hpcrun.run.work.shared_writes import OpenFiles
from hpcrun.state import files
from hpcrun.state.layout import AttemptPaths
from hpcrun.state.node_layout import ScratchPaths
from hpcrun.state.plan import RunPlan
from hpcrun.text import listed

EVERY = 10.0
# A look takes at most this share of the time, and copies half of it.
_SHARE = 0.01
_SHOWN = 5

# Size and time of the last change, of the inode: a program cannot set that one back.
_Signature = tuple[int, int]


class NodeWork:
    """One node's part in the working directory of one attempt at a time.

    ``directory`` is the working directory, relative to the code.
    """

    def __init__(self, run: RunPlan, directory: str, node: str, node_dir: NodeDir) -> None:
        self._run, self._directory, self._node = run, directory, node
        self._node_dir = node_dir
        self._kept_files: KeptFiles | None = None
        self._open_files: OpenFiles | None = None
        # The working directory, this node's copy of the code, and its path in links to that.
        self._linked: tuple[Path, Path, Path] | None = None

    def open(self, attempt: AttemptPaths, scratch: Path, shown: Path, *, first: bool) -> None:
        """Link the run's ``work`` and this node's copy of the code to each other.

        All nodes find the code at ``shown``; the ``first`` of them links it. Raises HpcrunError or
        OSError if that cannot be.
        """
        work, code = attempt.run.work, ScratchPaths(scratch).code
        of_ranks = self._run.has_rank_directories
        if shown != code:
            self._node_dir.show(code, shown)
        if first and not of_ranks:
            links.fill(work, code, links.way(self._directory, self._run.entry), shown)
            self._linked = work, code, shown
        links.adopt(work, code, of_ranks=of_ranks)
        self._kept_files = KeptFiles(code, attempt.kept / self._node)
        self._open_files = OpenFiles(scratch, work)

    def writes(self) -> dict[str, list[int]]:
        """Return file -> ranks that were seen to write it, since the last call."""
        return {} if self._open_files is None else self._open_files.news()

    def close(self) -> list[str]:
        """Remove the links, and keep what was written in the copy of the code.

        Returns what could not be kept. Once no rank is left; again, it does nothing.
        """
        if self._linked is not None:
            work, code, shown = self._linked
            with contextlib.suppress(OSError):
                links.clear(work, code=code, only=[shown])
            self._linked = None
        kept, self._kept_files = self._kept_files, None
        self._open_files = None
        return [] if kept is None else kept.finish()


class _BeingWritten(Exception):
    """A file changed while it was copied."""


class KeptFiles:
    """The files that were written into one copy of the code in one attempt.

    ``into`` is the directory on shared storage that they are copied to.
    """

    def __init__(self, code: Path, into: Path) -> None:
        self._code, self._into = code, into
        self._kept = _look(code)
        self._last = self._kept.copy()
        self._copied: set[str] = set()
        self._failed: dict[str, str] = {}
        self._look_took = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="kept files", daemon=True)
        self._thread.start()

    def finish(self) -> list[str]:
        """Copy all that is left, once no rank writes any more.

        Returns what could not be copied, and why; it stays empty if all could be.
        """
        self._over.set()
        self._thread.join()
        self.copy(final=True)
        if self._copied:
            say(f"kept what the program wrote in its code: {listed(sorted(self._copied), _SHOWN)}")
        return [f"{name}: {why}" for name, why in self._failed.items()]

    def _work(self) -> None:
        pause = EVERY
        while not self._over.wait(pause):
            began = time.monotonic()
            self.copy(final=False)
            pause = max(EVERY, self._look_took / _SHARE, time.monotonic() - began)

    def copy(self, *, final: bool) -> None:
        """Copy new and changed files; before the end, only those that are quiet."""
        began = time.monotonic()
        try:
            found = _look(self._code)
        except OSError as error:
            say(f"{self._code} cannot be read: {error}")
            return
        self._look_took = time.monotonic() - began
        for name, signature in found.items():
            if self._kept.get(name) == signature:
                continue
            if not final and self._last.get(name) != signature:
                continue
            if self._over.is_set() and not final:
                break
            try:
                self._copy(name, None if final else signature)
            except _BeingWritten:
                continue
            except OSError as error:
                if name not in self._failed:
                    say(f"{name}, written in the code's directory, cannot be kept: {error}")
                self._failed[name] = str(error.strerror)
                if error.errno in (errno.ENOSPC, errno.EDQUOT) and not final:
                    break
            else:
                self._failed.pop(name, None)
                self._kept[name] = signature
                self._copied.add(name)
        for name in self._copied - found.keys():
            # The program has removed it itself.
            with contextlib.suppress(OSError):
                (self._into / name).unlink()
            self._copied.remove(name)
            self._kept.pop(name, None)
        self._failed = {name: why for name, why in self._failed.items() if name in found}
        self._last = found

    def _copy(self, name: str, quiet: _Signature | None) -> None:
        """Copy a file; raise _BeingWritten if it is no longer as ``quiet``, which it was."""
        source, target = self._code / name, self._into / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            with contextlib.suppress(FileNotFoundError):
                target.unlink()
            target.symlink_to(self._target(source))
            return
        descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as stream, files.replacing(target) as copy:
            shutil.copyfileobj(stream, copy, 1 << 20)
            copy.flush()
            found = os.fstat(descriptor)
            if quiet is not None and quiet != (found.st_size, found.st_ctime_ns):
                raise _BeingWritten
            os.fchmod(copy.fileno(), stat.S_IMODE(found.st_mode) & 0o777)
            os.utime(copy.fileno(), ns=(found.st_atime_ns, found.st_mtime_ns))

    def _target(self, link: Path) -> str:
        """Return where a link leads; into the copy of the code it becomes a relative one."""
        target = os.readlink(link)  # noqa: PTH115 - as it is
        if Path(target).is_relative_to(self._code):
            return os.path.relpath(target, link.parent)
        return target


def _look(code: Path) -> dict[str, _Signature]:
    """Return the files and links in a copy of the code, through no link."""
    found: dict[str, _Signature] = {}
    waiting = [str(code)]
    start = len(waiting[0]) + 1
    while waiting:
        with contextlib.suppress(FileNotFoundError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    if entry.name != links.PYCACHE:
                        waiting.append(entry.path)
                elif entry.is_symlink() or entry.is_file(follow_symlinks=False):
                    with contextlib.suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        found[entry.path[start:]] = status.st_size, status.st_ctime_ns
    return found
