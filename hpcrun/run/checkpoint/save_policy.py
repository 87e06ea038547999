"""The saves of a session: when, where, and the event that records each."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from hpcrun.errors import CheckpointError
from hpcrun.run.checkpoint.node_copy import NodeCopies
from hpcrun.run.checkpoint.save import CheckpointSaver
from hpcrun.run.health import progress
from hpcrun.run.health.bad_steps import BadSteps
from hpcrun.run.health.progress import ProgressWriter
from hpcrun.run.health.replica_check import ReplicaCheck
from hpcrun.run.parallel import tensor_shards
from hpcrun.run.protocol.output import tell
from hpcrun.run.rank.collectives import Collectives
from hpcrun.run.rank.metrics import MetricsLog
from hpcrun.run.rank.session_writer import SessionLogWriter
from hpcrun.state.layout import checkpoint_name
from hpcrun.state.manifest import Manifest


class SavePolicy:
    """Saves what may be saved and logs the outcome; every method is collective.

    Saves are due ``every`` so many steps (None: never) and may be ``asynchronous``; ``node_copies``
    saves in the nodes' own storage (None: not wanted).
    """

    def __init__(
        self,
        saver: CheckpointSaver,
        ranks: Collectives,
        metrics: MetricsLog,
        log: SessionLogWriter,
        progress_writer: ProgressWriter,
        replicas: ReplicaCheck,
        bad_steps: BadSteps,
        *,
        every: int | None,
        asynchronous: bool,
        node_copies: NodeCopies | None,
    ) -> None:
        self._saver, self._ranks, self._metrics = saver, ranks, metrics
        self._log, self._progress, self._replicas = log, progress_writer, replicas
        self._bad_steps = bad_steps
        self._every, self._asynchronous, self._node_copies = every, asynchronous, node_copies
        self._blocked = 0.0
        self.step = 0
        """Finished steps of the newest checkpoint, as far as is known."""
        self.is_under_way = False
        """A save was begun and not left in the usual way: the other ranks may be in it still."""

    def save(self, engine: Any, step: int, states: Mapping[str, Any]) -> None:
        """Save, and wait until the checkpoint is complete and old ones are removed.

        Raises CheckpointError if some rank could not write.
        """
        self._save(engine, step, states)
        with self._progress.during(progress.SAVING):
            self._saver.wait_for_removals()

    def after_step(
        self, engine: Any, step: int, states: Mapping[str, Any], *, leaving: bool, last: bool
    ) -> None:
        """Save if due, or before the ranks leave; a failure is logged and not raised.

        After the ``last`` step, which `save` follows, nothing is saved on the nodes.
        """
        self._finish(0.0)
        try:
            if leaving or (self._every and step % int(self._every) == 0):
                self._save(engine, step, states, asynchronous=self._asynchronous and not leaving)
            elif not last:
                self._save_on_nodes(engine, step, states)
        except CheckpointError as error:
            self._fail(step, error, leaving=leaving)

    def _save_on_nodes(self, engine: Any, step: int, states: Mapping[str, Any]) -> None:
        copies = self._node_copies
        if copies is None or not (copies.is_due(engine, step) and self._may_save(engine, step)):
            return
        began = time.perf_counter()
        with self._progress.during(progress.SAVING):
            saved = copies.save(engine, step, states)
        seconds = time.perf_counter() - began
        self._log.write("saved_nearby", step=step, seconds=seconds, bytes=saved)

    def wait(self, patience: float | None = None) -> None:
        """Wait for an asynchronous save, for at most ``patience`` seconds, and log it."""
        with self._progress.during(progress.SAVING):
            self._finish(patience)

    def _save(
        self, engine: Any, step: int, states: Mapping[str, Any], *, asynchronous: bool = False
    ) -> None:
        self.wait()
        if self.step == step or not self._may_save(engine, step):
            return
        began = time.perf_counter()
        saved: Manifest | None = None
        self.is_under_way = True
        with self._progress.during(progress.SAVING):
            try:
                if asynchronous:
                    self._saver.save_async(engine, step, states, self._metrics.latest)
                else:
                    saved = self._saver.save(engine, step, states, self._metrics.latest)
            except CheckpointError:  # on all ranks alike
                self.is_under_way = False
                raise
        self.step, self.is_under_way = step, False
        seconds = time.perf_counter() - began
        if saved is None:
            self._blocked = seconds
        else:
            self._record(saved, seconds, seconds)

    def _finish(self, patience: float | None) -> None:
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
        wrong = self._bad_steps.reason
        if wrong is None and not _has_finite_weights(engine):
            wrong = "a weight is not finite"
        self._ranks.doing = f"about to save step {step}"
        if (first := self._ranks.first(wrong)) is not None:
            self._log.write("save_skipped", step=step, message=first[1])
            return False
        # So that all ranks agreed at whatever a run goes on from.
        self._replicas.compare(engine, step)
        return True

    def _record(self, saved: Manifest, seconds: float, blocked: float) -> None:
        self._log.write(
            "saved",
            step=saved.step,
            checkpoint=checkpoint_name(saved.step, saved.attempt),
            seconds=seconds,
            blocked=blocked,
            bytes=saved.bytes,
        )

    def _fail(self, step: int, error: CheckpointError, *, leaving: bool) -> None:
        self._log.write("save_failed", step=step, message=str(error))
        if self._ranks.rank == 0:
            what = "it leaves without a checkpoint" if leaving else "training goes on"
            tell(f"{error}; {what}")


def _has_finite_weights(engine: Any) -> bool:
    """Check the weights that this rank holds (not those of ZeRO 3)."""
    import torch

    module = getattr(engine, "module", None)
    return module is None or all(
        bool(torch.isfinite(tensor_shards.own_part(parameter)).all())
        for parameter in module.parameters()
        if not hasattr(parameter, "ds_id")
    )
