"""The verdict on a node's links, and on nodes whose links differ: data, with words.

Nothing is refused for it: the supervisor records it, and ``hpcrun why`` and ``show`` tell it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hpcrun.run.fabric import compute_ports
from hpcrun.run.fabric.adapters import AdapterReading, HcaPort
from hpcrun.text import listed, plural

DOWN, NO_SUBNET_MANAGER, SLOW = "down", "no_subnet_manager", "slow"
UNREADABLE, NO_PORT, DIFFERS = "unreadable", "no_port", "differs"
KINDS = (DOWN, NO_SUBNET_MANAGER, SLOW, UNREADABLE, NO_PORT, DIFFERS)
# Findings of a node, and of all nodes in the ledger.
_MOST, MOST_RECORDED = 16, 64

Finding = dict[str, Any]


def report(fabric: dict[str, Any], reading: AdapterReading) -> dict[str, Any] | None:
    """Return what an agent reports of its node's links; None for a node without adapters.

    ``source`` says what NCCL_IB_HCA comes from: the ``environment`` of the job, the ``profile``, or
    the ``node``. ``ports`` are those for NCCL: name, link layer, and rate in the kernel's words.
    """
    if not reading.ports and not reading.is_late:
        return None
    of_profile = list(fabric.get("hca") or [])
    if os.environ.get("NCCL_IB_HCA") is not None:
        source = "environment"
    else:
        source = "profile" if of_profile else "node"
    ports = (
        compute_ports.ports_of(of_profile, reading.ports)
        if of_profile
        else compute_ports.choose(reading)
    )
    found = findings(reading, ports, only_these=bool(of_profile))
    return {
        "source": source,
        "ports": [[port.name, port.layer, port.link] for port in ports if port.active],
        "findings": found[:_MOST],
    }


def findings(
    reading: AdapterReading, chosen: Sequence[HcaPort], *, only_these: bool = False
) -> list[Finding]:
    """Return what is wrong with a node's links, seen from this node alone.

    A port without a link is a fault only where the same port of other adapters of its model has
    one: the second port of an adapter is often without a cable. ``only_these`` if the profile
    names the ports.
    """
    found = []
    ports = chosen if only_these else compute_ports.near_gpus(reading)
    for port in ports:
        if told := _finding(port, ports, named_by_profile=only_these):
            kind, message = told
            found.append({"port": port.name, "kind": kind, "message": message})
    if reading.is_late:
        message = "files of the adapters do not answer, so that ports may be missing"
        found.append({"kind": UNREADABLE, "message": message})
    elif ports and not any(port.active for port in chosen) and not found:
        reason = "no InfiniBand port is active, and none has a RoCE v2 address"
        found.append({"kind": NO_PORT, "message": f"{reason}: the choice is left to NCCL"})
    return found


def _finding(
    port: HcaPort, ports: Sequence[HcaPort], *, named_by_profile: bool
) -> tuple[str, str] | None:
    """Return the kind of what is wrong with a port among its peers, and a sentence without end."""
    if not port.state:
        return UNREADABLE, f"the state of {port.name} cannot be read"
    if port.state in ("INIT", "ARMED"):
        why = "its link is up, and no subnet manager has made it active"
        return NO_SUBNET_MANAGER, f"{port.name} is in {port.state}: {why}"
    peers = [one for one in ports if one is not port and one.active and _alike(one, port)]
    if not port.active:
        # Of other adapters, the port in the same place.
        others = [one for one in peers if _place(one) == _place(port) and _slot(one) != _slot(port)]
        if named_by_profile or (others and port.phys_state != "Disabled"):
            phys = f" ({port.phys_state})" if port.phys_state else ""
            return DOWN, f"{port.name} is {port.state}{phys}"
        return None
    best = max(peers, key=lambda one: one.rate, default=port)
    if best.rate > port.rate and (best.width > port.width or best.board == port.board != ""):
        known = port.link or "a rate that cannot be read"
        return SLOW, f"{port.name} has {known}, its peers {best.link}"
    return None


def _alike(one: HcaPort, other: HcaPort) -> bool:
    boards = {one.board, other.board}
    return one.layer == other.layer and (len(boards) == 1 or "" in boards)


def _place(port: HcaPort) -> tuple[str, int]:
    return (port.pci[-1].rpartition(".")[2] if port.pci else ""), port.number


def _slot(port: HcaPort) -> str:
    return port.pci[-1].rpartition(".")[0] if port.pci else port.hca


def compare(reports: Mapping[str, Mapping[str, Any] | None]) -> list[Finding]:
    """Return the findings of all nodes, each with its ``node``, and the nodes that differ.

    The standard is what most nodes give NCCL; of several that are as frequent, the most.
    """
    found = [
        {"node": node, **one} for node, own in reports.items() if own for one in own["findings"]
    ]
    pictures = {node: _picture(own) for node, own in reports.items()}
    count = Counter(pictures.values())
    if len(count) < 2:
        return found
    usual = max(count, key=lambda one: (count[one], _total(one), one))
    others = [node for node, picture in pictures.items() if picture == usual]
    for node, picture in pictures.items():
        if picture != usual:
            rest = f"{listed(others, 3)} {'has' if len(others) == 1 else 'have'}"
            message = f"it has {_ports_text(picture)} for NCCL, {rest} {_ports_text(usual)}"
            found.append({"node": node, "kind": DIFFERS, "message": message})
    return found


_Picture = tuple[tuple[str, str], ...]


def _picture(own: Mapping[str, Any] | None) -> _Picture:
    """Return link layer and rate of each port, without names: these differ between nodes."""
    return tuple(sorted((layer, link) for _, layer, link in own["ports"])) if own else ()


def _total(picture: _Picture) -> float:
    rates = [link.split(" ", 1)[0] for _, link in picture]
    return sum(float(rate) for rate in rates if rate.replace(".", "", 1).isdecimal())


def _ports_text(picture: _Picture) -> str:
    """Return ``8 InfiniBand ports at 400 Gb/sec (4X NDR)``."""
    kinds = Counter(picture).items()
    parts = [
        f"{plural(count, (layer + ' port').strip())} at {link or 'an unknown rate'}"
        for (layer, link), count in kinds
    ]
    return " and ".join(parts) or "no port"


def choices(reports: Mapping[str, Mapping[str, Any] | None], hcas: Mapping[str, Any]) -> list[str]:
    """Return what NCCL_IB_HCA is, and from where, for all nodes that have it alike."""
    nodes: dict[str, list[str]] = {}
    for node, own in reports.items():
        if own is None:
            continue
        if own["source"] == "environment":
            told = "NCCL_IB_HCA is what the job's environment says"
        elif own["source"] == "profile":
            told = f"NCCL_IB_HCA is {hcas.get(node)}, of fabric.hca in the cluster profile"
        elif hcas.get(node):
            told = f"NCCL_IB_HCA is {hcas[node]}, as read there; fabric.hca in the profile decides"
        else:
            told = "NCCL_IB_HCA is left to NCCL"
        nodes.setdefault(told, []).append(node)
    return [f"{listed(own, 4)}: {told}" for told, own in nodes.items()]
