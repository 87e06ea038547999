"""The session of a program in a trial: it measures steps, and restores, saves and logs nothing."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hpcrun.run.health import progress
from hpcrun.run.protocol.launch import Launch
from hpcrun.run.rank import rng
from hpcrun.run.session import Session
from hpcrun.tools.perf.on_nodes.trial_log import TrialCandidate

# Seconds of the measured steps so far -> whether one more is made; called by all ranks.
GoesOn = Callable[[list[float]], bool]
# Steps of all trials of this process, for the progress that the supervisor reads.
_STEPS = itertools.count(1)


class TrialOver(BaseException):
    """Leaves the program once its trial has all the steps that it needs."""


class TrialSession(Session):
    """A session whose configuration is a candidate's, and that ends the program by `TrialOver`.

    Attributes
    ----------
    measured
        Seconds of each step but the first, of the slowest rank.
    first_step
        The time at which the first step was over, by ``time.perf_counter``; None before.
    """

    def __init__(self, launch: Launch, candidate: TrialCandidate, goes_on: GoesOn) -> None:
        spec = {**launch.spec, "config": candidate.config, "deepspeed": candidate.deepspeed}
        if candidate.parallel is not None:
            spec["parallel"] = candidate.parallel
        super().__init__(dataclasses.replace(launch, spec=spec))
        self._metrics, self._saves, self._store = None, None, None
        self._goes_on = goes_on
        self.measured: list[float] = []
        self.first_step: float | None = None
        self._began = time.perf_counter()

    def restore(self, engine: Any, loader: Any = None, **states: Any) -> int:
        """Restore nothing: a trial begins with the weights that the program made."""
        self._engine = engine
        self.restored_step = self._last_step = 0
        self._began = time.perf_counter()
        return 0

    def steps(self, total: int) -> Iterator[int]:
        """Yield steps from 1 on, and measure each, until the trial is over."""
        for step in range(1, total + 1):
            rng.seed_all(rng.derive(self.seed, step, self.rank))
            self._began = time.perf_counter()
            yield step
            self._after(step)
        raise TrialOver

    def step(self, metrics: Mapping[str, Any] | None = None) -> None:
        """Measure a step of a loop of the program's own."""
        taken = int(self._engine.global_steps)
        if taken != self._last_step:
            self._after(taken)
            self._began = time.perf_counter()

    def release(self) -> Any:
        """Return the engine, and hold it no longer; None if the program made none."""
        engine, self._engine = self._engine, None
        return engine

    def _after(self, step: int) -> None:
        import torch

        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        seconds = time.perf_counter() - self._began
        self._last_step = step
        self._progress.write(progress.STEPPING, next(_STEPS))
        slowest = max(self._ranks.gather(seconds))
        if self.first_step is None:
            self.first_step = time.perf_counter()
        else:
            self.measured.append(slowest)
        if not self._goes_on(self.measured):
            raise TrialOver
