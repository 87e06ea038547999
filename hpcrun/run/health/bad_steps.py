"""Finds the step with which a training goes bad: a loss that is not finite, or a spike.

The batch of that step is what a run may leave out from then on (``recovery.on_nan``, ``on_spike``).
A gradient that is not finite spoils the weights, so that the loss shows it one step later: the
batch to blame is then that of the gradient's step, not of the loss's.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpcrun.errors import HpcrunError, LossSpikeError, NonFiniteLossError, UsageError
from hpcrun.policy import causes
from hpcrun.policy.next_attempt import SKIP
from hpcrun.run.parallel.tensor_shards import is_divided
from hpcrun.run.profile.engine_metrics import GRADIENT_NORM

if TYPE_CHECKING:
    from hpcrun.run.rank.metrics import MetricsLog
    from hpcrun.run.rank.rank_view import RankView
    from hpcrun.state.spec.recovery_block import Recovery

LOSS = "loss"
STATE = "hpcrun_usual_values"
"""Its name among a rank's states in a checkpoint."""
# Finite steps whose median is the usual, and how many of them there have to be.
SPIKE_WINDOW, LEAST_STEPS = 50, 20
# Only here and in no file: a norm of the weights, of engines that tell none of the gradients.
_WEIGHTS = "(weights)"
# Seconds that other ranks leave rank 0 to record what all have seen.
_RECORDED = 2.0


