"""What a node does, from ``/proc`` and ``/sys``: processors, memory, network, fabric.

Of processors and memory, what the job has of them where its own cgroup tells: on a shared node the
rest is other people's. Else the node as a whole.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path
from typing import Any

from hpcrun.run.node import network
from hpcrun.run.node.cgroup import numbers

_JOB = re.compile(r".*/job_\d+(?=/|$)")
# The kernel's units: counters of ports are in words of 32 bits, times of version 1 in nanoseconds.
_PORT_UNIT = 4

Pair = tuple[float, float]


class Counters:
    """Reads the figures of this node; rates are those since the last reading.

    Parameters
    ----------
    interface
        The fast interface, where it is not that of management too; else None.
    hca
        The adapters that NCCL was given, as `hpcrun.run.node.network.hca_filter` says; None
        without.
    root
        Has ``proc`` and ``sys``.
    """

    def __init__(self, interface: str | None, hca: str | None, root: Path = Path("/")) -> None:
        self._root = root
        self._cgroups = _job_cgroups(root)
        self._processors = _processors(self._cgroups, root)
        self._ports = _ports(hca, root / "sys")
        fast = [] if self._ports or interface is None else [interface]
        self._interfaces = {
            "network": _others(interface, root / "sys"),
            "fabric": [root / "sys/class/net" / name / "statistics" for name in fast],
        }
        self._last: dict[str, Pair] = {}
        self._read_at = 0.0
        self.read()

    def read(self) -> dict[str, Any]:
        """The figures of now, as a line of telemetry has them; what cannot be read is absent."""
        now = time.monotonic()
        passed, self._read_at = now - self._read_at, now
        found: dict[str, Any] = {}
        if (share := self._busy(now)) is not None:
            found["cpu"] = round(min(100.0, max(0.0, 100 * share)), 1)
        found.update(self._memory())
        for name in ("network", "fabric"):
            before, after = self._last.get(name), self._traffic(name)
            self._keep(name, after)
            if before is None or after is None or passed <= 0:
                continue
            rates = [round((new - old) / passed) for old, new in zip(before, after, strict=True)]
            # An interface or port that was reset counts from nought again.
            if min(rates) >= 0:
                found[name] = rates
        return found

    def _keep(self, name: str, value: Pair | None) -> None:
        if value is None:
            self._last.pop(name, None)
        else:
            self._last[name] = value

    def _busy(self, now: float) -> float | None:
        """The share of the processors' time since the last reading that was used."""
        used = self._used()
        after = _whole_node(self._root) if used is None else (used, now * self._processors)
        before = self._last.get("cpu")
        self._keep("cpu", after)
        if before is None or after is None or after[1] <= before[1]:
            return None
        return (after[0] - before[0]) / (after[1] - before[1])

    def _used(self) -> float | None:
        """Processor seconds that the job has used on this node."""
        with contextlib.suppress(OSError, KeyError, ValueError):
            if "" in self._cgroups:
                return numbers(self._cgroups[""] / "cpu.stat")["usage_usec"] / 1e6
            return int((self._cgroups["cpuacct"] / "cpuacct.usage").read_text()) / 1e9
        return None

    def _memory(self) -> dict[str, int]:
        """Bytes used, without what the kernel takes back when it must, and bytes there are."""
        with contextlib.suppress(OSError, KeyError, ValueError):
            node = numbers(self._root / "proc/meminfo")
            total = node["MemTotal:"] * 1024
            used = total - node["MemAvailable:"] * 1024
            with contextlib.suppress(OSError, KeyError, ValueError):
                used, total = self._memory_of_job(total)
            return {"memory": used, "memory_total": total}
        return {}

    def _memory_of_job(self, total: int) -> tuple[int, int]:
        if "" in self._cgroups:
            directory, names = self._cgroups[""], ("memory.current", "memory.max", "inactive_file")
        else:
            directory = self._cgroups["memory"]
            names = ("memory.usage_in_bytes", "memory.limit_in_bytes", "total_inactive_file")
        used = int((directory / names[0]).read_text())
        limit = (directory / names[1]).read_text().strip()
        cached = numbers(directory / "memory.stat").get(names[2], 0)
        return max(0, used - cached), min(total, int(limit)) if limit != "max" else total

    def _traffic(self, name: str) -> Pair | None:
        """Bytes received and sent so far; None where there is nothing to count."""
        counters = [(path / "rx_bytes", path / "tx_bytes", 1) for path in self._interfaces[name]]
        if name == "fabric":
            counters += [
                (path / "port_rcv_data", path / "port_xmit_data", _PORT_UNIT)
                for path in self._ports
            ]
        received = sent = 0
        try:
            for receiving, sending, unit in counters:
                received += unit * int(receiving.read_text())
                sent += unit * int(sending.read_text())
        except (OSError, ValueError):
            return None
        return (received, sent) if counters else None


def _job_cgroups(root: Path) -> dict[str, Path]:
    """Controller -> the directory of this job's cgroup; ``""`` is that of version 2."""
    found = {}
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if job := _JOB.match(path):
                for controller in controllers.split(","):
                    found[controller] = root / "sys/fs/cgroup" / controller / job[0].strip("/")
    # Beside version 1, version 2 is mounted elsewhere and counts nothing.
    if len(found) > 1:
        found.pop("", None)
    return found


def _processors(cgroups: dict[str, Path], root: Path) -> int:
    """How many the job has on this node; all of them where nothing says less."""
    name = "cpuset.cpus.effective" if "" in cgroups else "cpuset.cpus"
    with contextlib.suppress(OSError, KeyError, ValueError):
        text = (cgroups["" if "" in cgroups else "cpuset"] / name).read_text().strip()
        if text:
            return sum(_length(part) for part in text.split(","))
    return os.cpu_count() or 1


def _length(part: str) -> int:
    first, _, last = part.partition("-")
    return int(last or first) - int(first) + 1


def _whole_node(root: Path) -> Pair | None:
    """Ticks in which the node's processors worked, and ticks in all."""
    try:
        fields = (root / "proc/stat").read_text().split("\n", 1)[0].split()[1:9]
        user, nice, system, idle, waiting, *others = map(int, fields)
    except (OSError, ValueError):
        return None
    busy = user + nice + system + sum(others)
    return busy, busy + idle + waiting


def _ports(hca: str | None, sysfs: Path) -> list[Path]:
    """The counters of the ports in a filter."""
    names = set((hca or "").lstrip("=").split(","))
    found = []
    for port in network.ports(sysfs):
        if names & {port.hca, f"{port.hca}:{port.number}"}:
            base = sysfs / "class/infiniband" / port.hca / "ports" / str(port.number)
            found.append(base / "counters")
    return [path for path in found if (path / "port_rcv_data").exists()]


def _others(fast: str | None, sysfs: Path) -> list[Path]:
    """The statistics of the interfaces beside the fabric's, each byte counted once.

    What belongs to a bond or a bridge is counted there, a VLAN with the interface it stands on.
    """
    base = sysfs / "class/net"
    free = [
        name
        for name in network.interfaces(sysfs)
        if name not in ("lo", fast)
        and not (base / name / "master").exists()
        and not network.is_infiniband(name, sysfs)
    ]
    return [
        base / name / "statistics"
        for name in free
        if not any((base / name / f"lower_{other}").exists() for other in free)
    ]
