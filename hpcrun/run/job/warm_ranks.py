"""When warm ranks are started, taken and sent away; see `hpcrun.run.rank.warm_up`."""

from __future__ import annotations

import time
from collections.abc import Sequence

from hpcrun.policy import causes
from hpcrun.run.health import progress
from hpcrun.run.health.progress import RankProgress
from hpcrun.run.job.agents import Agents
from hpcrun.run.job.launchers import Launcher, Workers
from hpcrun.run.protocol.output import say
from hpcrun.run.rank import warm_up
from hpcrun.state import ledger
from hpcrun.state.layout import AttemptPaths, RunPaths
from hpcrun.state.plan import RunPlan


class WarmRanks:
    """The warm ranks of one start of a job, as its supervisor sees them."""

    def __init__(self, launcher: Launcher, agents: Agents) -> None:
        self._launcher, self._agents = launcher, agents
        # The attempt that trains, and since when.
        self._training: tuple[int, float] | None = None
        self._workers: Workers | None = None
        # The attempt in which they were started, and on which nodes.
        self._attempt = 0
        self._nodes: tuple[str, ...] = ()

    def look(
        self, run: RunPlan, attempt: AttemptPaths, nodes: Sequence[str], *, leaving: bool
    ) -> None:
        """Start them where that is due; called often while the ranks of an attempt are watched.

        Parameters
        ----------
        leaving
            The ranks were asked to stop: no restart follows.
        """
        if leaving:
            self.end()
        if leaving or self._attempt == attempt.number:
            return
        due = warm_up.after(run)
        pulses = self._agents.pulses
        if due is None or len(pulses) < run.world_size or not all(map(_trains, pulses.values())):
            return
        if self._training is None or self._training[0] != attempt.number:
            self._training = attempt.number, time.monotonic()
        if time.monotonic() - self._training[1] >= due:
            self._attempt, self._nodes = attempt.number, tuple(nodes)
            if _was_short_of_memory(attempt):
                return
            try:
                self._workers = self._launcher.start_workers(run, attempt, nodes, warm=True)
            except (OSError, RuntimeError) as error:
                say(f"no warm ranks wait for the next attempt: {error}")

    def take(self, run: RunPlan, attempt: AttemptPaths, nodes: Sequence[str]) -> Workers | None:
        """Have them be the ranks of an attempt that is prepared; None where there are none for it.

        Those that are of no use leave.
        """
        found = self._workers
        fits = tuple(nodes) == self._nodes and len(nodes) * run.ranks_per_node == run.world_size
        if found is None or not fits or found.exit_code() is not None or found.ends():
            self.end()
            return None
        self._workers = None
        found.become(attempt)
        self._agents.call(self._attempt, attempt.launch)
        say("warm ranks take over")
        return found

    def end(self) -> None:
        """Have them leave, without waiting for that."""
        if self._workers is not None:
            self._agents.call(self._attempt, None)
            self._workers.abandon()
            self._workers = None


def _was_short_of_memory(attempt: AttemptPaths) -> bool:
    """Whether the run was killed for that before: warm ranks need some too."""
    attempts = ledger.read(RunPaths(attempt.directory.parents[1]))
    return any(one.kind == causes.OUT_OF_MEMORY for one in attempts)


def _trains(found: RankProgress) -> bool:
    return found.step > 0 and found.phase != progress.ENDING
