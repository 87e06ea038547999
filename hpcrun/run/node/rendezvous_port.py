"""The TCP port of the rendezvous, reserved while an attempt lasts."""

from __future__ import annotations

import socket
from pathlib import Path

from hpcrun.errors import HpcrunError


class PortReservation:
    """A TCP port for the rendezvous, held against other jobs on the same node.

    The port lies outside the ephemeral range. It is reserved by binding an abstract Unix socket
    that carries its number: hpcrun jobs of all users on the node see it at once, and the kernel
    releases it when this process ends, however it ends. The search begins at ``start``, any integer
    such as a job id. Raises HpcrunError if no port is free.
    """

    def __init__(self, start: int) -> None:
        low, high = port_range()
        for offset in range(high - low):
            port = low + (start * 16 + offset) % (high - low)
            guard = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                guard.bind(f"\0hpcrun-port-{port}")
                with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
                    probe.bind(("0.0.0.0", port))
            except OSError:
                guard.close()
                continue
            self.port, self._guard = port, guard
            return
        raise HpcrunError(f"no TCP port between {low} and {high} is free on this node")

    def release(self) -> None:
        self._guard.close()


def port_range() -> tuple[int, int]:
    """Return the first and one past the last port that the kernel never hands out by itself."""
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        first = 32768
    return (10_000, first) if first > 11_000 else (61_000, 65_500)
