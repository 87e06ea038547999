"""The InfiniBand and RoCE ports of a node, from ``/sys/class/infiniband``.

Files there may be missing, hold anything, or not answer: reading is bounded, and never raises.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import threading
from collections.abc import Iterable
from pathlib import Path

from hpcrun.shared_dataclass import dataclass

# Seconds in which all files are read; bytes of each; ports, and addresses of a port.
PATIENCE = 5.0
_BYTES, _MOST_PORTS, _MOST_ADDRESSES = 4096, 128, 16
_NAME = re.compile(r"[\w.-]{1,60}", re.ASCII)
_STATE = re.compile(r"\d+: ([A-Z_]{1,20})")
# As in "400 Gb/sec (4X NDR)", "2.5 Gb/sec (1X SDR)".
_RATE = re.compile(r"(\d{1,6}(?:\.\d)?) Gb/sec(?: \((\d{1,2})X ?[A-Z0-9]{0,8}\))?", re.ASCII)
_GPU_VENDORS, _GPU_CLASSES = ("0x10de", "0x1002"), ("0x0300", "0x0302", "0x0380", "0x1200")


@dataclass(frozen=True)
class HcaPort:
    """A port of a host channel adapter.

    ``number`` counts from 1, ``rate`` is in Gb/s, ``width`` counts lanes (0 where the kernel does
    not tell), ``layer`` is ``InfiniBand`` or ``Ethernet`` (RoCE).
    """

    hca: str
    number: int
    layer: str = ""
    state: str = ""
    """``DOWN``, ``INIT``, ``ARMED``, ``ACTIVE``; empty where it could not be read."""
    phys_state: str = ""
    """``LinkUp``, ``Polling``, ``Disabled``, …"""
    rate: float = 0.0
    width: int = 0
    link: str = ""
    """Rate and width in the kernel's words: ``400 Gb/sec (4X NDR)``."""
    board: str = ""
    """The adapter's model."""
    pci: tuple[str, ...] = ()
    """The adapter's PCI function, after the bridges above it."""
    gpus: frozenset[str] = frozenset()
    """The GPUs below the same PCI switch."""
    has_roce_v2: bool = False
    interfaces: tuple[str, ...] = ()
    """The network interfaces on this port."""

    @property
    def name(self) -> str:
        """As NCCL_IB_HCA has it."""
        return f"{self.hca}:{self.number}"

    @property
    def active(self) -> bool:
        return self.state == "ACTIVE"


@dataclass(frozen=True)
class AdapterReading:
    """The ports and GPUs that a node has."""

    ports: tuple[HcaPort, ...] = ()
    gpus: frozenset[str] = frozenset()
    """All GPUs of the node, by their PCI address."""
    is_late: bool = False
    """Files did not answer in time, so that ports are missing."""


# A thread that waits for a file that does not answer; no second one waits beside it.
_stuck: threading.Thread | None = None


def read(
    sysfs: Path = Path("/sys"), *, only_states: bool = False, patience: float = PATIENCE
) -> AdapterReading:
    """Read the ports in the order of their names; with ``only_states``, only their states."""
    global _stuck
    if _stuck is not None and _stuck.is_alive():
        return AdapterReading(is_late=True)
    found: list[HcaPort] = []
    gpus: list[tuple[str, ...]] = []

    def work() -> None:
        if not only_states:
            gpus.extend(_gpus(sysfs))
        for path in _port_directories(sysfs):
            found.append(_port(path, gpus, only_states=only_states))

    thread = threading.Thread(target=work, name="adapters", daemon=True)
    thread.start()
    thread.join(patience)
    _stuck = thread if thread.is_alive() else None
    names = frozenset(path[-1] for path in gpus)
    return AdapterReading(tuple(found), names, _stuck is not None)


