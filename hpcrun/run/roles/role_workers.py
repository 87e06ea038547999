"""The processes of a run with roles: started, watched, started anew and ended by each's policy."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any

from hpcrun.errors import EXIT_SAVED, HpcrunError
from hpcrun.run.job.agents import Agents
from hpcrun.run.job.launchers import Launcher
from hpcrun.run.job.rank_places import RankEnd, Workers
from hpcrun.run.protocol.output import say
from hpcrun.run.roles import role_policy
from hpcrun.run.roles.role_launch import RoleLaunches
from hpcrun.run.roles.role_policy import END_RUN, GO_ON, LEAVE, RESTART_ROLE, RoleState
from hpcrun.state import files, ledger
from hpcrun.state.layout import AttemptPaths
from hpcrun.state.plan import RunPlan
from hpcrun.state.role_plan import IGNORE, RANK, STOP, RolePlan
from hpcrun.text import listed

# Seconds after SIGKILL in which a rank ends, before its launcher is ended.
_KILL_TAKES = 5.0
# Seconds between the two signals where the job itself is being ended.
_HURRY = 3.0


class _Unit:
    """Ranks of a role that are started together."""

    def __init__(self, role: RolePlan, ranks: range) -> None:
        self.role, self.ranks = role, ranks
        self.workers: Workers | None = None
        self.starts_at: float | None = 0.0
        """When they are to be started, in monotonic time; None if they run, or are over."""
        self.code: int | None = None
        """Their exit code, once they are over."""
        self.ends_at: float | None = None
        """When they are killed, once they were asked to end."""
        self.is_killed = False

    @property
    def is_over(self) -> bool:
        return self.workers is None and self.starts_at is None


class RoleWorkers(Workers):
    """The ranks of all roles of an attempt.

    ``record`` writes an event of the ledger; ``stopping`` tells whether the ranks were asked to
    save and leave.
    """

    def __init__(
        self,
        run: RunPlan,
        attempt: AttemptPaths,
        launcher: Launcher,
        launches: RoleLaunches,
        agents: Agents,
        record: Callable[..., None],
        stopping: Callable[[], bool],
    ) -> None:
        super().__init__(attempt)
        self._run, self._launcher, self._launches = run, launcher, launches
        self._agents, self._record, self._stopping = agents, record, stopping
        self._fatal: RankEnd | None = None
        self._restarts = {role.name: 0 for role in run.role_plans}
        self._asked: set[str] = set()
        self._cut_short = False
        self._units: list[_Unit] = []
        for role in run.role_plans:
            together = role.is_main and role.restart not in (RANK, IGNORE)
            parts = [role.ranks] if together else [range(rank, rank + 1) for rank in role.ranks]
            self._units += [_Unit(role, ranks) for ranks in parts]
        try:
            self._start_due()
        except BaseException:
            self.abandon()
            raise

    def failure(self) -> RankEnd | None:
        return self._fatal

    def exit_code(self) -> int | None:
        """Return None while any role goes on that is to be waited for; see `Workers`.

        Raises HpcrunError if Slurm starts no rank.
        """
        for unit in self._units:
            if unit.workers is not None:
                self._look(unit, unit.workers)
        self._start_due()
        self.is_ending = self._main_is_over
        if self.is_ending:
            self._end_others()
        for unit in self._units:
            self._kill_late(unit)
        if not self.is_ending or not all(unit.is_over for unit in self._units):
            return None
        code = max(unit.code or 0 for unit in self._units if unit.role.is_main)
        return EXIT_SAVED if code == 0 and self._cut_short else code

    def outlives(self, nodes: Collection[str]) -> bool:
        """Move the ranks of lost nodes, or go on without them, where each role's policy allows."""
        if self._run.own_parts:
            # Slurm requeues a part that lost its last node without the others.
            return False
        lost = {*self.outlived, *nodes}
        others = len(lost) < self._run.nodes
        hit = [
            unit
            for unit in self._units
            if not unit.is_over and any(self._launches.node_of(r) in nodes for r in unit.ranks)
        ]
        roles = {unit.role.name: unit.role for unit in hit}
        decided = {
            name: role_policy.after_lost_node(role, self._state(role), others=others).action
            for name, role in roles.items()
        }
        if END_RUN in decided.values():
            return False
        self.outlived = lost
        for unit in hit:
            if unit.workers is not None:
                unit.workers.abandon()
            unit.workers, unit.starts_at = None, None
        for name, role in roles.items():
            own = [unit for unit in hit if unit.role is role]
            where = listed(sorted(nodes), 4)
            ranks = [rank for unit in own for rank in unit.ranks]
            if decided[name] in (GO_ON, LEAVE):
                if decided[name] == GO_ON:
                    self._tell(role, ranks, "ignored", f"node {where} was lost")
                continue
            for rank, node in self._launches.move(ranks, self.outlived).items():
                self._agents.places.move(rank, node)
            self._start_anew(role, own, decided[name], f"node {where} was lost", "moved")
        return True

    def abandon(self) -> None:
        for unit in self._units:
            if unit.workers is not None:
                unit.workers.abandon()

    def kill(self, *, nodes_are_lost: bool = False) -> None:
        for unit in self._units:
            if unit.workers is not None:
                unit.workers.kill(nodes_are_lost=nodes_are_lost)

    def _start_due(self) -> None:
        for unit in self._units:
            if unit.starts_at is not None and unit.workers is None:
                if self._stopping() or unit.role.name in self._asked:
                    unit.starts_at, unit.code = None, unit.code or EXIT_SAVED
                elif time.monotonic() >= unit.starts_at:
                    self._start(unit)

    def _start(self, unit: _Unit) -> None:
        unit.starts_at, unit.ends_at, unit.is_killed = None, None, False
        launch = self._launches.of(unit.role).file
        places = {rank: self._launches.node_of(rank) for rank in unit.ranks}
        unit.workers = self._launcher.start_role(unit.role, self._attempt, launch, places)

    def _look(self, unit: _Unit, workers: Workers) -> None:
        """Act on the end of a unit's ranks; on the first bad one where they are several."""
        code = workers.exit_code()
        if code is None and (unit.ends_at is not None or not workers.ends):
            return
        if code and not workers.ends and (why := workers.refusal()) is not None:
            raise HpcrunError(f"Slurm does not start the ranks: {why}")
        found = workers.failure()
        if found is None and code:
            rank = unit.ranks[0]
            found = RankEnd(rank, self._launches.node_of(rank), code, None)
        if code is not None:
            unit.workers, unit.code = None, code
        if found is not None and unit.starts_at is None:
            self._after(unit, found, workers)

    def _after(self, unit: _Unit, end: RankEnd, workers: Workers) -> None:
        role, saved = unit.role, end.exit_code == EXIT_SAVED
        response = role_policy.after_bad_end(role, self._state(role), saved=saved)
        if response.action == END_RUN:
            if response.why:
                say(f"{role.shown(end.rank)} (rank {end.rank}) was {response.why}")
            self.ends.update({**workers.ends, end.rank: end})
            self._fatal = self._fatal or end
            return
        self._forget(unit.ranks)
        if response.action == LEAVE:
            return
        how = f"ended by {end.signal}" if end.signal else f"ended with exit code {end.exit_code}"
        if response.action == GO_ON:
            # What the rank had started.
            self._signal(unit, "SIGKILL")
            self._tell(role, unit.ranks, "ignored", how, end)
            return
        self._start_anew(role, [unit], response.action, how, "restarted", end)

    def _start_anew(
        self,
        role: RolePlan,
        units: list[_Unit],
        action: str,
        why: str,
        what: str,
        end: RankEnd | None = None,
    ) -> None:
        """Start units once their delay is over, with their whole role's if asked."""
        if action == RESTART_ROLE:
            units = [unit for unit in self._units if unit.role is role]
        wait = role_policy.delay(self._restarts[role.name])
        self._restarts[role.name] += 1
        hurt = units[0].ranks if end is None else [end.rank]
        ranks = [rank for unit in units for rank in unit.ranks]
        self._tell(role, ranks, what, f"{role.shown(hurt[0])} {why}" if end else why, end)
        for unit in units:
            unit.starts_at = time.monotonic() + wait
            unit.code = None
            if unit.workers is not None:
                self._signal(unit, "SIGKILL")

    def _tell(
        self,
        role: RolePlan,
        ranks: Iterable[int],
        what: str,
        why: str,
        end: RankEnd | None = None,
    ) -> None:
        number, ranks = self._restarts[role.name], [*ranks]
        node = self._launches.node_of(ranks[0])
        say(f"role {role.name}: {why}; {what}, on {node}")
        details: dict[str, Any] = {"role": role.name, "what": what, "ranks": ranks, "why": why}
        if end is not None:
            details |= {"rank": end.rank, "exit_code": end.exit_code, "signal": end.signal}
        self._record(ledger.ROLE, **details, node=node, number=number)

    def _end_others(self) -> None:
        """Stop the other roles, as the run is done or its main role has left."""
        is_done = self._fatal is None and not self._stopping()
        for role in self._run.role_plans[1:]:
            ends = role.at_end == STOP or not is_done
            if role.name in self._asked or not ends:
                continue
            units = [unit for unit in self._units if unit.role is role and not unit.is_over]
            self._cut_short |= role.at_end != STOP and bool(units)
            self._asked.add(role.name)
            for unit in units:
                grace = role.stop_grace if is_done else min(role.stop_grace, _HURRY)
                self._signal(unit, "SIGTERM")
                unit.ends_at = time.monotonic() + grace

    def _kill_late(self, unit: _Unit) -> None:
        """End what outlives its grace: by its agent, then by its launcher."""
        if unit.workers is None or unit.ends_at is None or time.monotonic() < unit.ends_at:
            return
        if unit.is_killed:
            unit.workers.abandon()
            unit.ends_at = time.monotonic() + _KILL_TAKES
        else:
            self._signal(unit, "SIGKILL")

    def _signal(self, unit: _Unit, name: str) -> None:
        by_node: dict[str, list[int]] = {}
        for rank in unit.ranks:
            by_node.setdefault(self._launches.node_of(rank), []).append(rank)
        for node, ranks in by_node.items():
            self._agents.send(node, {"type": "end", "ranks": ranks, "signal": name})
        if name == "SIGKILL":
            unit.is_killed, unit.ends_at = True, time.monotonic() + _KILL_TAKES

    def _forget(self, ranks: Iterable[int]) -> None:
        """Remove the records of ends that were dealt with, so that none is the attempt's."""
        for rank in ranks:
            self.ends.pop(rank, None)
            path = self._attempt.exit_record(rank)
            with contextlib.suppress(OSError):
                files.patiently(partial(path.unlink, missing_ok=True), say, path.name)

    def _state(self, role: RolePlan) -> RoleState:
        return RoleState(
            restarts=self._restarts[role.name],
            stopping=self._stopping(),
            main_is_over=self._main_is_over,
            asked=role.name in self._asked,
        )

    @property
    def _main_is_over(self) -> bool:
        return all(unit.is_over for unit in self._units if unit.role.is_main)
