"""Counters of a node: processors, memory, network, fabric.

They are read from ``/proc`` and ``/sys``. Processors and memory are the job's where it has a cgroup
of its own, because the rest of a shared node belongs to others; else those of the whole node.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

from hpcrun.run.fabric import adapters, compute_ports
from hpcrun.run.node import network
from hpcrun.run.node.cgroup import JobCgroup, numbers

# The kernel counts a port's traffic in words of 32 bits.
_PORT_UNIT = 4
# Of a port: of its link, and of packets.
_ERRORS = ("link_downed", "link_error_recovery", "symbol_error", "port_rcv_errors")

Pair = tuple[float, float]


class Counters:
    """Reads this node's counters; rates are those since the last reading.

    ``interface`` is the fast one, None where that is the management interface too; ``hca`` is
    NCCL_IB_HCA, of `hpcrun.run.fabric.compute_ports`.
    """

    def __init__(self, interface: str | None, hca: str | None, root: Path = Path("/")) -> None:
        self._root = root
        self._cgroup = JobCgroup(root)
        self._processors = self._cgroup.processors()
        self._ports = _ports(hca, root / "sys")
        fast = [] if self._ports or interface is None else [interface]
        self._interfaces = {
            "network": _others(interface, root / "sys"),
            "fabric": [root / "sys/class/net" / name / "statistics" for name in fast],
        }
        self._last: dict[str, Pair | None] = {}
        self._counted: dict[Path, int | None] = {}
        self._read_at = 0.0
        self.read()

    def read(self) -> dict[str, Any]:
        """Return a line of telemetry; what cannot be read is absent."""
        now = time.monotonic()
        passed, self._read_at = now - self._read_at, now
        found: dict[str, Any] = {}
        if (share := self._busy(now)) is not None:
            found["cpu"] = round(min(100.0, max(0.0, 100 * share)), 1)
        found.update(self._memory())
        for name in ("network", "fabric"):
            before, after = self._last.get(name), self._traffic(name)
            self._last[name] = after
            if before is None or after is None or passed <= 0:
                continue
            rates = [round((new - old) / passed) for old, new in zip(before, after, strict=True)]
            # The counters of an interface or port that was reset start again at 0.
            if min(rates) >= 0:
                found[name] = rates
        if errors := self._errors():
            found["fabric_errors"] = errors
        return found

    def _errors(self) -> dict[str, dict[str, int]]:
        """Return the errors that ports have counted since the last reading, where there are any."""
        found: dict[str, dict[str, int]] = {}
        for path in self._ports:
            number, hca = path.parent.name, path.parent.parent.parent.name
            for name in _ERRORS:
                count = adapters.text(path / name)
                after = int(count) if count.isdecimal() and len(count) < 20 else None
                before, self._counted[path / name] = self._counted.get(path / name), after
                if before is not None and after is not None and after > before:
                    found.setdefault(f"{hca}:{number}", {})[name] = after - before
        return found

    def moved(self) -> dict[str, int]:
        """Return the bytes that were received and sent so far, of what is counted."""
        found = {name: self._traffic(name) for name in ("network", "fabric")}
        return {name: int(sum(pair)) for name, pair in found.items() if pair is not None}

    def _busy(self, now: float) -> float | None:
        """Return the share of the processors' time that was used since the last reading."""
        used = self._cgroup.processor_seconds()
        after = _whole_node(self._root) if used is None else (used, now * self._processors)
        before = self._last.get("cpu")
        self._last["cpu"] = after
        if before is None or after is None or after[1] <= before[1]:
            return None
        return (after[0] - before[0]) / (after[1] - before[1])

    def _memory(self) -> dict[str, int]:
        """Return bytes used, without what can be reclaimed, and bytes there are."""
        with contextlib.suppress(OSError, KeyError, ValueError):
            node = numbers(self._root / "proc/meminfo")
            total = node["MemTotal:"] * 1024
            used = total - node["MemAvailable:"] * 1024
            with contextlib.suppress(OSError, KeyError, ValueError):
                used, total = self._cgroup.memory(total)
            return {"memory": used, "memory_total": total}
        return {}

    def _traffic(self, name: str) -> Pair | None:
        """Return bytes received and sent so far; None where nothing counts them."""
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


def _whole_node(root: Path) -> Pair | None:
    """Return the busy ticks of the node's processors, and all ticks."""
    try:
        fields = (root / "proc/stat").read_text().split("\n", 1)[0].split()[1:9]
        user, nice, system, idle, waiting, *others = map(int, fields)
    except (OSError, ValueError):
        return None
    busy = user + nice + system + sum(others)
    return busy, busy + idle + waiting


def _ports(hca: str | None, sysfs: Path) -> list[Path]:
    """Return the directories of counters of the ports that a filter names."""
    names, ports = (hca or "").lstrip("=").split(","), adapters.read(sysfs, only_states=True).ports
    found = [
        sysfs / "class/infiniband" / port.hca / "ports" / str(port.number) / "counters"
        for port in compute_ports.ports_of(names, ports)
    ]
    return [path for path in found if (path / "port_rcv_data").exists()]


def _others(fast: str | None, sysfs: Path) -> list[Path]:
    """Return the statistics of all interfaces but the fabric's, so that each byte counts once.

    Members of a bond or a bridge are counted there, a VLAN with the interface below it.
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
