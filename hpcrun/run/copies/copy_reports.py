"""Collect what an attempt's nodes report of their copies, to tell and record it together."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from hpcrun.run.copies.node_copies import SAY_EVERY, NodeCopyReport
from hpcrun.run.protocol import messages
from hpcrun.run.protocol.output import say
from hpcrun.state.ledger import copies_sentence
from hpcrun.text import agreeing, plural, size

_MOST_BYTES = range(1 << 63)
_NOTES_MOST, _NOTE_LONGEST = 200, 1_000
# Of all nodes' notes, those that are told and recorded.
_MOST_RECORDED = 20
_SAY_PART = 0.05
_REMOVAL_OF_A_FILE, _REMOVAL_MOST = 1e-3, 120.0


class CopyReports:
    """The reports of the newest attempt's nodes."""

    KINDS = ("copying", "copied")

    def __init__(self, *, data: bool, environment: bool = False) -> None:
        self._what = " and ".join([*["its environment"] * environment, *["data"] * data])
        self._nodes: Sequence[str] = ()
        self._done: dict[str, tuple[int, int]] = {}
        self._reports: dict[str, NodeCopyReport] = {}
        self._began = self._said = 0.0

    @property
    def are_wanted(self) -> bool:
        """Return whether nodes are to copy anything."""
        return bool(self._what)

    @property
    def removal_takes(self) -> float:
        """Seconds that nodes may take to remove their copies."""
        most = max((one.files for one in self._reports.values()), default=0)
        return min(_REMOVAL_MOST, most * _REMOVAL_OF_A_FILE)

    def begins(self, nodes: Sequence[str]) -> bool:
        """Expect the reports of these nodes; return whether there is anything to copy."""
        self._nodes = nodes
        self._done.clear()
        self._reports.clear()
        self._began = self._said = time.monotonic()
        if self.are_wanted:
            say(f"stages {self._what} on {plural(len(nodes), 'node')}")
        return self.are_wanted

    def take_in(self, node: str, message: Mapping[str, Any]) -> bool:
        """Take in what a node says; return whether it is done. Raises BadMessage.

        What spare nodes copy ahead counts for nothing here.
        """
        is_awaited = node in self._nodes
        if message["type"] == "copying":
            counts = [messages.number(message.get(n), n, _MOST_BYTES) for n in ("done", "total")]
            if is_awaited:
                self._done[node] = counts[0], counts[1]
                self._tell()
            return False
        report = _checked(message.get("report"))
        if is_awaited:
            self._reports[node] = report
            self._done[node] = report.bytes, report.bytes
        return True

    def _tell(self) -> None:
        now = time.monotonic()
        if now - self._said < max(SAY_EVERY, _SAY_PART * (now - self._began)):
            return
        self._said = now
        done, total = (sum(each) for each in zip(*self._done.values(), strict=True))
        ready = len(self._reports)
        say(
            f"stages {self._what}: {size(done)} of {size(total)} so far, "
            f"{ready} of {plural(len(self._nodes), 'node')} {agreeing(ready, 'has', 'have')} it all"
        )

    def record(self) -> dict[str, Any] | None:
        """Tell what the copies came to, and return that; None where none were wanted."""
        if not self._reports:
            return None
        slowest = max(self._reports, key=lambda node: self._reports[node].seconds)
        every = list(self._reports.values())
        notes = [f"{node}: {one}" for node, own in self._reports.items() for one in own.notes]
        found: dict[str, Any] = {
            "nodes": len(every),
            "files": max(one.files for one in every),
            "bytes": max(one.bytes for one in every),
            "copied": sum(one.copied for one in every),
            "seconds": self._reports[slowest].seconds,
            "slowest": slowest,
            "notes": notes[:_MOST_RECORDED],
            "count": len(notes),
        }
        say(copies_sentence(found))
        for note in found["notes"]:
            say(f"copies, node {note}")
        return found


def _checked(found: Any) -> NodeCopyReport:
    names = set(NodeCopyReport.__dataclass_fields__)
    if not isinstance(found, dict) or found.keys() != names:
        raise messages.BadMessage("report")
    for name in ("files", "bytes", "copied"):
        messages.number(found[name], name, _MOST_BYTES)
    notes, seconds = found["notes"], found["seconds"]
    if not isinstance(seconds, float) or not 0 <= seconds < 1e9:
        raise messages.BadMessage("seconds")
    if not isinstance(notes, list) or len(notes) > _NOTES_MOST:
        raise messages.BadMessage("notes")
    notes = [messages.text(one, "notes")[:_NOTE_LONGEST] for one in notes]
    return NodeCopyReport(**{**found, "notes": notes})
