"""The side of hpcrun: a program of ``jobs`` as it ships, with a stop-watch around its steps."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from turns import Turns


def train(session: Any) -> None:
    """The entry. The shipped program is called unchanged; only its session is looked over."""
    turns = Turns(session.config.turns, session.config.side)
    steps, log = session.steps, session.log
    losses: list[Any] = []
    # Its own time, from the attempt's start to the top of each step.
    own: list[float] = []

    def timed(total: int) -> Iterator[int]:
        for step in steps(total):
            own.append(session._own_seconds)
            turns.at(step)
            yield step

    def noted(metrics: Mapping[str, Any], step: int) -> None:
        losses.append(metrics["loss"])
        log(metrics, step)

    session.steps, session.log = timed, noted
    engine = session.config.get("engine", "deepspeed")
    if engine != "deepspeed":
        session.initialize = initialize_by(session, engine)
    importlib.import_module(session.config.program).train(session)
    turns.finish(losses=[float(loss) for loss in losses], own=own)


def initialize_by(session: Any, engine: str) -> Callable[..., Any]:
    """Return a function in place of ``session.initialize``, for an engine without DeepSpeed."""

    def initialize(*, model: Any, **_: Any) -> tuple[Any, Any, None, Any]:
        made = getattr(session, engine)(model)
        return made, made.optimizer, None, made.lr_scheduler

    return initialize
