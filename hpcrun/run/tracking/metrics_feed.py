"""The metrics that a tracker has not been sent yet, over all attempts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from hpcrun.state import files, metrics_file, session_log
from hpcrun.state.layout import RunPaths
from hpcrun.state.metrics_file import Line


@dataclass(frozen=True)
class FeedPosition:
    """A position in the metrics of a run; kept on disk by these names."""

    attempt: int = 0
    # Bytes of the attempt's metrics.jsonl.
    offset: int = 0
    # A step of that attempt was read.
    begun: bool = False
    # The newest step, not counting those that were done again since.
    step: int = 0


class NewLines(NamedTuple):
    """Lines up to ``position``; they replace all steps after ``kept`` (None: nothing)."""

    position: FeedPosition
    kept: int | None
    lines: list[Line]


def read_after(run: RunPaths, position: FeedPosition) -> Iterator[NewLines]:
    """Yield what was logged after a position, a bounded part at a time."""
    for attempt in run.attempts():
        # Nobody adds to an attempt once the next one exists.
        if attempt.number < position.attempt:
            continue
        if attempt.number > position.attempt:
            position = FeedPosition(attempt.number, step=position.step)
        while True:
            found, offset = files.read_on(attempt.metrics, position.offset)
            if offset == position.offset:
                break
            lines = list(metrics_file.parse(found))
            position = replace(position, offset=offset)
            kept = None
            if lines and not position.begun:
                stands = metrics_file.last_kept_step(
                    session_log.read(attempt).restored_step, lines[0].step
                )
                kept = stands if stands is not None and stands < position.step else None
                step = position.step if kept is None else kept
                position = replace(position, begun=True, step=step)
            position = replace(position, step=max([position.step, *(line.step for line in lines)]))
            yield NewLines(position, kept, lines)