class BadSteps:
    """Judges the steps of an attempt by their metrics, as these become known.

    What a spike is measured by goes with each checkpoint, so that a step is judged alike when it is
    replayed. All else is empty where something may be saved: steps are judged up to there before.

    Parameters
    ----------
    policy
        ``recovery`` of the spec.
    watched
        The metrics that have to be finite.
    view
        Where samples come from, and where what is found is recorded.
    """

    def __init__(self, policy: Recovery, watched: frozenset[str], view: RankView) -> None:
        self._policy, self._watched, self._view = policy, watched, view
        self._not_finite: list[int] = []
        self._bad_gradients: list[int] = []
        self._spike: tuple[int, str] | None = None
        # By step: one that is saved in the body of the loop is judged then, and after it once more.
        self._usual: dict[str, dict[int, float]] = {LOSS: {}, GRADIENT_NORM: {}}
        self._not_applied: set[int] = set()
        self._answers = policy.on_nan is not None or policy.on_spike is not None
        self._skips = SKIP in (policy.on_nan, policy.on_spike)

    @property
    def reason(self) -> str | None:
        """Why nothing may be saved now; None if all is well, as far as is known."""
        if self._not_finite:
            return "the loss is not finite"
        if self._spike is not None:
            return self._spike[1]
        return "the gradients are not finite" if self._answers and self._bad_gradients else None

    def judge(self, step: int, values: dict[str, float]) -> dict[str, float]:
        """Take in a step's metrics, those of one after the other; return the ones to log.

        DeepSpeed tells a norm of -1 where it is not finite. Gradients of a step that it left out
        by itself (an overflow of fp16) spoiled nothing.
        """
        weights, norm = values.pop(_WEIGHTS, None), values.get(GRADIENT_NORM)
        is_applied = step not in self._not_applied
        self._not_applied.discard(step)
        if norm is not None and (norm < 0 or not is_applied):
            del values[GRADIENT_NORM]
            norm = math.nan
        if is_applied:
            _extend(self._bad_gradients, step, (one for one in (norm, weights) if one is not None))
        _extend(self._not_finite, step, (values[one] for one in self._watched if one in values))
        if self._policy.on_spike is not None and self._spike is None:
            self._spike = self._find_spike(step, values)
        return values

    def check_source(self, *, has_own_loader: bool) -> None:
        """Raise UsageError if a batch is to be left out of samples that are not the session's."""
        if self._skips and has_own_loader:
            raise UsageError(
                "recovery.on_nan or on_spike is skip, and the samples are not those of "
                "session.loader, session.micro_batches or session.train_batch: no batch of theirs "
                "can be left out",
                hint="take them from one of these, or let the run stop",
            )

    def after_step(self, engine: Any, step: int, metrics: MetricsLog) -> None:
        """Log what is to be judged of a step (`note`), and end the attempt if it went bad.

        Raises
        ------
        NonFiniteLossError, LossSpikeError
            As ``recovery.non_finite_steps`` and ``recovery.on_spike`` say.
        UsageError
            A batch is to be left out if need be, and the samples are not the session's.
        """
        self.check_source(has_own_loader=not self._view.gave_samples)
        self.note(engine, step, metrics)
        self.check()

    def note(self, engine: Any, step: int, metrics: MetricsLog) -> None:
        """Log what is to be judged of a step that the engine has taken."""
        was_applied = getattr(engine, "was_step_applied", None)
        if was_applied is not None and not was_applied():
            self._not_applied.add(step)
        norm = getattr(engine, "get_global_grad_norm", None)
        if self._skips and self._view.rank == 0 and (norm is None or norm() is None):
            metrics.log(_weights(engine), step, spare=True)

    def check(self, most: int | None = None) -> None:
        """End the attempt if it went bad; with ``most``, after so many steps that are not finite.

        Raises as `after_step`.
        """
        if self._spike is not None:
            step, said = self._spike
            error: HpcrunError = LossSpikeError(
                said, hint="recovery.spike is the limit; `hpcrun why` says what to do"
            )
            self._end(step, causes.LOSS_SPIKE, error)
        steps = self._policy.non_finite_steps
        steps = steps if most is None else min(steps, most)
        if steps and len(self._not_finite) >= steps:
            first = self._not_finite[0]
            begin = min([first, *self._bad_gradients[:1]])
            said = f"the loss has not been finite since step {first}"
            if begin < first:
                said += f", after a gradient at step {begin} that was not"
            error = NonFiniteLossError(
                said,
                hint="lower the learning rate, clip gradients, or use bf16 in place of fp16; the "
                "checkpoints before that step are kept",
            )
            self._end(begin, causes.NON_FINITE, error)

    def _end(self, step: int, kind: str, error: HpcrunError) -> None:
        if self._view.rank == 0:
            self._view.record_bad_step(step, kind, error.message)
        elif self._answers:
            # The ranks are ended once the first has failed.
            time.sleep(_RECORDED)
        raise error

    def state_dict(self) -> dict[str, dict[int, float]]:
        return {name: dict(usual) for name, usual in self._usual.items()}

    def load_state_dict(self, state: Mapping[str, Mapping[int, float]]) -> None:
        self._usual = {name: dict(state[name]) for name in self._usual}

    def load_state_dicts(self, states: Sequence[Mapping[str, Mapping[int, float]]]) -> None:
        """Take rank 0's of those that another number of ranks saved: it alone knows all metrics."""
        self.load_state_dict(states[0])

    def _find_spike(self, step: int, values: dict[str, float]) -> tuple[int, str] | None:
        for name, usual in self._usual.items():
            value = math.nan if step in usual else values.get(name, math.nan)
            median = statistics.median(usual.values()) if len(usual) >= LEAST_STEPS else 0.0
            if median > 0 and median * self._policy.spike < value:
                times = f"{value / median:.3g} times the median of the {len(usual)} steps before"
                return step, f"step {step}: {name} is {value:.4g}, {times}"
            if math.isfinite(value):
                usual[step] = value
                if len(usual) > SPIKE_WINDOW:
                    del usual[next(iter(usual))]
        return None


def _extend(bad: list[int], step: int, values: Iterable[float]) -> None:
    """Count a step among the bad ones in a row, or end the row; without values do neither."""
    found = [*map(math.isfinite, values)]
    if not all(found):
        bad.append(step)
    elif found:
        bad.clear()


def _weights(engine: Any) -> dict[str, Any]:
    """Return a number that is not finite where a weight is not; nothing where they are divided."""
    import torch

    module = getattr(engine, "module", None)
    whole = [] if module is None else [each.detach() for each in module.parameters()]
    if not whole or any(hasattr(one, "ds_id") or is_divided(one) for one in whole):
        return {}
    return {_WEIGHTS: torch.stack([each.float().norm() for each in whole]).sum()}