def text(path: Path) -> str:
    """Return the beginning of a file; empty where it cannot be read, or is none of the kernel's."""
    with contextlib.suppress(OSError, ValueError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                return os.read(descriptor, _BYTES).decode(errors="replace").strip()
        finally:
            os.close(descriptor)
    return ""


def _entries(directory: Path) -> list[Path]:
    """Return what a directory holds, by name and number; empty where it cannot be read."""
    found: list[Path] = []
    with contextlib.suppress(OSError):
        found = [path for path in directory.iterdir() if _NAME.fullmatch(path.name)]

    def order(path: Path) -> list[tuple[int, str]]:
        parts = re.findall(r"[0-9]{1,9}|[^0-9]+", path.name)
        return [(int(part), "") if part[0].isdecimal() else (-1, part) for part in parts]

    return sorted(found, key=order)


def _port_directories(sysfs: Path) -> Iterable[Path]:
    found = [
        port
        for hca in _entries(sysfs / "class/infiniband")
        for port in _entries(hca / "ports")
        if re.fullmatch(r"[1-9][0-9]{0,2}", port.name)
    ]
    return found[:_MOST_PORTS]


def _port(path: Path, gpus: Iterable[tuple[str, ...]], *, only_states: bool) -> HcaPort:
    hca, number = path.parent.parent, int(path.name)
    found = _STATE.fullmatch(text(path / "state"))
    state = found[1] if found else ""
    if only_states:
        return HcaPort(hca.name, number, state=state)
    rate = _RATE.fullmatch(text(path / "rate"))
    layer = text(path / "link_layer")
    pci = _pci(hca / "device")
    phys = re.fullmatch(r"\d+: (\w{1,30})", text(path / "phys_state"))
    # The host bridge is common to many; the port of its root below that is a switch's own.
    near = {gpu[-1] for gpu in gpus if len(pci) > 2 and len(gpu) > 2 and gpu[:2] == pci[:2]}
    addresses = [one.name for one in _entries(path / "gid_attrs/types")[:_MOST_ADDRESSES]]
    kinds = {text(path / "gid_attrs/types" / one) for one in addresses}
    own = [text(path / "gid_attrs/ndevs" / one) for one in addresses]
    below = [] if any(own) else _interfaces(hca, number)
    return HcaPort(
        hca=hca.name,
        number=number,
        layer=layer if layer in ("InfiniBand", "Ethernet") else "",
        state=state,
        phys_state=phys[1] if phys else "",
        rate=float(rate[1]) if rate else 0.0,
        width=int(rate[2] or 0) if rate else 0,
        link=rate[0] if rate else "",
        board="".join(filter(str.isprintable, text(hca / "board_id")))[:64],
        pci=pci,
        gpus=frozenset(near),
        has_roce_v2="RoCE v2" in kinds,
        interfaces=tuple(dict.fromkeys(one for one in [*own, *below] if _NAME.fullmatch(one))),
    )


def _interfaces(hca: Path, number: int) -> list[str]:
    """Return the interfaces of an adapter's PCI function that are on a port."""
    found = _entries(hca / "device/net")
    several = len(_entries(hca / "ports")) > 1
    return [one.name for one in found if not several or text(one / "dev_port") == str(number - 1)]


def _pci(device: Path) -> tuple[str, ...]:
    """Return the bridges above a device and the device, from the host bridge on."""
    with contextlib.suppress(OSError, RuntimeError):
        parts = device.resolve(strict=True).parts
        starts = [place for place, part in enumerate(parts) if re.match(r"pci[0-9a-f]{4}:", part)]
        return parts[starts[0] :] if starts else ()
    return ()


def _gpus(sysfs: Path) -> list[tuple[str, ...]]:
    found = []
    with contextlib.suppress(OSError):
        for device in sorted((sysfs / "bus/pci/devices").iterdir()):
            is_gpu = text(device / "class").startswith(_GPU_CLASSES)
            if is_gpu and text(device / "vendor") in _GPU_VENDORS and (path := _pci(device)):
                found.append(path)
    return found
