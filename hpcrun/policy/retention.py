"""Which checkpoints stay: the newest, every K-th step's, and the best."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcrun.state.manifest import Manifest


@dataclass(frozen=True)
class Retention:
    """The spec's ``checkpoint.keep…`` and ``objective``.

    Attributes
    ----------
    newest
        How many of the newest stay, at least one.
    every
        Those whose step is a multiple of this stay; None: none for that reason.
    best
        How many of the best by the objective stay.
    metric, mode
        What is best: the metric's name, and ``min`` or ``max``.
    """

    newest: int = 2
    every: int | None = None
    best: int = 0
    metric: str = "loss"
    mode: str = "min"

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> Retention:
        """The retention of a resolved spec."""
        checkpoint, objective = spec.get("checkpoint") or {}, spec.get("objective") or {}
        return cls(
            newest=max(1, int(checkpoint.get("keep") or 2)),
            every=checkpoint.get("keep_every"),
            best=int(checkpoint.get("keep_best") or 0),
            metric=objective.get("metric") or "loss",
            mode=objective.get("mode") or "min",
        )

    def superfluous(self, complete: Sequence[tuple[Path, Manifest]]) -> list[Path]:
        """Those of the complete checkpoints, given newest first, that may go."""
        kept = {path for path, _ in complete[: self.newest]}
        if self.every:
            kept |= {path for path, found in complete if found.step % self.every == 0}
        rated = [
            (value if self.mode == "min" else -value, found.step, path)
            for path, found in complete
            if math.isfinite(value := found.metrics.get(self.metric, math.nan))
        ]
        # Of equals the oldest: evaluated more rarely than saved, the later ones carry its value.
        kept |= {path for _, _, path in sorted(rated)[: self.best]}
        return [path for path, _ in complete if path not in kept]
