"""This user's record of nodes whose hardware failed a job: ``UID.json`` in the root, for `HOURS`.

Jobs and ``hpcrun doctor --nodes`` record nodes, people forget them, submissions leave them out::

    nodes = SuspectNodes(root)
    nodes.record("node07", "ib0 has no carrier", "bad_node")
    nodes.record("node08", "did not answer any more", "node_failure", certain=False)
    nodes.read()                # node07; node08 once it was seen a second time
    nodes.forget(["node07"])

The file holds what was seen in these hours and is replaced as a whole. Of two jobs that write in
the same instant one may be lost: the node is then seen the next time. Where a root is several
users', each has a file, and nobody reads another's.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcrun.errors import HpcrunError
from hpcrun.fields import FLAG, TEXT, TIME, Kinds, wrong
from hpcrun.state import files, permissions
from hpcrun.text import one_line, shortened

# For how long a node is left out after it was seen to fail.
HOURS = 12.0
_MOST_BYTES, _MOST_SEEN, _MOST_REASON = 1 << 18, 500, 200
# Seconds by which clocks may differ.
_SKEW = 300.0
_NODE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?", re.ASCII)
_KINDS: Kinds = {"node": TEXT, "reason": TEXT, "kind": TEXT, "time": TIME, "certain": FLAG}


@dataclass(frozen=True)
class SuspectNode:
    """A node that submissions leave out, as it was seen last."""

    node: str
    reason: str
    """One line, fit to be printed."""
    kind: str
    """The kind of end that showed it (`hpcrun.policy.causes`), or ``doctor``."""
    when: float
    """Seconds since the epoch."""

    @property
    def until(self) -> float:
        """The time from which it is used again."""
        return self.when + HOURS * 3600

    @property
    def told(self) -> str:
        """``node07: ib0 has no carrier (until 2026-01-31 12:00)``."""
        until = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.until))
        return f"{self.node}: {self.reason} (until {until})"


class SuspectNodes:
    """This user's record in a root."""

    def __init__(self, root: Path) -> None:
        self.file = root / ".hpcrun" / "suspects" / f"{os.geteuid()}.json"

    def read(self, now: float | None = None) -> list[SuspectNode]:
        """Return the nodes that are suspect, the newest first; none if the file cannot be read.

        What is no proof by itself counts once it was seen twice.
        """
        found: dict[str, list[dict[str, Any]]] = {}
        for one in self._sightings(time.time() if now is None else now):
            found.setdefault(one["node"], []).append(one)
        nodes = [
            SuspectNode(node, own[-1]["reason"], own[-1]["kind"], own[-1]["time"])
            for node, own in found.items()
            if len(own) > 1 or own[-1]["certain"]
        ]
        return sorted(nodes, key=lambda one: (-one.when, one.node))

    def record(
        self, node: str, reason: str, kind: str, *, certain: bool = True, now: float | None = None
    ) -> None:
        """Write that a node was seen to fail; raise HpcrunError if that cannot be written."""
        if not _NODE_NAME.fullmatch(node):
            raise HpcrunError(f"{shortened(one_line(node), 80)!r} is not the name of a node")
        now = time.time() if now is None else now
        reason = shortened(one_line(reason.strip()), _MOST_REASON)
        seen = {"node": node, "reason": reason, "kind": kind, "time": now, "certain": certain}
        self._write([*self._sightings(now), seen])

    def forget(self, nodes: Iterable[str]) -> list[str]:
        """Take nodes out; return those that were suspect. Raises as `record`."""
        wanted = {*nodes}
        there = sorted(one.node for one in self.read() if one.node in wanted)
        if there:
            self._write([one for one in self._sightings(time.time()) if one["node"] not in wanted])
        return there

    def _sightings(self, now: float) -> list[dict[str, Any]]:
        """Return what was seen in these hours, in its order."""
        try:
            # A stranger's, where others may write to the root.
            if permissions.owner(self.file) != os.geteuid():
                return []
            found = files.read_json(self.file, _MOST_BYTES)
        except (OSError, ValueError):
            return []
        return [
            one
            for one in (found if isinstance(found, list) else [])
            if isinstance(one, dict)
            and not wrong(one, _KINDS, _KINDS)
            and _NODE_NAME.fullmatch(one["node"])
            and now - HOURS * 3600 < one["time"] <= now + _SKEW
        ]

    def _write(self, seen: list[dict[str, Any]]) -> None:
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            files.write_json(self.file, seen[-_MOST_SEEN:])
        except OSError as error:
            raise HpcrunError(f"the record of suspect nodes cannot be written: {error}") from None


@dataclass(frozen=True)
class SuspectChoice:
    """What follows from the record for one job."""

    out: tuple[SuspectNode, ...] = ()
    """The nodes that are left out."""
    used: tuple[tuple[SuspectNode, str], ...] = ()
    """Suspect nodes that may be used all the same, and why."""

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(one.node for one in self.out)

    def without(self, node: str, why: str) -> SuspectChoice:
        """Return the choice with a node used after all."""
        back = tuple((one, why) for one in self.out if one.node == node)
        return SuspectChoice(tuple(one for one in self.out if one.node != node), self.used + back)

    @property
    def told(self) -> list[str]:
        """Return a sentence for each suspect node."""
        return [
            *(f"left out: {one.told}" for one in self.out),
            *(f"used all the same, {why}: {one.told}" for one, why in self.used),
        ]


def choose(
    suspects: Sequence[SuspectNode],
    nodes: Collection[str],
    needed: int,
    *,
    wanted: Collection[str] = (),
    usable: Collection[str] | None = None,
) -> SuspectChoice:
    """Choose among the partition's ``nodes`` those that a job with ``needed`` nodes leaves out.

    Nodes that the job names (``wanted``) are used, and so many stay as it needs. Only those of
    ``usable`` (all without it) count for these: a node that is down or reserved now may be up when
    the job starts. The first of ``suspects`` are left out first.
    """
    able = {*nodes} if usable is None else {*nodes} & {*usable}
    choice, room = SuspectChoice(), len(able) - needed
    for one in suspects:
        if one.node not in nodes:
            continue
        choice = SuspectChoice((*choice.out, one), choice.used)
        if one.node in wanted:
            choice = choice.without(one.node, "as the job names it")
        elif one.node in able and sum(node in able for node in choice.nodes) > room:
            choice = choice.without(one.node, "as the job needs it")
    return choice
