"""Which suspect nodes a job leaves out: never so many that it could not start."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from hpcrun.state.suspects.suspect_nodes import SuspectNode


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
