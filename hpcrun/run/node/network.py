"""A node's network interfaces, IPv4 addresses and InfiniBand ports."""

from __future__ import annotations

import fcntl
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcrun.errors import HpcrunError

_SIOCGIFFLAGS, _SIOCGIFADDR = 0x8913, 0x8915
_IFF_RUNNING = 0x40
_ARPHRD_INFINIBAND = "32"


@dataclass(frozen=True)
class HcaPort:
    """A port of a host channel adapter, from ``/sys/class/infiniband``.

    ``number`` counts from 1, ``rate`` is in Gb/s, ``link_layer`` is ``InfiniBand`` or ``Ethernet``
    (RoCE).
    """

    hca: str
    number: int
    active: bool
    rate: float
    link_layer: str


def interfaces(sysfs: Path = Path("/sys")) -> list[str]:
    """Return the names of the network interfaces, in the order of their index."""
    base = sysfs / "class/net"
    if not base.is_dir():
        return []
    found = [(_read(path / "ifindex") or "0", path.name) for path in base.iterdir()]
    return [name for _, name in sorted(found, key=lambda item: (int(item[0]), item[1]))]


def is_infiniband(interface: str, sysfs: Path = Path("/sys")) -> bool:
    """Check whether an interface runs on an InfiniBand port (IPoIB)."""
    return _read(sysfs / "class/net" / interface / "type") == _ARPHRD_INFINIBAND


def address(interface: str) -> str | None:
    """Return the interface's first IPv4 address; None if it has none or does not exist."""
    answer = _ask(_SIOCGIFADDR, interface)
    return None if answer is None else socket.inet_ntoa(answer[20:24])


def default_interface() -> str | None:
    """Return the default route's interface, else the first with an address that is not loopback."""
    try:
        routes = Path("/proc/net/route").read_text().splitlines()[1:]
    except OSError:
        routes = []
    for route in routes:
        fields = route.split()
        if len(fields) > 1 and fields[1] == "00000000":
            return fields[0]
    return next((name for name in interfaces() if name != "lo" and address(name)), None)


def management(fabric: dict[str, Any]) -> tuple[str, str]:
    """Return the interface and address that agents and supervisor talk over.

    Raises HpcrunError, as does `fast`, if this node lacks the interface that the profile names.
    """
    if named := _named(fabric.get("management_interface"), "management_interface"):
        return named
    name = default_interface()
    found = address(name) if name else None
    return (name, found) if name and found else ("lo", "127.0.0.1")


def fast(fabric: dict[str, Any], sysfs: Path = Path("/sys")) -> tuple[str, str]:
    """Return the interface and address of the rendezvous and the gradients.

    The profile's ``fabric.fast_interface``; else the first interface of type InfiniBand that has an
    address; else the management interface.
    """
    if named := _named(fabric.get("fast_interface"), "fast_interface"):
        return named
    for name in interfaces(sysfs):
        if is_infiniband(name, sysfs) and (found := address(name)):
            return name, found
    return management(fabric)


def ports(sysfs: Path = Path("/sys")) -> list[HcaPort]:
    """Return every InfiniBand or RoCE port of this node."""
    found = []
    for path in sorted((sysfs / "class/infiniband").glob("*/ports/*")):
        found.append(
            HcaPort(
                hca=path.parent.parent.name,
                number=int(path.name),
                active=(_read(path / "state") or "").endswith("ACTIVE"),
                rate=float((_read(path / "rate") or "0").split()[0]),
                link_layer=_read(path / "link_layer") or "",
            )
        )
    return found


def hca_filter(fabric: dict[str, Any], sysfs: Path = Path("/sys")) -> str | None:
    """Return NCCL_IB_HCA in its exact-match form; None when this node has no active port.

    The profile's ``fabric.hca``; else the active InfiniBand ports of the highest rate, which leaves
    out storage and Ethernet ports.
    """
    names = list(fabric.get("hca") or [])
    if not names:
        active = [port for port in ports(sysfs) if port.active and port.link_layer == "InfiniBand"]
        best = max((port.rate for port in active), default=0.0)
        names = [f"{port.hca}:{port.number}" for port in active if port.rate == best]
    return "=" + ",".join(names) if names else None


def trouble(interface: str, hca: str | None, sysfs: Path = Path("/sys")) -> str | None:
    """Return why this node cannot send gradients; None while its links are up.

    ``interface`` is the fast one, ``hca`` the result of `usable` from when the links were up.
    """
    flags = _ask(_SIOCGIFFLAGS, interface)
    if flags is None or not struct.unpack("H", flags[16:18])[0] & _IFF_RUNNING:
        return f"{interface} has no carrier"
    if hca is None:
        return None
    down = [name for name, active in _adapters(hca, sysfs).items() if not active]
    return f"{', '.join(down)} is not active" if down else None


def usable(hca: str | None, sysfs: Path = Path("/sys")) -> str | None:
    """Return the active adapters of a filter, or all of them if none is active."""
    if hca is None:
        return None
    found = _adapters(hca, sysfs)
    return "=" + ",".join([name for name, active in found.items() if active] or found)


def _adapters(hca: str, sysfs: Path) -> dict[str, bool]:
    """Return, for each name in a filter, whether a port is active; True for an unknown name."""
    active: dict[str, bool] = {}
    for port in ports(sysfs):
        active[f"{port.hca}:{port.number}"] = port.active
        active[port.hca] = active.get(port.hca, False) or port.active
    return {name: active.get(name, True) for name in hca.lstrip("=").split(",")}


def _named(interface: str | None, key: str) -> tuple[str, str] | None:
    if not interface:
        return None
    found = address(interface)
    if found is None:
        raise HpcrunError(
            f"fabric.{key}: this node ({socket.gethostname()}) has no interface {interface!r} with "
            f"an IPv4 address; it has {', '.join(interfaces()) or 'none'}",
            hint="correct the cluster profile's fabric block, or exclude the node",
        )
    return interface, found


def _ask(question: int, interface: str) -> bytes | None:
    """Return the kernel's ``struct ifreq`` of an interface; None where it refuses."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            name = struct.pack("256s", interface.encode()[:15])
            return fcntl.ioctl(probe.fileno(), question, name)
        except OSError:
            return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
