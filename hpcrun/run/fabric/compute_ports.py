"""The ports that carry the gradients: NCCL_IB_HCA, and the interfaces on them.

Everything else (address index, rails, routing, algorithms, time limits) is left to NCCL.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcrun.run.fabric.adapters import AdapterReading, HcaPort


def choose(reading: AdapterReading) -> tuple[HcaPort, ...]:
    """Return the active ports of one link layer and one rate that can send the most together.

    Where every GPU shares a PCI switch with a port, only such ports count: the others are for
    storage. InfiniBand comes before RoCE; an Ethernet port without a RoCE v2 address never counts.
    """
    ports = [
        port
        for port in near_gpus(reading)
        if port.active and (port.layer == "InfiniBand" or port.has_roce_v2)
    ]
    of_infiniband = [port for port in ports if port.layer == "InfiniBand"]
    ports = of_infiniband or ports
    together = {port.rate: 0.0 for port in ports}
    for port in ports:
        together[port.rate] += port.rate
    best = max(together, key=lambda rate: (together[rate], rate), default=0.0)
    return tuple(port for port in ports if port.rate == best)


def near_gpus(reading: AdapterReading) -> tuple[HcaPort, ...]:
    """Return the ports below a PCI switch with a GPU, if every GPU has one; else all."""
    covered = {gpu for port in reading.ports for gpu in port.gpus}
    if not reading.gpus or covered != reading.gpus:
        return reading.ports
    return tuple(port for port in reading.ports if port.gpus)


def ports_of(names: Sequence[str], ports: Sequence[HcaPort]) -> tuple[HcaPort, ...]:
    """Return the ports that names such as ``mlx5_1`` and ``mlx5_1:1`` stand for, exactly."""
    wanted = set(names)
    return tuple(port for port in ports if wanted & {port.hca, port.name})


def hca_filter(fabric: dict[str, Any], reading: AdapterReading) -> str | None:
    """Return NCCL_IB_HCA in its exact-match form; None when this node has no port for it.

    The profile's ``fabric.hca``, else the ports of `choose`. Without the ``=``, ``mlx5_1`` would
    match ``mlx5_10`` as well.
    """
    names = list(fabric.get("hca") or []) or [port.name for port in choose(reading)]
    return "=" + ",".join(names) if names else None


def interfaces(reading: AdapterReading) -> dict[str, str]:
    """Return the interfaces on the chosen ports, each with the port's link layer."""
    return {name: port.layer for port in choose(reading) for name in port.interfaces}
