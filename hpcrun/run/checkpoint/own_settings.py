"""The optimizer's settings of a run that goes on from another run's checkpoint.

What is restored brings the other run's learning rate, weight decay and so on, and its schedule.
This run was given other values, with which its program has made the optimizer: those count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hpcrun.errors import CheckpointError

# What torch, DeepSpeed and packages beside them call what a program gives an optimizer. All else in
# a group of parameters is state, such as the number of steps.
_SETTINGS = (
    *("lr", "initial_lr", "betas", "eps", "weight_decay", "momentum", "dampening", "nesterov"),
    *("alpha", "max_coeff", "min_coeff", "amsgrad"),
)
# Schedules of DeepSpeed's that follow from a step and what they were made with.
_OF_STEP = ("WarmupLR", "WarmupDecayLR", "WarmupCosineLR")


class OwnSettings:
    """Those of an engine's optimizer and schedule, taken before a restore."""

    def __init__(self, engine: Any, states: Mapping[str, Any]) -> None:
        self._engine = engine
        self._settings = [
            {name: _copy(group[name]) for name in _SETTINGS if name in group}
            for group in _groups(engine)
        ]
        # A loop of one's own may step a schedule that the engine does not know.
        given = [getattr(engine, "lr_scheduler", None), *states.values()]
        self._schedules = [(one, _made_with(one)) for one in given if hasattr(one, "get_last_lr")]

    def put_back(self) -> None:
        """Give them to what was restored; raise CheckpointError of a schedule that cannot be."""
        for group, settings in zip(_groups(self._engine), self._settings, strict=True):
            for name, value in settings.items():
                _set(group, name, value)
        for schedule, made_with in self._schedules:
            if made_with is None:
                raise CheckpointError(
                    f"{type(schedule).__name__} cannot go on from another run's checkpoint with "
                    "rates of this run's own: what it restores are the other run's",
                    hint="sweep.search.population goes with LambdaLR, such as of `optimization`, "
                    f"with {', '.join(_OF_STEP)}, and without a schedule",
                )
            rates = _rates(schedule, made_with)
            for group, rate in zip(schedule.optimizer.param_groups, rates, strict=True):
                _set(group, "lr", rate)
            schedule._last_lr = [group["lr"] for group in schedule.optimizer.param_groups]


def _groups(engine: Any) -> Sequence[dict[str, Any]]:
    optimizer = getattr(engine, "optimizer", None)
    return () if optimizer is None else optimizer.param_groups


def _made_with(schedule: Any) -> dict[str, Any] | None:
    """Return what a schedule's rates follow from beside the step; None if that is not known."""
    from torch.optim.lr_scheduler import LambdaLR

    if type(schedule) is LambdaLR:
        own = [dict(getattr(one, "__dict__", {})) for one in schedule.lr_lambdas]
        return {"base_lrs": [*map(_copy, schedule.base_lrs)], "lambdas": own}
    # Their state is a step alone.
    return {} if type(schedule).__name__ in _OF_STEP else None


def _rates(schedule: Any, made_with: Mapping[str, Any]) -> list[Any]:
    """Return the rates at the restored step of a schedule that is made as it was."""
    if not made_with:
        return [*schedule.get_lr()]
    schedule.base_lrs = made_with["base_lrs"]
    for one, own in zip(schedule.lr_lambdas, made_with["lambdas"], strict=True):
        if own:
            vars(one).update(own)
    at = schedule.last_epoch
    return [
        base * one(at) for base, one in zip(schedule.base_lrs, schedule.lr_lambdas, strict=True)
    ]


def _copy(value: Any) -> Any:
    return value.clone() if hasattr(value, "clone") else value


def _set(group: dict[str, Any], name: str, value: Any) -> None:
    # A rate may be a tensor that a compiled step reads.
    if hasattr(group.get(name), "fill_"):
        group[name].fill_(value)
    else:
        group[name] = _copy(value)
