"""The loop over trials, in place of a run's own training, and the session of each trial.

All ranks hold the same records and the same times, so each decides the same by itself. What fails
ends the attempt; the next attempt finds the record of a trial that began and did not end.
"""

from __future__ import annotations

import dataclasses
import gc
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hpcrun.errors import EXIT_FAILED, BrokenFile, HpcrunError
from hpcrun.policy import causes
from hpcrun.run.health import progress
from hpcrun.run.protocol.launch import Launch
from hpcrun.run.protocol.output import tell
from hpcrun.run.rank import rng
from hpcrun.run.rank.collectives import Collectives
from hpcrun.run.session import Session
from hpcrun.state import ledger
from hpcrun.state.node_layout import ScratchPaths
from hpcrun.tools.perf.on_nodes import trial_log, trial_search
from hpcrun.tools.perf.on_nodes.trial_log import TrialCandidate, TrialPlan, TrialRecord
from hpcrun.tools.perf.on_nodes.trial_search import Trial

# Seconds of the measured steps so far -> whether one more is made; called by all ranks.
GoesOn = Callable[[list[float]], bool]
# Steps of all trials of this process, for the progress that the supervisor reads.
_STEPS = itertools.count(1)
Function = Callable[[Any], object]
_FAILED = " failed: "


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


def run_trials(launch: Launch, function: Function, session: Any) -> None:
    """Try the candidates of the run's block ``trials``, until the search is over.

    Raises HpcrunError for a trial that failed: these ranks end then, and the next attempt goes on.
    """
    if session.world_size > 1:
        import deepspeed

        deepspeed.init_distributed(dist_init_required=None)
    loop = _TrialLoop(launch, function, session)
    while (trial := loop.next_trial()) is not None:
        loop.run(trial)
    loop.record_skipped()


class _TrialLoop:
    def __init__(self, launch: Launch, function: Function, session: Any) -> None:
        self._launch, self._function, self._scratch = launch, function, session.scratch
        self._plan = TrialPlan.from_data(launch.fill(launch.spec[trial_log.KEY], launch.own_node))
        self._path = launch.run_paths.trials
        self._ranks = Collectives(session.rank, session.world_size)
        found: list[TrialRecord] = self._ranks.from_rank_0(self._so_far, "trials")
        self._began = found[0].time if found else time.time()
        self._records = [one for one in found if one.outcome != trial_log.BEGAN]
        self._tried: TrialCandidate | None = None

    def next_trial(self) -> Trial | None:
        """Return the next trial, the same on all ranks; None if the search is over."""
        is_asked = self._scratch is not None and ScratchPaths(self._scratch).stop.exists()
        # Clocks and flags differ between nodes: the first rank's count.
        elapsed, leaves = self._ranks.gather((time.time() - self._began, is_asked))[0]
        if leaves:
            raise HpcrunError("asked to stop between two trials")
        return trial_search.next_trial(self._plan, self._records, elapsed)

    def run(self, trial: Trial) -> None:
        candidate = self._plan.candidates[trial.candidate]
        if self._tried is not None and self._tried.parallel != candidate.parallel:
            raise HpcrunError(
                "the next trial divides the model between ranks in another way, which takes new "
                "ranks"
            )
        self._tried = candidate
        self._write(TrialRecord(trial.candidate, trial.round, trial_log.BEGAN, time.time()))
        import torch

        has_gpu = torch.cuda.is_available()
        if has_gpu:
            torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()

        def goes_on(steps: list[float]) -> bool:
            return trial_search.goes_on(self._plan, self._records, trial, steps)

        timer = threading.Timer(self._plan.limit, self._give_up)
        timer.daemon = True
        timer.start()
        trial_session = TrialSession(self._launch, candidate, goes_on)
        try:
            self._function(trial_session)
        except TrialOver:
            pass
        except Exception as error:
            if causes.of_exception(type(error).__name__, error) == causes.OUT_OF_MEMORY:
                raise
            # One of ours, which no rule on hopeless programs takes for the end of the run.
            what = f"{type(error).__name__}: {error}"
            raise HpcrunError(f"trial of candidate {trial.candidate}{_FAILED}{what}") from error
        finally:
            timer.cancel()
        steps, first = trial_session.measured, trial_session.first_step
        engine = trial_session.release()
        peak = torch.cuda.max_memory_allocated() if has_gpu else None
        if engine is not None and hasattr(engine, "destroy"):
            engine.destroy()
        del engine, trial_session
        gc.collect()
        if has_gpu:
            torch.cuda.empty_cache()
        peaks = self._ranks.gather(peak)
        if not steps:
            reason = "the program made fewer than two steps"
            self._end(trial, trial_log.FAILED, kind="unknown", reason=reason)
            return
        slower = trial.round == trial_log.SCREEN and trial_search.is_slower(
            self._plan, self._records, steps
        )
        self._end(
            trial,
            trial_log.SLOWER if slower else trial_log.MEASURED,
            steps=tuple(steps),
            start_seconds=None if first is None else first - began,
            peak_bytes=max(peaks) if has_gpu else None,
        )

    def record_skipped(self) -> None:
        """Write why candidates were not tried, once the search is over."""
        scores = trial_log.scores(self._records, len(self._plan.candidates))
        for place, score in enumerate(scores):
            if not score.records:
                reason = trial_search.reason_to_skip(self._plan, scores, place)
                self._end(
                    Trial(place, trial_log.SCREEN),
                    trial_log.SKIPPED,
                    reason=reason or "the time was over",
                )

    def _end(self, trial: Trial, outcome: str, **details: Any) -> None:
        record = TrialRecord(trial.candidate, trial.round, outcome, time.time(), **details)
        self._records.append(record)
        self._write(record)

    def _write(self, record: TrialRecord) -> None:
        if self._ranks.rank == 0:
            trial_log.append(self._path, record)

    def _give_up(self) -> None:
        tell(f"a trial took more than {self._plan.limit:.0f} s: this rank ends")
        os._exit(EXIT_FAILED)

    def _so_far(self) -> list[TrialRecord]:
        """Return the records, on rank 0; record the failure of a trial that did not end."""
        found = trial_log.read(self._path)
        if found and found[-1].outcome == trial_log.BEGAN:
            kind, reason = self._last_failure()
            last = found[-1]
            failed = TrialRecord(
                last.candidate, last.round, trial_log.FAILED, time.time(), kind=kind, reason=reason
            )
            trial_log.append(self._path, failed)
            found.append(failed)
        return found

    def _last_failure(self) -> tuple[str, str]:
        """Return the kind and the message of the cause of the last attempt's end."""
        try:
            attempts = ledger.read(self._launch.run_paths)
        except (OSError, BrokenFile):
            attempts = []
        before = (one for one in attempts if one.number == self._launch.attempt - 1)
        cause = next((one.cause for one in before), {})
        reason = str(cause.get("message") or "its ranks ended")
        return str(cause.get("kind") or "unknown"), reason.partition(_FAILED)[2] or reason
