"""The networks of the login node, which may differ from those of the compute nodes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hpcrun.run.fabric import adapters, compute_ports
from hpcrun.run.node import network


@dataclass(frozen=True)
class LoginNetwork:
    """Interfaces and adapters of this machine, in words."""

    interfaces: tuple[str, ...] = ()
    """``eth0 (default route)``, ``ib0 (InfiniBand)``; those with an address that reach others."""
    adapters: tuple[str, ...] = ()
    """``mlx5_0:1 InfiniBand, 400 Gb/sec (4X NDR)``; the ports for training, as nodes pick them."""
    is_late: bool = False
    """Files of the adapters did not answer in time."""


_SIGNS = {"type": "InfiniBand", "roce": "RoCE", "name": "named as a fast one"}


def read(sysfs: Path = Path("/sys")) -> LoginNetwork:
    """Read ``/sys`` and ask the kernel for addresses."""
    default = network.default_interface()
    interfaces = []
    for one in network.candidates(sysfs):
        signs = [_SIGNS.get(one.sign, ""), "default route" if one.name == default else ""]
        told = ", ".join(filter(None, signs))
        interfaces.append(f"{one.name} ({told})" if told else one.name)
    reading = adapters.read(sysfs)
    ports = [f"{port.name} {port.layer}, {port.link}" for port in compute_ports.choose(reading)]
    return LoginNetwork(tuple(interfaces), tuple(ports), reading.is_late)
