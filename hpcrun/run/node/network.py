"""A node's network interfaces and addresses, and whether its links are up."""

from __future__ import annotations

import fcntl
import re
import socket
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcrun.errors import HpcrunError
from hpcrun.run.fabric import adapters, compute_ports
from hpcrun.run.protocol.launch import Interface
from hpcrun.text import listed

_SIOCGIFFLAGS, _SIOCGIFADDR = 0x8913, 0x8915
_IFF_RUNNING = 0x40
# The scope of an address that is not of a link or of this machine alone; flags of one that is
# temporary, or not to be used for something new: deprecated, tentative, failed.
_GLOBAL, _PASSING = "00", 0x01 | 0x20 | 0x40 | 0x08
_ARPHRD_INFINIBAND = "32"
# The kernel's and systemd's names of IPoIB interfaces (ib0, ibp65s0, ibs1), and Slingshot's.
_FAST_NAME = re.compile(r"ib(?:\d|[ps]\d)|hsn\d")
# Interfaces that reach no other node: of containers, virtual machines and tunnels.
_INSIDE = re.compile(r"(?:lo$|docker|podman|br-|virbr|cni|flannel|cali|lxc|lxd|vnet|tun|tap|wg)")


def interfaces(sysfs: Path = Path("/sys")) -> list[str]:
    """Return the names of the network interfaces, in the order of their index."""
    base = sysfs / "class/net"
    if not base.is_dir():
        return []
    found = [(adapters.text(path / "ifindex") or "0", path.name) for path in base.iterdir()]
    return [name for _, name in sorted(found, key=lambda item: (int(item[0]), item[1]))]


def is_infiniband(interface: str, sysfs: Path = Path("/sys")) -> bool:
    """Check whether an interface runs on an InfiniBand port (IPoIB)."""
    return adapters.text(sysfs / "class/net" / interface / "type") == _ARPHRD_INFINIBAND


def address(interface: str) -> str | None:
    """Return the interface's first IPv4 address, else its first lasting IPv6 address.

    One that other nodes can reach: not of the link alone. None if it has none or does not exist.
    """
    answer = _ask(_SIOCGIFADDR, interface)
    if answer is not None:
        return socket.inet_ntoa(answer[20:24])
    for digits, _, _, scope, flags, name in _table("if_inet6", 6):
        if name == interface and scope == _GLOBAL and not int(flags, 16) & _PASSING:
            return socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))
    return None


def default_interface() -> str | None:
    """Return the default route's interface, else the first with an address that is not loopback."""
    for name, destination, *_ in _table("route", 11):
        if destination == "00000000":
            return name
    for destination, length, *_, name in _table("ipv6_route", 10):
        # The kernel's own route to nowhere is on `lo`.
        if length == "00" and not destination.strip("0") and name != "lo":
            return name
    return next((name for name in interfaces() if name != "lo" and address(name)), None)


def management(fabric: dict[str, Any]) -> tuple[str, str]:
    """Return the interface and address that agents and supervisor talk over.

    Raises HpcrunError, as does `fast`, if this node lacks the interface that the profile names.
    """
    if named := _find_interface(fabric.get("management_interface"), "management_interface"):
        return named
    name = default_interface()
    found = address(name) if name else None
    return (name, found) if name and found else ("lo", "127.0.0.1")


def fast(fabric: dict[str, Any], sysfs: Path = Path("/sys")) -> tuple[str, str]:
    """Return the interface and address of the rendezvous and the gradients.

    The profile's ``fabric.fast_interface``; else the first interface of type InfiniBand that has an
    address, or is named as one; else the management interface.
    """
    if named := _find_interface(fabric.get("fast_interface"), "fast_interface"):
        return named
    best = next((one for one in candidates(sysfs) if one.sign), None)
    return best[:2] if best else management(fabric)


def candidates(sysfs: Path = Path("/sys")) -> list[Interface]:
    """Return the interfaces with an address that may reach other nodes, the best one first.

    Of type InfiniBand (first those on the adapters that NCCL is given), then on such a RoCE
    adapter, then those named as fast, then the default route's, then the others.
    """
    default = default_interface()
    fast_ones = compute_ports.interfaces(adapters.read(sysfs))
    found = []
    for name in interfaces(sysfs):
        if not _INSIDE.match(name) and (own := address(name)):
            by_name = "name" if _FAST_NAME.match(name) else ""
            sign = "roce" if fast_ones.get(name) == "Ethernet" else by_name
            found.append(Interface(name, own, "type" if is_infiniband(name, sysfs) else sign))
    order = ("type", "roce", "name", "")
    return sorted(
        found,
        key=lambda one: (order.index(one.sign), one.name not in fast_ones, one.name != default),
    )


