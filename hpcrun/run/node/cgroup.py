"""Memory and processors of this process's cgroups, version 1 or 2."""

from __future__ import annotations

import contextlib
import operator
import os
import re
from itertools import accumulate
from pathlib import Path, PurePath
from typing import NamedTuple

from hpcrun.slurm.hostlist import parse_ranges

ROOT = Path("/")
# Controller ("" is version 2) -> the files of the limit and of the usage, and the prefix in
# memory.stat.
_MEMORY = {
    "": ("memory.max", "memory.current", ""),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
}
# Version 1 writes a number beyond this where there is no limit.
_UNLIMITED = 1 << 60
_JOB = re.compile(r".*/job_\d+(?=/|$)")
_STEP = re.compile(r".*/job_\d+/step_[^/]+(?=/|$)")
# The variable of the processes of a run that shares its job: their step is all that it has.
HAS_STEP = "HPCRUN_SEAT"


class _Memory(NamedTuple):
    """Bytes of one cgroup; the page cache (``…_file``) can be reclaimed."""

    used: int
    limit: int | None
    inactive_file: int
    active_file: int


def memory_left(root: Path = ROOT) -> int | None:
    """Return how many bytes this process can take before the kernel kills; None if unknown.

    The least of what its cgroups and their parents leave, and of what the node has available. In
    this module, ``root`` is the directory that holds ``proc`` and ``sys``.
    """
    found = []
    for controller, path in _own(root).items():
        if controller not in _MEMORY:
            continue
        top = root / "sys/fs/cgroup" / controller
        for directory in accumulate(PurePath(path.strip("/")).parts, operator.truediv, initial=top):
            with contextlib.suppress(OSError, ValueError):
                memory = _memory(directory, controller)
                if memory.limit is not None:
                    reclaimable = memory.inactive_file + memory.active_file
                    found.append(memory.limit - memory.used + reclaimable)
    with contextlib.suppress(OSError, KeyError):
        found.append(numbers(root / "proc/meminfo")["MemAvailable:"] * 1024)
    return min(found, default=None)


def signals_only_tasks(root: Path = ROOT) -> bool:
    """Check whether Slurm's signals reach the step's tasks and nothing that these have started.

    So ``proctrack/cgroup`` does it, but for SIGKILL; other plug-ins signal every process.
    """
    own = _own(root)
    return any("/step_" in own.get(controller, "") for controller in ("freezer", ""))


def kills_for_memory(root: Path = ROOT) -> int:
    """Return how many processes of this one's step the kernel has killed for memory; 0 if unknown.

    Version 1 counts each where it was, version 2 above it too.
    """
    own, count = _own(root), 0
    for controller, name in (("memory", "memory.oom_control"), ("", "memory.events")):
        path = own.get(controller, "")
        if (step := _STEP.match(path)) is None:
            continue
        top = root / "sys/fs/cgroup" / controller / step[0].strip("/")
        below = PurePath(path).relative_to(step[0]).parts if controller else ()
        for directory in accumulate(below, operator.truediv, initial=top):
            with contextlib.suppress(OSError, ValueError):
                count += numbers(directory / name).get("oom_kill", 0)
    return count


class JobCgroup:
    """A Slurm job's share of its node, where the job has a cgroup of its own.

    Of a run that shares its job, that of its step.
    """

    def __init__(self, root: Path = ROOT) -> None:
        own = _STEP if HAS_STEP in os.environ else _JOB
        self._directories = {
            controller: root / "sys/fs/cgroup" / controller / job[0].strip("/")
            for controller, path in _own(root).items()
            if (job := own.match(path))
        }
        # Beside version 1, version 2 is mounted elsewhere and counts nothing.
        if len(self._directories) > 1:
            self._directories.pop("", None)
        self._is_v2 = "" in self._directories

    def processor_seconds(self) -> float | None:
        """Return the processor time that the job has used on this node; None if unknown."""
        with contextlib.suppress(OSError, KeyError, ValueError):
            if self._is_v2:
                return numbers(self._directories[""] / "cpu.stat")["usage_usec"] / 1e6
            return int((self._directories["cpuacct"] / "cpuacct.usage").read_text()) / 1e9
        return None

    def processors(self) -> int:
        """Return how many processors the job has on this node; all of them if unknown."""
        controller, name = ("", ".effective") if self._is_v2 else ("cpuset", "")
        with contextlib.suppress(OSError, KeyError, ValueError):
            if text := (self._directories[controller] / f"cpuset.cpus{name}").read_text().strip():
                return sum(map(len, parse_ranges(text)))
        return os.cpu_count() or 1

    def memory(self, total: int) -> tuple[int, int]:
        """Return bytes used, without inactive page cache, and the limit, at most ``total``.

        Raises OSError, KeyError or ValueError if the job has no such cgroup.
        """
        controller = "" if self._is_v2 else "memory"
        memory = _memory(self._directories[controller], controller)
        limit = total if memory.limit is None else min(total, memory.limit)
        return max(0, memory.used - memory.inactive_file), limit


def numbers(path: Path) -> dict[str, int]:
    """Return the second word of each line by its first, of files such as ``/proc/meminfo``."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1}


def _own(root: Path) -> dict[str, str]:
    """Controller -> the path of this process's cgroup below its mount."""
    found = {}
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            found.update(dict.fromkeys(controllers.split(","), path))
    return found


def _memory(directory: Path, controller: str) -> _Memory:
    limit_file, used_file, prefix = _MEMORY[controller]
    text = (directory / limit_file).read_text().strip()
    limit = _UNLIMITED if text == "max" else int(text)
    used = int((directory / used_file).read_text())
    stat = numbers(directory / "memory.stat")
    cached = (stat.get(f"{prefix}{kind}_file", 0) for kind in ("inactive", "active"))
    return _Memory(used, limit if limit < _UNLIMITED else None, *cached)
