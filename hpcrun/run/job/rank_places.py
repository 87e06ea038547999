"""The ranks of an attempt: their nodes, as planned or as agents find them, and their ends."""

from __future__ import annotations

import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TypeVar

from hpcrun.errors import HpcrunError
from hpcrun.shared_dataclass import dataclass
from hpcrun.slurm import steps
from hpcrun.slurm.steps import TaskEnd
from hpcrun.state.layout import AttemptPaths
from hpcrun.state.plan import RunPlan

# The ranks that a launcher of the program's own may have.
_ANY = range(1 << 16)
# What Slurm says where it has given a job none of the GPUs that it knows.
_NO_GRES = "NoDevFiles"
_Found = TypeVar("_Found")


class RankPlaces:
    """The ranks of one attempt on its ``nodes``, which are in the order of NODE_RANK.

    The program of a rank may be a launcher, such as torchrun, which starts ranks with numbers of
    its own: each is where the first agent to report on it says. Those of a function are as planned.
    """

    def __init__(self, run: RunPlan, nodes: Sequence[str]) -> None:
        self._run, self._nodes = run, nodes
        self._places = {node: place for place, node in enumerate(nodes)}
        self._found: dict[int, str] = {}
        # Ranks of roles: the node of each.
        places = enumerate(run.places) if run.role_plans and nodes else ()
        self._by_role = {rank: nodes[place] for rank, place in places}

    def planned(self, node: str) -> Collection[int]:
        """Return the ranks that were started on a node; none for a spare."""
        if self._run.role_plans:
            return [rank for rank, place in self._by_role.items() if place == node]
        if node not in self._places:
            return range(0)
        first = self._places[node] * self._run.ranks_per_node
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


class StorageUnseen(NodesUnusable):
    """Shared storage cannot be used: on ``nodes``, while others can; on all nodes if empty."""


class NotBuilt(NodesUnusable):
    """DeepSpeed's operators do not compile: seen on ``nodes``, or on any node if empty."""


class NodesUnhealthy(NodesUnusable):
    """Nodes that the check at the start found bad.

    ``response`` is what was decided about them; ``hardware`` what is broken, by node.
    """

    def __init__(
        self, message: str, nodes: Collection[str], response: str, hardware: Mapping[str, str]
    ) -> None:
        super().__init__(message, nodes)
        self.response, self.hardware = response, hardware


@dataclass(frozen=True)
class RankEnd:
    """The bad end of a rank: by an exit code or by a signal (its name, such as ``SIGKILL``).

    ``node`` is None where it is unknown; ``out_of_memory`` is Slurm's word for why it was killed.
    ``by_slurm``: Slurm had begun to end all ranks, so that its SIGKILL is no cause.
    """

    rank: int
    node: str | None
    exit_code: int | None
    signal: str | None
    out_of_memory: bool = False
    by_slurm: bool = False


class Workers(ABC):
    """The running ranks of an attempt; ``ends`` has all that were seen to end badly."""

    def __init__(self, attempt: AttemptPaths) -> None:
        self._attempt = attempt
        self.ends: dict[int, RankEnd] = {}
        # The lost nodes that they went on without; those that train are over, and others are not.
        self.outlived: set[str] = set()
        self.is_ending = False

    def outlives(self, nodes: Collection[str]) -> bool:
        """Go on without the ranks of nodes that were lost; return whether that can be."""
        return False

    @abstractmethod
    def failure(self) -> RankEnd | None:
        """Return the first rank that was seen to end badly."""

    @abstractmethod
    def exit_code(self) -> int | None:
        """Return None while any rank runs, 0 when all ended well."""

    def has_ended(self, rank: int) -> bool:
        """Check whether a rank is known to have ended, well or badly."""
        return self.exit_code() is not None or rank in self.ends

    def end_of(self, rank: int) -> RankEnd:
        """Return the end of a rank that is gone: a good one, unless it was seen to end badly."""
        return self.ends.get(rank, RankEnd(rank, None, 0, None))

    @abstractmethod
    def abandon(self) -> None:
        """End ranks that nobody needs, without waiting for it."""

    def refusal(self) -> str | None:
        """Return why Slurm started no rank; None where it did."""
        return None

    @abstractmethod
    def kill(self, *, nodes_are_lost: bool = False) -> None:
        """End every rank that the agents have not ended, and wait for that.

        With ``nodes_are_lost``, give up the ranks there: Slurm ends them with the job.
        """


def rank_ends(end: TaskEnd, first: int, in_container: bool, is_aborted: bool) -> Iterator[RankEnd]:
    """Yield the ends that srun reports of a step whose first task is rank ``first``.

    ``is_aborted``: Slurm has ended the whole step, as MPI_Abort asks it to.
    """
    code, name = end.exit_code, end.signal
    if in_container and code is not None:
        code, name = of_shell(code)
    by_slurm = is_aborted and end.what == steps.KILLED
    for task in end.ranks:
        yield RankEnd(first + task, end.node, code, name, end.out_of_memory, by_slurm=by_slurm)


def of_shell(code: int) -> tuple[int | None, str | None]:
    """Return exit code and signal of a rank from the code of the shell that is its parent."""
    try:
        return None, signal.Signals(code - 128).name
    except ValueError:
        return code, None


def shared_gpus(counts: Sequence[int], place: int) -> str | None:
    """Return CUDA_VISIBLE_DEVICES for one of those that share a machine's GPUs; None for no GPU.

    ``counts`` are the GPUs of each. Raise HpcrunError if this process may use fewer.
    """
    needed = sum(counts)
    if not counts[place]:
        return None
    inherited = os.environ.get("CUDA_VISIBLE_DEVICES")
    if inherited == _NO_GRES:
        inherited = None
    usable = inherited.split(",") if inherited else [str(index) for index in range(needed)]
    if len(usable) < needed:
        raise HpcrunError(
            f"{needed} GPUs are needed and CUDA_VISIBLE_DEVICES={inherited} has {len(usable)}",
            hint="ask for fewer with resources.gpus_per_node and resources.nodes",
        )
    first = sum(counts[:place])
    return ",".join(usable[first : first + counts[place]])