def down(sysfs: Path = Path("/sys")) -> list[str]:
    """Return the fast interfaces, by type or name, that have no address or no carrier."""
    return [
        name
        for name in interfaces(sysfs)
        if (_FAST_NAME.match(name) or is_infiniband(name, sysfs))
        and (address(name) is None or trouble(name, None) is not None)
    ]


def agree(
    fabric: dict[str, Any], found: Mapping[str, Sequence[Interface]]
) -> tuple[dict[str, str], str | None]:
    """Choose one interface for all nodes of an attempt, where the profile names none.

    ``found`` has each node's `candidates`. Return node -> the name of its interface (nodes that are
    not in it choose by themselves, alike), and what was guessed, with what to write: None where
    there was nothing to guess.
    """
    if fabric.get("fast_interface") or len(found) < 2 or not all(found.values()):
        return {}, None
    first, *others = found.values()
    there = [{one.name for one in own} for own in others]
    common = [one for one in first if all(one.name in names for names in there)]
    write = "fabric.fast_interface in the cluster profile decides"
    signs = {node: bool(own[0].sign) for node, own in found.items()}
    if not any(signs.values()):
        if len(first) == 1:
            return {}, None
        chosen = fabric.get("management_interface") or first[0].name
        rest = listed([one.name for one in first if one.name != chosen], 4)
        told = f"ranks talk over {chosen}, the way to the other nodes; there is {rest} too"
        return {}, f"{told}: {write}"
    if all(signs.values()) and (best := next((one for one in common if one.sign), None)):
        choice = dict.fromkeys(found, best.name)
        seen = {one.sign for own in found.values() for one in own if one.name == best.name}
        if seen == {"type"}:
            return choice, None
        why = "RoCE adapter" if seen == {"roce"} else "name"
        return choice, f"ranks talk over {best.name}, for its {why}: {write}"
    if all(signs.values()):
        choice = {node: own[0].name for node, own in found.items()}
        return choice, f"ranks talk over {_interfaces_text(choice)}, which differ in name: {write}"
    lacking = listed([node for node, has in signs.items() if not has], 4)
    plain = fabric.get("management_interface") or next(
        (one.name for one in common if not one.sign), None
    )
    choice = {
        node: plain or next((one.name for one in own if not one.sign), own[0].name)
        for node, own in found.items()
    }
    fast_name = next(own[0].name for own in found.values() if own[0].sign)
    return (
        choice,
        f"ranks talk over {_interfaces_text(choice)}: {lacking} has no {fast_name}; {write}",
    )


def _interfaces_text(choice: Mapping[str, str]) -> str:
    """Return ``eth0``, or ``ib0 (n1), ib1 (n2)``."""
    nodes: dict[str, list[str]] = {}
    for node, name in choice.items():
        nodes.setdefault(name, []).append(node)
    if len(nodes) == 1:
        return next(iter(nodes))
    return ", ".join(f"{name} ({listed(own, 3)})" for name, own in nodes.items())


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
    ports = adapters.read(sysfs, only_states=True).ports
    of_name = {name: compute_ports.ports_of([name], ports) for name in hca.lstrip("=").split(",")}
    return {name: not own or any(port.active for port in own) for name, own in of_name.items()}


def _find_interface(interface: str | None, key: str) -> tuple[str, str] | None:
    if not interface:
        return None
    found = address(interface)
    if found is None:
        raise HpcrunError(
            f"fabric.{key}: this node ({socket.gethostname()}) has no interface {interface!r} with "
            f"an address; it has {', '.join(interfaces()) or 'none'}",
            hint="correct the cluster profile's fabric block, or exclude the node",
        )
    return interface, found


def _table(name: str, fields: int) -> list[list[str]]:
    """Return the rows of a table of the kernel's that have so many fields."""
    try:
        rows = Path("/proc/net", name).read_text().splitlines()
    except OSError:
        return []
    return [row.split() for row in rows if len(row.split()) == fields]


def _ask(question: int, interface: str) -> bytes | None:
    """Return the kernel's ``struct ifreq`` of an interface; None where it refuses."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            name = struct.pack("256s", interface.encode()[:15])
            return fcntl.ioctl(probe.fileno(), question, name)
        except OSError:
            return None
