"""When warm ranks are started, taken and sent away; see `hpcrun.run.warm`."""

from __future__ import annotations

import time
from collections.abc import Sequence

from hpcrun.layout import AttemptPaths
from hpcrun.plan import RunPlan
from hpcrun.run import pulse
from hpcrun.run.crew import Crew
from hpcrun.run.launchers import Launcher, Workers
from hpcrun.run.pulse import Pulse
from hpcrun.run.tell import say
from hpcrun.slurm_time import seconds


class Standby:
    """The warm ranks of one start of a job, as its supervisor sees them."""

    def __init__(self, launcher: Launcher, crew: Crew) -> None:
        self._launcher, self._crew = launcher, crew
        # The attempt that trains, and since when.
        self._training: tuple[int, float] | None = None
        self._workers: Workers | None = None
        # The attempt in which they were started, and on which nodes.
        self._attempt = 0
        self._nodes: tuple[str, ...] = ()

    def look(self, run: RunPlan, attempt: AttemptPaths, nodes: Sequence[str]) -> None:
        """Start them where that is due; called often while the ranks of an attempt are watched."""
        if self._attempt == attempt.number:
            return
        after = _after(run)
        pulses = self._crew.pulses
        if after is None or len(pulses) < run.world_size or not all(map(_trains, pulses.values())):
            return
        if self._training is None or self._training[0] != attempt.number:
            self._training = attempt.number, time.monotonic()
        if time.monotonic() - self._training[1] >= after:
            self._attempt, self._nodes = attempt.number, tuple(nodes)
            self._workers = self._launcher.start_workers(run, attempt, nodes, warm=True)

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
        self._crew.call(self._attempt, attempt.launch)
        say("warm ranks take over")
        return found

    def end(self) -> None:
        """Have them leave, and wait for that."""
        if self._workers is not None:
            self._crew.call(self._attempt, None)
            self._workers.kill(nodes_are_lost=bool(self._crew.lost))
            self._workers = None


def _trains(found: Pulse) -> bool:
    return found.step > 0 and found.phase != pulse.ENDING


def _after(run: RunPlan) -> float | None:
    """For how many seconds a run has to have trained; None where it has no warm ranks."""
    recovery = run.spec.get("recovery") or {}
    if run.entry.kind != "function" or not recovery.get("in_place", 0):
        return None
    return seconds(recovery.get("warm_after") or "")
