"""The record of the order in which a run's samples come: what changes it is refused.

Rank 0 writes it to the attempt's `session.jsonl` when a loader is first asked for a step, and
compares it with that of earlier attempts.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

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


def begin(
    launch: Launch, log: SessionLogWriter, number: int, order: SampleOrder, done: int
) -> None:
    """Record the order of loader ``number`` (in the order of their making, from 0).

    ``done`` is the number of finished steps. Raises UsageError if there are some, and the newest
    earlier attempt that has a record had another order.
    """
    if done:
        _check(launch, number, order)
    log.write(session_log.DATA, loader=number, **dataclasses.asdict(order))


def _check(launch: Launch, number: int, order: SampleOrder) -> None:
    before = _newest(launch, number)
    if before is None:
        return
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


def _newest(launch: Launch, number: int) -> dict[str, object] | None:
    """Return the newest record of a loader in an earlier attempt; None if there is none."""
    for attempt in reversed(launch.run_paths.attempts()):
        if attempt.directory != launch.paths.directory:
            for event in session_log.read(attempt).of(session_log.DATA):
                if event.record.get("loader") == number:
                    return dict(event.record)
    return None
