"""The saves of a session: when nothing may be saved, and what is put on record of each."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from hpcrun.errors import CheckpointError
from hpcrun.run.checkpoint import weights
from hpcrun.run.checkpoint.node_copy import Nearby
from hpcrun.run.checkpoint.save import Saver
from hpcrun.run.health import progress
from hpcrun.run.health.progress import ProgressWriter
from hpcrun.run.protocol.output import tell
from hpcrun.run.rank.collectives import Together
from hpcrun.run.rank.metrics import MetricsLog
from hpcrun.run.rank.session_writer import Diary
from hpcrun.state.manifest import Manifest


class Saves:
    """What a session has saved; every method is collective.

    Parameters
    ----------
    behind
        Whether periodic saves are written behind the training.
    nearby
        What saves in the nodes' own storage; None where that is not wanted.

    Attributes
    ----------
    step
        Finished steps of the newest checkpoint, as far as is known.
    """

    def __init__(
        self,
        saver: Saver,
        together: Together,
        metrics: MetricsLog,
        diary: Diary,
        heart: ProgressWriter,
        *,
        behind: bool,
        nearby: Nearby | None,
    ) -> None:
        self._nearby = nearby
        self._saver, self._together, self._metrics = saver, together, metrics
        self._diary, self._heart, self._behind = diary, heart, behind
        self._blocked = 0.0
        self.step = 0

    def save(self, engine: Any, step: int, states: Mapping[str, Any]) -> None:
        """Save, and wait until the checkpoint is complete and old ones are gone.

        Raises
        ------
        CheckpointError
            Some rank could not write.
        """
        self._save(engine, step, states)
        with self._heart.during(progress.SAVING):
            self._saver.wait_for_removals()

    def save_on_the_way(
        self, engine: Any, step: int, states: Mapping[str, Any], *, leaving: bool
    ) -> None:
        """A periodic save, or one before the ranks leave; a failure is told, and ends nothing."""
        try:
            if self._behind and not leaving:
                self._save_behind(engine, step, states)
            else:
                self._save(engine, step, states)
        except CheckpointError as error:
            self._fail(step, error, leaving=leaving)

    def save_nearby(self, engine: Any, step: int, states: Mapping[str, Any]) -> None:
        """Save in the nodes' own storage where that is due; a failure is told, and ends nothing."""
        if self._nearby is None or not self._nearby.is_due(engine, step):
            return
        if not self._may_save(engine, step):
            return
        began = time.perf_counter()
        try:
            with self._heart.during(progress.SAVING):
                saved = self._nearby.save(engine, step, states)
        except CheckpointError as error:
            self._fail(step, error, leaving=False)
            return
        seconds = time.perf_counter() - began
        self._diary.write("saved_nearby", step=step, seconds=seconds, bytes=saved)

    def look(self) -> None:
        """Put on record how a save behind the training has ended, if it has."""
        self._hear(0.0)

    def settle(self, patience: float | None = None) -> None:
        """Wait for a save behind the training, for so many seconds at most."""
        with self._heart.during(progress.SAVING):
            self._hear(patience)

    def _save(self, engine: Any, step: int, states: Mapping[str, Any]) -> None:
        self.settle()
        if self.step == step or not self._may_save(engine, step):
            return
        began = time.perf_counter()
        with self._heart.during(progress.SAVING):
            saved = self._saver.save(engine, step, states, self._metrics.latest)
        self.step = step
        seconds = time.perf_counter() - began
        self._record(saved, seconds, seconds)

    def _save_behind(self, engine: Any, step: int, states: Mapping[str, Any]) -> None:
        self.settle()
        if self.step == step or not self._may_save(engine, step):
            return
        began = time.perf_counter()
        with self._heart.during(progress.SAVING):
            self._saver.save_behind(engine, step, states, self._metrics.latest)
        self.step = step
        self._blocked = time.perf_counter() - began

    def _hear(self, patience: float | None) -> None:
        began = time.perf_counter()
        outcome = self._saver.outcome(patience=patience)
        if outcome is None:
            return
        self._blocked += time.perf_counter() - began
        if outcome.manifest is not None:
            self._record(outcome.manifest, outcome.seconds, self._blocked)
        elif outcome.error is not None:
            if self.step == outcome.step:
                self.step = 0
            self._fail(outcome.step, outcome.error, leaving=False)

    def _may_save(self, engine: Any, step: int) -> bool:
        self._metrics.flush()
        wrong = "the loss is not finite" if self._metrics.not_finite else None
        if wrong is None and not weights.are_finite(engine):
            wrong = "a weight is not finite"
        if any(said := self._together.gather(wrong)):
            self._diary.write("save_skipped", step=step, message=next(filter(None, said)))
            return False
        return True

    def _record(self, saved: Manifest, seconds: float, blocked: float) -> None:
        self._diary.write(
            "saved",
            step=saved.step,
            checkpoint=f"step-{saved.step:08d}-a{saved.attempt}",
            seconds=seconds,
            blocked=blocked,
            bytes=saved.bytes,
        )

    def _fail(self, step: int, error: CheckpointError, *, leaving: bool) -> None:
        self._diary.write("save_failed", step=step, message=str(error))
        if self._together.rank == 0:
            what = "it leaves without a checkpoint" if leaving else "training goes on"
            tell(f"{error}; {what}")
