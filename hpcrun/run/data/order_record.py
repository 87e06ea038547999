"""The record of the order in which a run's samples come: what changes it is refused.

Rank 0 writes it to the attempt's `session.jsonl` when a loader is first asked for a step, and
compares it with that of earlier attempts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hpcrun.errors import UsageError
from hpcrun.run.protocol.launch import Launch
from hpcrun.run.rank.session_writer import SessionLogWriter
from hpcrun.state import session_log


@dataclass(frozen=True)
class SampleOrder:
    """The values that determine the order of a loader's samples."""

    samples: int
    """Examples in an epoch."""
    seed: int
    shuffle: bool
    parts: dict[str, list[int]] | None = None
    """Of a mixture's parts, the number of examples and the share (see `Mixture.parts`)."""


def begin(
    launch: Launch, log: SessionLogWriter, number: int, order: SampleOrder, done: int
) -> None:
    """Record the order of loader ``number`` (in the order of their making, from 0).

    ``done`` is the number of finished steps. Raises UsageError if there are some, and the newest
    earlier attempt that has a record had another order.
    """
    if done:
        _check(launch, number, order)
    values = {name: value for name, value in vars(order).items() if value is not None}
    log.write(session_log.DATA, loader=number, **values)


def _check(launch: Launch, number: int, order: SampleOrder) -> None:
    before = _newest(launch, number)
    if before is None:
        return
    if before.get("parts") != order.parts:
        raise UsageError(
            f"session.loader has {_described(order.parts)}, and had "
            f"{_described(before.get('parts'))} when this run took its earlier steps: the samples "
            "that follow would be others",
            hint="give the same parts, examples and weights again, or begin another run with these "
            "weights (checkpoint.initialize_from)",
        )
    samples = before.get("samples")
    if isinstance(samples, int) and samples != order.samples:
        first = f"pass length={samples} to session.loader to go on with its first {samples:,}, or "
        raise UsageError(
            f"the dataset has {order.samples:,} examples, and had {samples:,} when this run took "
            "its earlier steps: the examples that it has not seen yet in this epoch, and their "
            "order, follow from that number",
            hint=(first if order.samples > samples else f"give it its {samples:,} examples, or ")
            + "begin another run with these weights (checkpoint.initialize_from)",
        )
    for name in ("seed", "shuffle"):
        if before.get(name) != (now := getattr(order, name)):
            raise UsageError(
                f"session.loader has {name}={now}, and had {before.get(name)} when this run took "
                "its earlier steps: the order of its samples would be another one",
                hint=f"set it to {before.get(name)} again, or begin another run",
            )


def _described(parts: Any) -> str:
    """Return the parts of a mixture in words."""
    if not isinstance(parts, dict):
        return "no mixture"
    whole = sum(share for _, share in parts.values())
    words = (f"{name} of {n:,} ({share / whole:.3g})" for name, (n, share) in parts.items())
    return "a mixture of " + ", ".join(words)


def _newest(launch: Launch, number: int) -> dict[str, object] | None:
    """Return the newest record of a loader in an earlier attempt; None if there is none."""
    for attempt in reversed(launch.run_paths.attempts()):
        if attempt.directory != launch.paths.directory:
            for event in session_log.read(attempt).of(session_log.DATA):
                if event.record.get("loader") == number:
                    return dict(event.record)
    return None
