"""The nodes of an attempt's ranks: as planned, or as agents find those of a launcher inside."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeVar

from hpcrun.errors import HpcrunError
from hpcrun.state.plan import RunPlan

# The ranks that a launcher of the program's own may have.
_ANY = range(1 << 16)
_Found = TypeVar("_Found")


class RankPlaces:
    """The ranks of one attempt on its ``nodes``, which are in the order of NODE_RANK.

    The program of a rank may be a launcher, such as torchrun, which starts ranks with numbers of
    its own: each is where the first agent to report on it says. Those of a function are as planned.
    """

    def __init__(self, run: RunPlan, nodes: Sequence[str]) -> None:
        self._run, self._nodes = run, nodes
        self._found: dict[int, str] = {}
        # Ranks of roles: the node of each.
        places = enumerate(run.places) if run.role_plans and nodes else ()
        self._by_role = {rank: nodes[place] for rank, place in places}

    def planned(self, node: str) -> Collection[int]:
        """Return the ranks that were started on a node; none for a spare."""
        if self._run.role_plans:
            return [rank for rank, place in self._by_role.items() if place == node]
        if node not in self._nodes:
            return range(0)
        first = self._nodes.index(node) * self._run.ranks_per_node
        return range(first, first + self._run.ranks_per_node)

    def move(self, rank: int, node: str) -> None:
        """Note that a rank of a role is started on another node."""
        self._by_role[rank] = node

    def possible(self, node: str) -> Collection[int]:
        """Return the ranks on which a node's agent may report."""
        planned = self.planned(node)
        return planned if self._run.entry.kind == "function" or not planned else _ANY

    def own(self, node: str, found: dict[int, _Found]) -> dict[int, _Found]:
        """Return what is of ranks on which no other node's agent has reported before."""
        places = self._found
        return {rank: one for rank, one in found.items() if places.setdefault(rank, node) == node}

    def node_of(self, rank: int) -> str | None:
        """Return the node of a rank, as the ranks themselves are numbered; None if unknown."""
        if self._run.role_plans:
            return self._by_role.get(rank)
        index = rank // self._run.ranks_per_node
        planned = self._nodes[index] if index < len(self._nodes) else None
        return self._found.get(rank, planned)


class NodesLost(HpcrunError):
    """Nodes of the attempt lost power or network.

    ``cut_off`` describes nodes that lost only the fabric; None where their agents fell silent.
    """

    def __init__(self, nodes: tuple[str, ...], cut_off: str | None = None) -> None:
        super().__init__(cut_off or f"no sign of life from {', '.join(nodes)}")
        self.nodes, self.cut_off = nodes, cut_off


class NodesUnusable(HpcrunError):
    """Nodes could not be prepared, or lost their agents; ``nodes`` is empty if all are alike."""

    def __init__(self, message: str, nodes: Collection[str]) -> None:
        super().__init__(message)
        self.nodes = tuple(nodes)


class NodesUnhealthy(NodesUnusable):
    """Nodes that the check at the start found bad; ``response`` is what was decided about them."""

    def __init__(self, message: str, nodes: Collection[str], response: str) -> None:
        super().__init__(message, nodes)
        self.response = response
