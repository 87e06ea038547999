"""Warm ranks, started, taken and dismissed; see `hpcrun.run.rank.warm_up`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from hpcrun.policy import causes
from hpcrun.run.health import progress
from hpcrun.run.job.agents import Agents
from hpcrun.run.job.launchers import Launcher
from hpcrun.run.job.rank_places import RankEnd, Workers
from hpcrun.run.job.stop_request import StopRequest
from hpcrun.run.protocol.output import say
from hpcrun.run.rank import warm_up
from hpcrun.state import files, ledger
from hpcrun.state.layout import AttemptPaths
from hpcrun.state.plan import RunPlan


class WarmRanks:
    """The warm ranks of one start of a job, seen from its supervisor."""

    def __init__(self, launcher: Launcher, agents: Agents) -> None:
        self._launcher, self._agents = launcher, agents
        # The attempt that trains -> since when.
        self._training: dict[int, float] = {}
        self._groups: list[WarmGroup] = []
        # The attempt in which they were started.
        self._attempt = 0
        # That of a supervisor before this one: its number, and each node's directory of it.
        self._left: tuple[int, dict[str, str]] | None = None

    def adopt(self, attempt: AttemptPaths) -> None:
        """Take over those that wait since an attempt of the supervisor before this one."""
        with contextlib.suppress(OSError, ValueError):
            found = files.read_json(attempt.warm_ranks)
            if isinstance(found, dict) and all(isinstance(one, str) for one in found.values()):
                self._left = attempt.number, found

    def take(
        self, run: RunPlan, attempt: AttemptPaths, nodes: Sequence[str], stop_request: StopRequest
    ) -> Workers | None:
        """Return the warm ranks as those of an attempt that is prepared; None if it has none.

        Those of other nodes leave; so do all where one of its nodes has none. From now on each turn
        is for this attempt.
        """
        self._current = run, attempt, stop_request
        if self._left is not None:
            (former, waiting), self._left = self._left, None
            joins = attempt.number if waiting.keys() >= {*nodes} else None
            self._agents.call_others(former, joins, waiting)
            if joins is not None:
                say("warm ranks of the former supervisor take over")
                return RanksOfAgents(attempt, self._agents, run.world_size)
        wanted = {node: place * run.ranks_per_node for place, node in enumerate(nodes)}
        found = [group.called(wanted) for group in self._groups]
        called = CalledRanks(attempt, [group for group in found if group.ranks])
        if called.count != run.world_size or called.have_ended:
            self.end()
            return None
        for group in found:
            if not group.ranks:
                group.workers.abandon()
        self._groups = []
        self._agents.call(self._attempt, attempt.number)
        say("warm ranks take over")
        return called

    def turn(self) -> None:
        """Start warm ranks if they are due; end them where no restart will follow."""
        run, attempt, stop_request = self._current
        if leaving := stop_request.reason is not None:
            self.end()
        if leaving or self._attempt == attempt.number:
            return
        if (due := warm_up.after(run)) is None:
            return
        began = self._training.get(attempt.number)
        if began is not None and time.monotonic() - began < due:
            return
        if not self._is_training(run):
            return
        if began is None:
            self._training = {attempt.number: time.monotonic()}
        else:
            self._attempt = attempt.number
            # Warm ranks need memory: not in a run that was killed for the lack of it before.
            if any(one.kind == causes.OUT_OF_MEMORY for one in ledger.read(attempt.run)):
                return
            if self._agents.imported == 0 and not self._agents.pulses:
                say("no warm ranks: rank 0 was not seen to import a package that takes long")
                return
            self._start(run, attempt)

    def _is_training(self, run: RunPlan) -> bool:
        """Check for steps: of all ranks with sessions, else of a script whose steps are read."""
        ranks = self._agents.pulses
        if not ranks:
            return run.entry.kind == "script" and self._agents.imported is not None
        at_work = (one.step > 0 and one.phase != progress.ENDING for one in ranks.values())
        return len(ranks) >= run.world_size and all(at_work)

    def _start(self, run: RunPlan, attempt: AttemptPaths) -> None:
        spares = self._agents.idle()
        working = {*self._agents.working}
        nodes = [node for node in self._agents.usable if node in working or node in spares]
        try:
            started = self._launcher.start_warm(run, attempt, spares, nodes)
        except (OSError, RuntimeError) as error:
            say(f"no warm ranks wait for the next attempt: {error}")
            return
        each = run.ranks_per_node
        self._groups = [WarmGroup(workers, own, each) for own, workers in started]
        if run.outlives_nodes:
            found = {node: str(self._agents.scratch(node)) for node in nodes}
            write = partial(files.write_json, attempt.warm_ranks, found)
            files.patiently(write, say, attempt.warm_ranks.name)

    def end(self) -> None:
        """Have the warm ranks leave, and do not wait for that."""
        if self._groups:
            self._agents.call(self._attempt, None)
        for group in self._groups:
            group.workers.abandon()
        self._groups = []


@dataclass(frozen=True)
class WarmGroup:
    """The warm ranks of one step, numbered as tasks: so many on ``each`` of its ``nodes``."""

    workers: Workers
    nodes: Sequence[str]
    each: int
    ranks: Mapping[int, int] = field(default_factory=dict)
    """Task -> the rank that it has become; those of other nodes leave."""

    @property
    def has_others(self) -> bool:
        """Return whether tasks of it live that no attempt has called, as far as is known."""
        tasks = range(len(self.nodes) * self.each)
        return any(not self.workers.has_ended(task) for task in tasks if task not in self.ranks)

    def called(self, first: Mapping[str, int]) -> WarmGroup:
        """Return it as an attempt calls it that has these nodes, each with its first rank."""
        ranks = {
            place * self.each + local: first[node] + local
            for place, node in enumerate(self.nodes)
            if node in first
            for local in range(self.each)
        }
        return replace(self, ranks=ranks)


class CalledRanks(Workers):
    """Ranks that were warm, of several steps, some tasks of which are theirs.

    A step may have lost nodes: srun waits for their tasks until Slurm has noticed.
    """

    def __init__(self, attempt: AttemptPaths, groups: Sequence[WarmGroup]) -> None:
        super().__init__(attempt)
        self._groups = groups
        self._failure: RankEnd | None = None

    @property
    def count(self) -> int:
        """The number of ranks."""
        return sum(len(group.ranks) for group in self._groups)

    @property
    def have_ended(self) -> bool:
        """Return whether one of them has ended."""
        return any(group.workers.has_ended(task) for group, task in self._tasks())

    def _tasks(self) -> Iterator[tuple[WarmGroup, int]]:
        return ((group, task) for group in self._groups for task in group.ranks)

    def failure(self) -> RankEnd | None:
        self._look()
        if self._failure is None:
            # Ranks whose peer was killed fail soon after it, with an exit code.
            ends, kind = self.ends.values(), lambda end: (end.by_slurm, end.signal is None)
            self._failure = min(ends, key=kind, default=None)
        return self._failure

    def _look(self) -> None:
        for group in self._groups:
            group.workers.exit_code()
            for task, end in list(group.workers.ends.items()):
                if task in group.ranks:
                    rank = group.ranks[task]
                    self.ends.setdefault(rank, replace(end, rank=rank))

    def exit_code(self) -> int | None:
        if not all(group.workers.has_ended(task) for group, task in self._tasks()):
            self._look()
            return None
        codes = [group.workers.exit_code() for group in self._groups]
        self._look()
        found = [1 if end.exit_code is None else end.exit_code for end in self.ends.values()]
        for group, code in zip(self._groups, codes, strict=True):
            if code is None:
                group.workers.kill(nodes_are_lost=True)
            if not group.workers.ends:
                found.append(code or 0)
        return max([0, *found])

    def abandon(self) -> None:
        for group in self._groups:
            group.workers.abandon()

    def kill(self, *, nodes_are_lost: bool = False) -> None:
        for group in self._groups:
            group.workers.kill(nodes_are_lost=nodes_are_lost or group.has_others)


class RanksOfAgents(Workers):
    """Ranks whose srun was lost with the supervisor before this one: agents tell of their ends.

    Slurm ends their steps with the job, or as the last of a step's processes ends.
    """

    def __init__(self, attempt: AttemptPaths, agents: Agents, count: int) -> None:
        super().__init__(attempt)
        self._agents, self._count = agents, count

    def _look(self) -> dict[int, int | None]:
        found = dict(self._agents.ends)
        for rank, code in found.items():
            if code != 0:
                how = (code, None) if code is not None else (None, causes.UNSEEN)
                node = self._agents.places.node_of(rank)
                self.ends.setdefault(rank, RankEnd(rank, node, *how))
        return found

    def failure(self) -> RankEnd | None:
        self._look()
        # Ranks whose peer was killed fail soon after it, with an exit code.
        return min(self.ends.values(), key=lambda end: end.signal is None, default=None)

    def exit_code(self) -> int | None:
        found = self._look()
        if len(found) < self._count:
            return None
        return max(1 if code is None else code for code in found.values())

    def has_ended(self, rank: int) -> bool:
        return rank in self._look()

    def end_of(self, rank: int) -> RankEnd:
        if rank in self._look():
            return super().end_of(rank)
        # Its agent found it gone, and has yet to tell of a code that it left.
        return RankEnd(rank, self._agents.places.node_of(rank), None, causes.UNSEEN)

    def abandon(self) -> None:
        """Leave it to the agents, as `kill` does."""

    def kill(self, *, nodes_are_lost: bool = False) -> None:
        """Do nothing: the agents have ended them."""
