"""The record of suspect nodes, as the doctor writes it: broken nodes go in, others out by hand."""

from __future__ import annotations

import contextlib
from pathlib import Path

from hpcrun.errors import HpcrunError, UsageError
from hpcrun.slurm.hostlist import expand
from hpcrun.state.suspect_nodes import HOURS, SuspectNodes
from hpcrun.text import listed, shortened
from hpcrun.tools.doctor.node_verdict import BAD, NodeVerdict

KIND = "doctor"
# Kinds of findings that only hardware makes.
_HARDWARE = frozenset({"link", "slow_link", "fabric", "gpu", "ecc", "clock_slowdown"})


def record(root: Path, verdict: NodeVerdict) -> list[str]:
    """Put the nodes whose hardware is broken into the record; return notes for the user."""
    broken: dict[str, str] = {}
    for one in verdict.findings:
        if one.severity == BAD and len(one.nodes) == 1 and one.kind in _HARDWARE:
            broken.setdefault(one.nodes[0], one.message)
    try:
        for node, why in broken.items():
            SuspectNodes(root).record(node, why, KIND)
    except HpcrunError as error:
        return [f"not recorded as suspect: {error.message}"]
    names = listed(sorted(broken), 8)
    told = f"suspect for {HOURS:g} hours: {names}; your submissions leave such nodes out"
    return [told] if broken else []


def clear(root: Path, names: str) -> list[str]:
    """Take nodes out of the record, and return them.

    Raises UsageError for what is no list of nodes, and for nodes that are not in the record.
    """
    wanted: list[str] = []
    with contextlib.suppress(HpcrunError):
        wanted = list(dict.fromkeys(expand(names)))
    if not wanted:
        raise UsageError(
            f"--clear: found {shortened(names, 80)!r}; accepted are names such as node[01-04],n7"
        )
    there = [one.node for one in SuspectNodes(root).read()]
    if unknown := [node for node in wanted if node not in there]:
        raise UsageError(
            f"--clear: {listed(unknown, 4)} is not among the suspect nodes; there is "
            f"{listed(sorted(there), 8) or 'no node'}",
            hint="`hpcrun doctor` lists them",
        )
    return SuspectNodes(root).forget(wanted)
