"""What a tracker has to be told next of the lines that a run's attempts logged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from hpcrun.state import files, metrics_file
from hpcrun.state.layout import RunPaths
from hpcrun.state.metrics_file import Line


@dataclass(frozen=True)
class Place:
    """How far the lines were read.

    Attributes
    ----------
    attempt, offset
        Bytes of which attempt's ``metrics.jsonl``.
    begun
        A step of that attempt was among them.
    step
        The newest step, without those that were done over again since.
    """

    attempt: int = 0
    offset: int = 0
    begun: bool = False
    step: int = 0


class News(NamedTuple):
    """Lines that were not read before.

    Attributes
    ----------
    place
        Where they end.
    kept
        The step from which on they replace what was logged before; None where they replace nothing.
    """

    place: Place
    kept: int | None
    lines: list[Line]


class Sink(Protocol):
    """One tracker's run, open."""

    @property
    def state(self) -> dict[str, Any]:
        """What the next process has to know to go on; kept after each `send`."""

    @property
    def starts_over(self) -> bool:
        """Whether lines that an earlier process had sent never came there.

        All lines are to be sent again then, and it leaves out those that did.
        """

    def send(self, lines: Sequence[Line], kept: int | None) -> None:
        """Tell it what `News` has."""

    def close(self) -> None:
        """Let it send what it holds back."""


def news(run: RunPaths, place: Place) -> Iterator[News]:
    """What was logged behind a place, a bounded part at a time."""
    for attempt in run.attempts():
        # Once the next attempt is there, nobody adds to those before it.
        if attempt.number < place.attempt:
            continue
        if attempt.number > place.attempt:
            place = Place(attempt.number, step=place.step)
        while True:
            found, offset = files.read_on(attempt.metrics, place.offset)
            if offset == place.offset:
                break
            lines = list(metrics_file.parse(found))
            place = replace(place, offset=offset)
            kept = None
            if lines and not place.begun:
                stands = metrics_file.kept(metrics_file.session(attempt)[1], lines[0].step)
                kept = stands if stands is not None and stands < place.step else None
                place = replace(place, begun=True, step=place.step if kept is None else kept)
            place = replace(place, step=max([place.step, *(line.step for line in lines)]))
            yield News(place, kept, lines)
