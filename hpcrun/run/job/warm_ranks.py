"""Warm ranks, started, taken and dismissed; see `hpcrun.run.rank.warm_up`."""

from __future__ import annotations

import time
from collections.abc import Sequence

from hpcrun.policy import causes
from hpcrun.run.health import progress
from hpcrun.run.job.agents import Agents
from hpcrun.run.job.launchers import Launcher
from hpcrun.run.job.rank_places import Workers
from hpcrun.run.job.stop_request import StopRequest
from hpcrun.run.protocol.output import say
from hpcrun.run.rank import warm_up
from hpcrun.state import ledger
from hpcrun.state.layout import AttemptPaths
from hpcrun.state.plan import RunPlan


class WarmRanks:
    """The warm ranks of one start of a job, seen from its supervisor."""

    def __init__(self, launcher: Launcher, agents: Agents) -> None:
        self._launcher, self._agents = launcher, agents
        # The attempt that trains, and since when.
        self._training: tuple[int, float] | None = None
        self._workers: Workers | None = None
        # The attempt in which they were started, and on which nodes.
        self._attempt = 0
        self._nodes: tuple[str, ...] = ()

    def take(
        self, run: RunPlan, attempt: AttemptPaths, nodes: Sequence[str], stop_request: StopRequest
    ) -> Workers | None:
        """Return the warm ranks as those of an attempt that is prepared; None if it has none.

        Warm ranks that do not fit it leave. From now on each turn is for this attempt.
        """
        self._current = run, attempt, tuple(nodes), stop_request
        found = self._workers
        fits = tuple(nodes) == self._nodes and len(nodes) * run.ranks_per_node == run.world_size
        if found is None or not fits or found.exit_code() is not None or found.ends:
            self.end()
            return None
        self._workers = None
        found.become(attempt)
        self._agents.call(self._attempt, attempt.number)
        say("warm ranks take over")
        return found

    def turn(self) -> None:
        """Start warm ranks if they are due; end them where no restart will follow."""
        run, attempt, nodes, stop_request = self._current
        if leaving := stop_request.reason is not None:
            self.end()
        if leaving or self._attempt == attempt.number:
            return
        due, ranks = warm_up.after(run), self._agents.pulses
        if due is None or len(ranks) < run.world_size:
            return
        known = self._training
        began = known[1] if known is not None and known[0] == attempt.number else None
        if began is not None and time.monotonic() - began < due:
            return
        if not all(one.step > 0 and one.phase != progress.ENDING for one in ranks.values()):
            return
        if began is None:
            self._training = attempt.number, time.monotonic()
        else:
            self._attempt, self._nodes = attempt.number, nodes
            # Warm ranks need memory: not in a run that was killed for the lack of it before.
            if any(one.kind == causes.OUT_OF_MEMORY for one in ledger.read(attempt.run)):
                return
            try:
                self._workers = self._launcher.start_workers(run, attempt, nodes, warm=True)
            except (OSError, RuntimeError) as error:
                say(f"no warm ranks wait for the next attempt: {error}")

    def end(self) -> None:
        """Have the warm ranks leave, and do not wait for that."""
        if self._workers is not None:
            self._agents.call(self._attempt, None)
            self._workers.abandon()
            self._workers = None
