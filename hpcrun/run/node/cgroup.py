"""How much memory is left to a process: of its node, and of the cgroups that it is in."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

_UNLIMITED = 1 << 60


def left(root: Path = Path("/")) -> int | None:
    """Bytes that can be taken before the kernel kills; None where nothing tells.

    Parameters
    ----------
    root
        Has ``proc`` and ``sys``.
    """
    found = list(_in_cgroups(root))
    with contextlib.suppress(OSError, KeyError):
        found.append(numbers(root / "proc/meminfo")["MemAvailable:"] * 1024)
    return min(found, default=None)


def _in_cgroups(root: Path) -> Iterator[int]:
    """What each of this process's memory cgroups leaves, of either version."""
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                names = "memory.max", "memory.current", ("inactive_file", "active_file")
                yield from _upwards(root / "sys/fs/cgroup", path, *names)
            elif "memory" in controllers.split(","):
                files = "total_inactive_file", "total_active_file"
                names = "memory.limit_in_bytes", "memory.usage_in_bytes", files
                yield from _upwards(root / "sys/fs/cgroup/memory", path, *names)


def _upwards(
    top: Path, path: str, limit: str, used: str, reclaimable: tuple[str, str]
) -> Iterator[int]:
    directory = top / path.strip("/")
    while directory != top.parent:
        # Without a limit the file says "max"; the topmost has none.
        with contextlib.suppress(OSError, ValueError):
            most = int((directory / limit).read_text())
            taken = int((directory / used).read_text())
            stat = numbers(directory / "memory.stat")
            if most < _UNLIMITED:
                yield most - taken + sum(stat.get(name, 0) for name in reclaimable)
        directory = directory.parent


def numbers(path: Path) -> dict[str, int]:
    """The second word of each line by its first, of files such as ``/proc/meminfo``."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1}
