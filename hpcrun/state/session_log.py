"""The session's events: an attempt's ``session.jsonl``, by rank 0, or by its agent.

Each line has ``event`` and ``time`` (seconds since the epoch); the events are

``started``
    The loop begins: ``total_steps``, ``world_size``, ``versions`` (of Python, torch, …).
``initialized``
    The model got the weights of another run: ``checkpoint``, ``step``.
``quarantined``, ``passed_over``
    A checkpoint that was not restored: ``checkpoint``, ``message``.
``restored``
    ``step`` (0 for a fresh start), ``checkpoint`` (None then), ``seconds``.
``data``
    A loader of `hpcrun.run.data` begins: ``loader`` (its number, in the order of their making), and
    what its order follows from: ``samples`` (examples in an epoch), ``seed``, ``shuffle``.
``data_waits``
    The shares of the newest ``steps`` in which ranks waited for their loaders, as of ``step``:
    ``ranks`` (pairs of rank and share, the longest first, eight at most), the ``median`` of all
    and their number, ``world_size``. After 8 steps of an attempt, 16, 32, …
``saved``
    ``step``, ``checkpoint``, ``bytes``, ``seconds`` that it took, of which the training stood still
    for ``blocked``.
``saved_nearby``
    The same in the nodes' own storage: ``step``, ``bytes``, ``seconds``.
``save_failed``, ``save_skipped``
    ``step``, ``message``.
``bad_step``
    The ranks end, as of ``step`` on the loss was not finite, or as it was a spike: the kind of
    ``cause``, ``message``; of the step's global batch its number ``batch`` in the order of the run
    (from 1), ``samples`` (the first and the last) and their ``epoch`` (from 0), where known.
``left``
    All ranks left after ``step``, because the run was asked to stop.
``finished``
    The entry came to its end: of a session also ``step``, ``step_seconds``, ``own_seconds``.
``alone``
    MPI took each of several ranks for the only one.
``left_running``
    Rank 0's program ended while this ``command``, which it had begun, went on.

Of a program without a session, the agent of rank 0's node writes what it sees:

``read_from``
    Where progress is read: ``source`` (of the spec's ``progress.source``, or ``progress_bar``,
    ``keras_bar``; null if nothing is known), ``path``, ``total_steps``, the ``unit`` in which it
    counts, and the number of its ``first_epoch``, 0 or 1, where that is known.
``pattern_dropped``
    ``progress.pattern`` is not used any more, as it took too long: ``message``.
``seen``
    The program's last sign of life before ``time``; with ``step``, the time at which a line without
    one was seen.
``saved``
    A save that the program made: ``step`` if known, ``checkpoint`` (its path), ``bytes``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from hpcrun.errors import BrokenFile
from hpcrun.fields import NUMBER, TEXT, TIME, WHOLE, Kind, Kinds, wrong
from hpcrun.state import files
from hpcrun.state.layout import AttemptPaths

STARTED = "started"
RESTORED = "restored"
DATA = "data"
DATA_WAITS = "data_waits"
SAVED = "saved"
SAVED_NEARBY = "saved_nearby"
BAD_STEP = "bad_step"
FINISHED = "finished"
ALONE = "alone"
LEFT_RUNNING = "left_running"
READ_FROM = "read_from"
SEEN = "seen"

SAMPLES = Kind(
    "the numbers of two samples",
    lambda value: type(value) is list and len(value) == 2 and all(map(WHOLE.accepts, value)),
)
BAD_STEP_KINDS: Kinds = {
    **dict.fromkeys(("step", "batch", "epoch"), WHOLE),
    "cause": TEXT,
    "message": TEXT,
    "samples": SAMPLES,
}


class SessionEvent(NamedTuple):
    """One event."""

    kind: str | None
    step: int | None
    """Finished optimizer steps; None if the event has none."""
    record: Mapping[str, Any]
    """The whole line."""

    @property
    def time(self) -> float:
        """Seconds since the epoch; 0 where the line has none."""
        return self.seconds("time") if TIME.accepts(self.record.get("time")) else 0.0

    def seconds(self, *names: str) -> float:
        """Return the first of these fields that is a number, at least 0; 0 without any."""
        for name in names:
            value: Any = self.record.get(name)
            if NUMBER.accepts(value):
                return max(0.0, float(value))
        return 0.0


class SessionLog(tuple[SessionEvent, ...]):
    """The events of one attempt, in order; empty where its session wrote none."""

    __slots__ = ()

    def of(self, *kinds: str) -> Iterator[SessionEvent]:
        """Yield the events of these kinds."""
        return (event for event in self if event.kind in kinds)

    @property
    def times(self) -> list[float]:
        """The times of the events, in seconds since the epoch."""
        return [event.time for event in self]

    @property
    def finished(self) -> bool:
        """The entry came to its end."""
        return any(self.of(FINISHED))

    @property
    def total_steps(self) -> int | None:
        """The number of steps that the session announced, or that the program shows."""
        totals = [event.record.get("total_steps") for event in self.of(STARTED, READ_FROM)]
        return totals[-1] if totals and WHOLE.accepts(totals[-1]) else None

    @property
    def restored_step(self) -> int | None:
        """The step that the attempt began from; 0 for a fresh start, None for a plain script."""
        return next(reversed([*self._steps(RESTORED)]), None)

    @property
    def reached_step(self) -> int | None:
        """The furthest step that was restored, saved or finished."""
        return max(self._steps(RESTORED, SAVED, FINISHED), default=None)

    @property
    def saved_step(self) -> int | None:
        """The furthest step that was saved; None if no save has one."""
        return max(self._steps(SAVED), default=None)

    @property
    def bad_step(self) -> dict[str, Any] | None:
        """The fields of the newest event of a bad step; None without one."""
        for event in reversed([*self.of(BAD_STEP)]):
            found = {key: value for key, value in event.record.items() if key in BAD_STEP_KINDS}
            if not wrong(found, BAD_STEP_KINDS, ("step", "cause", "message")):
                return found
        return None

    @property
    def read_from(self) -> Mapping[str, Any] | None:
        """The last record of where the agent reads progress; None if it never did."""
        return next((event.record for event in reversed(self) if event.kind == READ_FROM), None)

    @property
    def unit(self) -> str | None:
        """In what its steps are counted; None where nothing says so, as in a session.

        Steps of another unit cannot be compared with these.
        """
        unit = (self.read_from or {}).get("unit")
        return unit if isinstance(unit, str) else None

    @property
    def sightings(self) -> list[tuple[int, float]]:
        """Steps whose lines have no time, and when they were seen."""
        return [(event.step, event.time) for event in self.of(SEEN) if event.step is not None]

    def _steps(self, *kinds: str) -> Iterator[int]:
        return (event.step for event in self.of(*kinds) if event.step is not None)


def parse(records: Iterable[Mapping[str, Any]]) -> SessionLog:
    """Return the events that lines of the file stand for.

    A program of the user's may have written to the file: what is not of its kind is missing.
    """
    return SessionLog(
        SessionEvent(
            kind if type(kind) is str else None, step if WHOLE.accepts(step) else None, record
        )
        for record in records
        for kind, step in ((record.get("event"), record.get("step")),)
    )


def read(attempt: AttemptPaths) -> SessionLog:
    """Read an attempt's events; raise BrokenFile if the file cannot be read."""
    try:
        return parse(files.read_lines(attempt.session, _MOST_BYTES))
    except OSError as error:
        raise BrokenFile.of(attempt.session, error) from None


def read_any(attempt: AttemptPaths) -> SessionLog:
    """Read an attempt's events; none if the file cannot be read."""
    try:
        return read(attempt)
    except BrokenFile:
        return SessionLog()


_MOST_BYTES = 1 << 25


def record(kind: str, **details: Any) -> dict[str, Any]:
    """Return the line of an event that happens now."""
    return {"event": kind, "time": time.time(), **details}
