"""The watch for hangs: asks the ranks for stacks and names the one to blame."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf
from typing import Any

from hpcrun.errors import HpcrunError
from hpcrun.run.health import stack_summary
from hpcrun.run.health.hang_detector import Hang, HangDetector
from hpcrun.run.health.program_hangs import ProgramHangDetector
from hpcrun.run.health.progress import GONE
from hpcrun.run.health.straggler import StragglerDetector
from hpcrun.run.job.agents import Agents
from hpcrun.run.protocol.output import say
from hpcrun.slurm.parse import parse_duration
from hpcrun.state import ledger
from hpcrun.state.plan import RunPlan

_LOOK_EVERY = 1.0
# A look at tens of thousands of ranks takes so long that there are fewer: they take this share of
# the time. More seconds between two would count as a pause of the job (`hang_detector.GAP`).
_LOOK_SHARE, _LOOK_AT_LEAST_EVERY = 0.02, 4.0


class RankVanished(Exception):
    """A rank has ended in mid-work, and its launcher took that for a good end."""


class Hung(HpcrunError):
    """The ranks make no progress any more.

    ``found`` has ``message``, ``rank`` and ``node`` of the one to blame (None if unknown), and
    where it waits for a build of torch's that ended, the ``lock``.
    """

    def __init__(self, found: dict[str, Any]) -> None:
        super().__init__(str(found["message"]))
        self.found = found


class HangWatch:
    """The ranks of one attempt, as their agents report on them; with roles those of the main one.

    ``record`` writes an event of the ledger, for a rank that holds up the others.
    """

    def __init__(
        self,
        run: RunPlan,
        agents: Agents,
        record: Callable[..., None],
        is_ending: Callable[[], bool] = lambda: False,
    ) -> None:
        self._run, self._agents, self._record = run, agents, record
        self._is_ending = is_ending
        self._stragglers = StragglerDetector()
        self._hang_after = parse_duration(run.recovery.hang_after or "") or 0.0
        self._hangs = HangDetector(self._hang_after, time.monotonic())
        self._programs = ProgramHangDetector(self._hang_after, time.monotonic())
        self._look_at = 0.0

    def turn(self) -> None:
        """Check once a second whether the ranks make progress; raise `Hung` or `RankVanished`."""
        now = time.monotonic()
        if now < self._look_at or self._is_ending():
            return
        self._look(now)
        took = time.monotonic() - now
        self._look_at = now + min(_LOOK_AT_LEAST_EVERY, max(_LOOK_EVERY, took / _LOOK_SHARE))

    def _look(self, now: float) -> None:
        ranks = self._agents.pulses
        self._hangs.update(ranks, now)
        if (slow := self._stragglers.update(ranks)) is not None:
            node = self._node(slow.rank)
            say(f"rank {slow.rank} on {node} holds up the others")
            self._record(ledger.STRAGGLER, **vars(slow), node=node)
        # A script or command may end when it likes.
        if self._run.entry.kind == "function" and self._hangs.vanished(now):
            raise RankVanished
        hang = self._hangs.hang(now) or self._hang_of_programs(now)
        if hang is not None:
            raise Hung(self._explain(hang))

    def _hang_of_programs(self, now: float) -> Hang | None:
        """Judge programs by what their nodes see, for as long as no rank has a session."""
        if any(one.state != GONE for one in self._agents.pulses.values()):
            self._programs = ProgramHangDetector(self._hang_after, now)
            return None
        # Servers wait by design.
        most = self._run.main_ranks if self._run.role_plans else inf
        programs = {rank: one for rank, one in self._agents.programs.items() if rank < most}
        self._programs.update(programs, self._agents.traffic, now)
        return self._programs.hang(now)

    def _explain(self, hang: Hang) -> dict[str, Any]:
        """Return the fields of `Hung`, after the ranks were asked for their stacks."""
        texts, locks = self._agents.stacks(), self._agents.locks
        steps = {rank: progress.step for rank, progress in self._agents.pulses.items()}
        everybody = range(max([self._run.world_size, *(rank + 1 for rank in steps)]))
        positions = {rank: stack_summary.position(texts.get(rank, "")) for rank in everybody}
        rank, where = hang.rank, ""
        if rank is None and locks:
            rank = min(locks)
        elif rank is None and (steps or any(positions.values())):
            rank = stack_summary.culprit(positions, steps)
        if steps or any(positions.values()):
            where = stack_summary.describe(positions, None if hang.rank is not None else rank)
        lock = locks.get(rank) if rank is not None else None
        held = lock and f"it waits for {lock}, which a build that was ended has left"
        limit = f"the limit is recovery.hang_after, {self._run.recovery.hang_after}"
        limit = f"{limit} (null for a program that waits by design)" if hang.may_be_meant else ""
        parts = [hang.message, where, held or limit]
        message = "; ".join(filter(None, parts))
        found = {"message": message, "rank": rank, "node": self._node(rank)}
        return {**found, "lock": lock} if lock else found

    def _node(self, rank: int | None) -> str | None:
        return None if rank is None else self._agents.places.node_of(rank)
