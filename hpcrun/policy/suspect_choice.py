"""Which suspect nodes a job leaves out: bounded, so that nobody's word keeps it from starting."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from hpcrun.state.suspects.suspect_nodes import SuspectEntry

# The part of a partition's nodes that other users' entries may take from a job; one node at least.
OTHERS_SHARE = 0.1
_ROOT = 0


@dataclass(frozen=True)
class SuspectChoice:
    """What follows from the entries of a record for one job."""

    out: tuple[SuspectEntry, ...] = ()
    """One entry for each node that is left out."""
    used: tuple[tuple[SuspectEntry, str], ...] = ()
    """One entry for each suspect node that may be used all the same, and why."""

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
    entries: Sequence[SuspectEntry],
    nodes: Collection[str],
    needed: int,
    *,
    wanted: Collection[str] = (),
    usable: Collection[str] | None = None,
    share: float = OTHERS_SHARE,
) -> SuspectChoice:
    """Choose among the partition's ``nodes`` those that a job with ``needed`` nodes leaves out.

    Only those of ``usable`` (all without it) count for the nodes that stay: a node that is down or
    reserved now may be up when the job starts. Entries of this user and of root come first. Of
    others' at most ``share`` of the nodes count, those with the most authors first. Nodes that the
    job names (``wanted``) are used, and so many stay as it needs. The newest entries come first.
    """
    by_node: dict[str, list[SuspectEntry]] = {}
    for entry in entries:
        if entry.node in nodes:
            by_node.setdefault(entry.node, []).append(entry)
    certain = [own for own in by_node.values() if any(_is_trusted(one) for one in own)]
    others = [own for own in by_node.values() if not any(_is_trusted(one) for one in own)]
    others.sort(key=lambda own: -len({one.uid for one in own}))
    able = {*nodes} if usable is None else {*nodes} & {*usable}
    most_of_others, room = max(1, int(share * len(nodes))), len(able) - needed
    choice = SuspectChoice()
    for own in (*certain, *others):
        trusted = [one for one in own if _is_trusted(one)]
        entry = (trusted or own)[0]
        why = ""
        if entry.node in wanted:
            why = "as the job names it"
        elif entry.node in able and sum(one.node in able for one in choice.out) >= room:
            why = "as the job needs it"
        elif not trusted and most_of_others == 0:
            why = f"as others' entries leave out at most {share:.0%} of the nodes"
        if why:
            choice = SuspectChoice(choice.out, (*choice.used, (entry, why)))
            continue
        most_of_others -= not trusted
        choice = SuspectChoice((*choice.out, entry), choice.used)
    return choice


def _is_trusted(entry: SuspectEntry) -> bool:
    return entry.is_mine or entry.uid == _ROOT
