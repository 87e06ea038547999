"""The checkpoints that are kept: the newest, every K-th step's, and the best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hpcrun.state.manifest import Manifest
from hpcrun.state.spec.blocks import SpecBlocks


@dataclass(frozen=True)
class Retention:
    """The rules of ``checkpoint.keep…`` and ``objective``."""

    newest: int = 2
    """The number of newest checkpoints that stay, at least one."""
    every: int | None = None
    """Checkpoints whose step is a multiple of this stay; None for no such rule."""
    best: int = 0
    """The number of best checkpoints, by the objective, that stay."""
    metric: str = "loss"
    mode: str = "min"
    """The objective: a metric's name, and ``min`` or ``max``."""

    @classmethod
    def of(cls, spec: SpecBlocks) -> Retention:
        """Return the retention of a resolved spec."""
        kept, objective = spec.checkpoint, spec.effective_objective
        return cls(kept.keep, kept.keep_every, kept.keep_best, objective.metric, objective.better)

    def of_completed(self) -> Retention:
        """Return what `hpcrun clean` keeps of a completed run: the newest and the best."""
        return replace(self, newest=1, every=None)

    def superfluous(self, complete: Sequence[tuple[Path, Manifest]]) -> list[Path]:
        """Return the checkpoints that may be deleted, of the complete ones given newest first."""
        kept = {path for path, _ in complete[: self.newest]}
        if self.every:
            kept |= {path for path, found in complete if found.step % self.every == 0}
        kept |= {*self.best_first(complete)[: self.best]}
        return [path for path, _ in complete if path not in kept]

    def best_first(self, complete: Sequence[tuple[Path, Manifest]]) -> list[Path]:
        """Return the checkpoints that have a value of the objective, the best first.

        Of equals the oldest comes first: evaluated more rarely than saved, the later ones carry its
        value.
        """
        rated = [
            (value if self.mode == "min" else -value, found.step, path)
            for path, found in complete
            if math.isfinite(value := found.metrics.get(self.metric, math.nan))
        ]
        return [path for _, _, path in sorted(rated)]
