"""The record of suspect nodes, as the doctor writes it: bad nodes go in, cleared ones go out."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcrun.errors import HpcrunError, UsageError
from hpcrun.slurm.hostlist import expand
from hpcrun.state.suspects.suspect_nodes import SuspectNodes
from hpcrun.text import listed, shortened

KIND = "doctor"


def record(cluster: Mapping[str, Any], root: Path, bad: Mapping[str, str]) -> list[str]:
    """Put bad nodes into the record, each with its reason; return notes for the user."""
    where = SuspectNodes.of(cluster, root)
    try:
        for node, why in bad.items():
            where.record(node, why, KIND)
    except HpcrunError as error:
        return [f"not recorded as suspect: {error.message}"]
    if not bad:
        return []
    days = f"{where.days:g} days"
    who = "submissions of all who share it" if where.shared else "your submissions"
    names = listed([*bad], 8)
    return [
        f"recorded as suspect for {days}: {names}; {who} leave such nodes out ({where.directory})"
    ]


def clear(cluster: Mapping[str, Any], root: Path, names: str) -> tuple[list[str], dict[str, str]]:
    """Take nodes out of the record; return those of this user's, and others' with their author.

    Others' entries stay; this user's submissions use the nodes all the same. Raises UsageError for
    what is no list of nodes, and for nodes that are not in the record.
    """
    wanted: list[str] = []
    with contextlib.suppress(HpcrunError):
        wanted = list(dict.fromkeys(expand(names)))
    if not wanted:
        raise UsageError(
            f"--clear: found {shortened(names, 80)!r}; accepted are names such as node[01-04],n7"
        )
    where = SuspectNodes.of(cluster, root)
    entries = where.read().entries
    unknown = [node for node in wanted if all(one.node != node for one in entries)]
    if unknown:
        there = listed(sorted({one.node for one in entries}), 8) or "no node"
        raise UsageError(
            f"--clear: {listed(unknown, 4)} is not among the suspect nodes; there is {there}",
            hint=f"the record is {where.directory}; `hpcrun doctor` shows it",
        )
    others = {one.node: one.author for one in entries if one.node in wanted and not one.is_mine}
    cleared = where.clear([node for node in wanted if node not in others])
    where.trust([*others])
    return cleared, others
