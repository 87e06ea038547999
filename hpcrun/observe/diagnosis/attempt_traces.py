"""The traces that an attempt left of how it spent its time."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hpcrun.fields import TIME, WHOLE
from hpcrun.observe.diagnosis import goodput
from hpcrun.observe.diagnosis.goodput import Traces
from hpcrun.state import files, session_log
from hpcrun.state.layout import AttemptPaths
from hpcrun.state.ledger import Attempt

# Steps after the first one that tell how long a step takes.
_MOST_PACES = 9


def traces(
    paths: AttemptPaths,
    attempt: Attempt,
    restored: int,
    reached: int,
    is_program: bool,
    stands: int | None,
    furthest: int,
) -> Traces:
    """Read only the metrics that `Traces` needs: the replayed steps, a few next, the last one.

    Parameters
    ----------
    restored, reached
        The finished steps that the attempt began with and came to; 0 where that is unknown.
    stands
        The last step that the run still has; None if it has all.
    furthest
        The furthest step of earlier attempts.
    """
    first = None
    loses = stands is not None and reached > stands
    passes = [_Passing(furthest), _Passing(stands if loses and stands else 0)]
    log = session_log.read_any(paths)
    seen: list[tuple[int, float]] = []
    # A file that cannot be read tells nothing here; status and results say that it cannot.
    with contextlib.suppress(OSError):
        for line in files.read_lines(paths.metrics):
            step, moment = _step(line), _time(line)
            if step is None or moment is None:
                continue
            if len(seen) <= _MOST_PACES:
                seen.append((step, moment))
            first = first or moment
            are_over = [one.note(step, moment) for one in passes]
            if all(are_over) and (not is_program or len(seen) > _MOST_PACES):
                break
    last = files.last_line(paths.metrics) or {}
    again, stood = (one.moment() for one in passes)
    found = Traces(
        session=log,
        first=first,
        last=_time(last) if first is not None else None,
        again=again,
        stood=(stood or _BEFORE) if loses else None,
        reached=reached,
    )
    if is_program:
        found = _of_program(found, paths, attempt, restored, seen, furthest)
    return found


# A time before any step.
_BEFORE = 0.0


class _Passing:
    """The moment at which a step was passed."""

    def __init__(self, step: int) -> None:
        self._step = step
        self._before: tuple[int, float] | None = None
        self._after: tuple[int, float] | None = None

    def note(self, step: int, moment: float) -> bool:
        """Note a step with its time, in seconds since the epoch; return whether it is beyond."""
        if step <= self._step:
            self._before, self._after = (step, moment), None
            return False
        self._after = self._after or (step, moment)
        return True

    def moment(self) -> float | None:
        points = [*filter(None, (self._before, self._after))]
        return goodput.repeated_until(points, self._step)


def _of_program(
    found: Traces,
    paths: AttemptPaths,
    attempt: Attempt,
    restored: int,
    seen: Sequence[tuple[int, float]],
    furthest: int,
) -> Traces:
    """Add what only the traces of a script or command need."""
    if found.first is None and found.session.sightings:
        # Its lines have no times: the agent noted when it saw them.
        seen = found.session.sightings
        again = goodput.repeated_until(seen, furthest)
        found = replace(found, first=seen[0][1], last=seen[-1][1], again=again)
    begun = goodput.first_began(seen, restored)
    if found.again is None and begun is not None and restored < furthest < seen[0][0]:
        again = goodput.repeated_until([(restored, begun), seen[0]], furthest)
        found = replace(found, again=again)
    started = attempt.workers_started
    starting = 0.0 if begun is None or started is None else begun - started
    if (alive := goodput.worked_until(found, seen, starting)) is None:
        alive = _time(files.last_line(paths.log_sizes) or {})
    return replace(found, is_program=True, begun=begun, alive=alive)


def _step(record: dict[str, Any]) -> int | None:
    step = record.get("step")
    return step if WHOLE.accepts(step) else None


def _time(record: dict[str, Any]) -> float | None:
    moment = record.get("time")
    return moment if TIME.accepts(moment) else None
