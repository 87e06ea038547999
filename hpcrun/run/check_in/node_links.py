"""The interfaces of a job's nodes as their agents tell of them, at the start and while it runs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from hpcrun.run.node import network
from hpcrun.run.protocol import messages
from hpcrun.run.protocol.heartbeat import SILENCE
from hpcrun.run.protocol.launch import Interface
from hpcrun.run.protocol.output import say


class NodeLinks:
    """What agents say of their links; a node is cut off after `SILENCE` seconds without one."""

    def __init__(self) -> None:
        self.notice: str | None = None
        """What was guessed of the interfaces in this attempt, and what to write instead."""
        self.down: dict[str, list[str]] = {}
        """Node -> its fast interfaces that were down as it said hello."""
        self._interfaces: dict[str, list[Interface]] = {}
        # Node -> since when it has no link, and why.
        self._since: dict[str, tuple[float, str]] = {}

    def greet(self, node: str, message: Mapping[str, Any]) -> None:
        """Take in an agent's hello; raise BadMessage if it has wrong interfaces."""
        found, down = messages.interfaces(message), messages.interfaces_down(message)
        self._interfaces[node], self.down[node] = found, down

    @property
    def up(self) -> dict[str, list[str]]:
        """Each node that has said hello -> its interfaces that are not down."""
        return {
            node: [one.name for one in own if one.name not in self.down[node]]
            for node, own in self._interfaces.items()
        }

    def fast_on_all(self, nodes: Sequence[str]) -> set[str]:
        """Return the fast interfaces that are up on all of these nodes."""
        each = [
            {one.name for one in self._interfaces.get(node, ()) if one.sign}
            - {*self.down.get(node, ())}
            for node in nodes
        ]
        return set.intersection(*each) if each else set()

    def choose(self, fabric: dict[str, Any], nodes: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return the profile's block for each node, with the interface that all agree on."""
        known = {node: self._interfaces.get(node, []) for node in nodes}
        choice, notice = network.agree(fabric, known)
        if notice and notice != self.notice:
            say(notice)
        self.notice = notice
        return {
            node: {**fabric, "fast_interface": choice[node]} if node in choice else fabric
            for node in nodes
        }

    def note(self, node: str, problem: str | None) -> None:
        """Take in why a node cannot reach the others now, or that it can."""
        if problem:
            self._since.setdefault(node, (time.monotonic(), problem))
        else:
            self._since.pop(node, None)

    def clear(self) -> None:
        """Forget what was noted of an attempt before."""
        self._since.clear()

    def cut_off(self, nodes: Sequence[str]) -> tuple[list[str], str]:
        """Return which of the nodes are cut off, once one is for too long, and a sentence."""
        if not self._since:
            return [], ""
        found = [node for node in nodes if node in self._since]
        since = min((self._since[node][0] for node in found), default=float("inf"))
        if time.monotonic() - since <= SILENCE:
            return [], ""
        words = "; ".join(f"{node}: {self._since[node][1]}" for node in found)
        return found, f"cut off from the fabric: {words}"
