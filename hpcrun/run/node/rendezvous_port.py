"""TCP ports of the rendezvous and of ranks, reserved while an attempt lasts."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterable
from pathlib import Path

from hpcrun.errors import HpcrunError

# Ports with a name that is taken, after which the first of them that is free will do.
_TRIES = 256


class PortReservation:
    """TCP ports, by default one for the rendezvous, kept from other jobs on the node if possible.

    They lie outside the ephemeral range, one after the other. Each is reserved by binding an
    abstract Unix socket that carries its number: hpcrun jobs of all users on the node see it at
    once, and the kernel releases it when this process ends, however it ends. The search begins at
    ``start``, any integer such as a job id. Any user can take such names, so where all have one
    that is taken, ports that are free go without. With ``meets``, `in_use` is asked about them, and
    those are passed over of which it would tell a meeting already: the kernel takes 10 ms to say.
    Raises HpcrunError if there are no free ports.

    Attributes
    ----------
    ports
        All of them.
    port
        The first of them.
    """

    def __init__(self, start: int, count: int = 1, *, meets: bool = True) -> None:
        low, high = port_range()
        self._guards: list[socket.socket] = []
        busy, without = _ports_of_sockets() if meets else set(), None
        for tried, offset in enumerate(range(0, high - low, count)):
            port = low + (start * 16 + offset) % (high - low)
            block = range(port, port + count)
            if block.stop > high or not all(map(_is_free, block)) or not busy.isdisjoint(block):
                continue
            if self._guard_all(block):
                self.ports, self.port = block, port
                return
            without = port if without is None else without
            if tried >= _TRIES:
                break
        if without is None:
            raise HpcrunError(f"no TCP port between {low} and {high} is free on this node")
        self.ports, self.port = range(without, without + count), without

    def _guard_all(self, block: range) -> bool:
        """Hold the names of ports; return False, and hold none, if somebody else has one."""
        for port in block:
            self._guards.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            try:
                self._guards[-1].bind(f"\0hpcrun-port-{port}")
            except OSError:
                self.release()
                return False
        return True

    def release(self) -> None:
        while self._guards:
            self._guards.pop().close()


def in_use(ports: Iterable[int]) -> bool:
    """Check whether a TCP socket of this machine listens on a port, or was connected to it here.

    Connections that were closed are there for another minute. Those from here to the same port of
    another machine do not count.
    """
    wanted = set(ports)
    return bool(wanted) and not wanted.isdisjoint(_ports_of_sockets())


def _ports_of_sockets() -> set[int]:
    """Return the ports of this machine's ends of all TCP sockets."""
    found = set()
    for name in ("tcp", "tcp6"):
        table = b""
        with contextlib.suppress(OSError):
            table = Path("/proc/net", name).read_bytes()
        for line in table.splitlines()[1:]:
            (here, _, port), (there, _, other) = (
                end.rpartition(b":") for end in line.split(maxsplit=3)[1:3]
            )
            found.add(int(port, 16))
            if there == here:
                found.add(int(other, 16))
    return found


def _is_free(port: int) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind(("", port))
        except OSError as error:
            # A kernel without a family has nobody in it.
            if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                return False
    return True


def port_range() -> tuple[int, int]:
    """Return the first and one past the last port that the kernel never hands out by itself."""
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        first = 32768
    return (10_000, first) if first > 11_000 else (61_000, 65_500)
