"""The TCP port of the rendezvous, reserved while an attempt lasts."""

from __future__ import annotations

import socket
from pathlib import Path

from hpcrun.errors import HpcrunError

# Ports with a name that is taken, after which the first of them that is free will do.
_TRIES = 256


class PortReservation:
    """A TCP port for the rendezvous, kept from other jobs on the same node if that can be.

    The port lies outside the ephemeral range. It is reserved by binding an abstract Unix socket
    that carries its number: hpcrun jobs of all users on the node see it at once, and the kernel
    releases it when this process ends, however it ends. The search begins at ``start``, any integer
    such as a job id. Any user can take such names, so where all have one that is taken, a port that
    is free goes without. Raises HpcrunError if no port is free.
    """

    def __init__(self, start: int) -> None:
        low, high = port_range()
        self._guard: socket.socket | None = None
        without: int | None = None
        for offset in range(high - low):
            port = low + (start * 16 + offset) % (high - low)
            if not _is_free(port):
                continue
            self._guard = _guard(port)
            if self._guard is not None:
                self.port = port
                return
            without = port if without is None else without
            if offset >= _TRIES:
                break
        if without is None:
            raise HpcrunError(f"no TCP port between {low} and {high} is free on this node")
        self.port = without

    def release(self) -> None:
        if self._guard is not None:
            self._guard.close()


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True


def _guard(port: int) -> socket.socket | None:
    """Return what holds a port's name; None if somebody else does."""
    guard = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        guard.bind(f"\0hpcrun-port-{port}")
    except OSError:
        guard.close()
        return None
    return guard


def port_range() -> tuple[int, int]:
    """Return the first and one past the last port that the kernel never hands out by itself."""
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        first = 32768
    return (10_000, first) if first > 11_000 else (61_000, 65_500)
