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
    # One tensor of them all: small ones that are kept of each step come to lie between the buffers
    # that it frees, glibc takes new memory for the next ones, and the pages' faults are timed, too.
    losses: list[Any] = []
    # Its own time, from the attempt's start to the top of each step.
    own: list[float] = []

    def timed(total: int) -> Iterator[int]:
        for step in steps(total):
            own.append(session._own_seconds)
            turns.at(step)
            yield step

    def noted(metrics: Mapping[str, Any], step: int) -> None:
        if not losses:
            losses.append(metrics["loss"].new_empty(session.config.total_steps))
        losses[0][step - 1] = metrics["loss"]
        log(metrics, step)

    session.steps, session.log = timed, noted
    engine = session.config.get("engine", "deepspeed")
    if engine != "deepspeed":
        session.initialize = initialize_by(session, engine)
    importlib.import_module(session.config.program).train(session)
    turns.finish(losses=losses[0].tolist(), own=own)


def initialize_by(session: Any, engine: str) -> Callable[..., Any]:
    """Return a function in place of ``session.initialize``, for an engine without DeepSpeed."""

    def initialize(*, model: Any, **_: Any) -> tuple[Any, Any, None, Any]:
        made = getattr(session, engine)(model)
        return made, made.optimizer, None, made.lr_scheduler

    return initialize
