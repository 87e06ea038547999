"""The steps and scalars of TensorBoard's event files that a program writes, without TensorBoard.

A file is a sequence of records: the length (8 bytes), its checksum (4), the data, its checksum (4).
The data is a protobuf ``Event``: 1 ``wall_time``, 2 ``step``, 5 ``summary``, whose values have 1
``tag`` and 2 ``simple_value`` or 8 ``tensor``. Checksums are not looked at; lengths are.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from hpcrun.fields import LAST_TIME, MOST
from hpcrun.run.program.file_search import FoundFile
from hpcrun.run.program.progress_source import MOST_BYTES, Found, Look, ReaderStart, name_values
from hpcrun.state import files
from hpcrun.state.metrics_file import Line

PREFIX = "events.out.tfevents."
# Those of hpcrun's own tracker, which are made of the lines that this reads.
_OWN = ".hpcrun"
_MOST_FILES = 50
# What DeepSpeed's own monitor writes, by the number of samples in place of steps.
_BY_SAMPLES = "Train/Samples/"
# What Lightning's logger writes as it starts, and as it resumes.
_PLACEHOLDER = 0, {"hp_metric": -1.0}

# Bytes of a record that is read; pictures and graphs are longer, and skipped.
MOST_RECORD = 1 << 18
# A longer record is none: the file is something else, or torn.
_LONGEST = 1 << 31
_MOST_VALUES = 200
_MOST_TAG = 100
_HEAD, _FOOT = 12, 4
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# TensorFlow's types of a tensor's content -> how one number of them is packed.
_PACKED = {1: "<f", 2: "<d", 3: "<i", 9: "<q", 19: "<e"}


def is_event_file(path: Path) -> bool:
    """Check whether a path has the name of a program's event file."""
    return path.name.startswith(PREFIX) and not path.name.endswith(_OWN)


class TensorBoardEvents:
    """All event files of a program. What was ``there`` before is not new.

    A tag that several directories use gets the name of its directory in all but the first of them
    (``validation/loss``). Values at another scale of steps, as epochs, belong to the last step.
    Samples are counted in steps of ``batch``; without it, of what the first two counts differ by.
    """

    def __init__(self, there: Iterable[FoundFile] = (), batch: int | None = None) -> None:
        self._batch, self._samples = batch, -1
        self._files: dict[Path, EventFile] = {}
        self._sizes: dict[Path, int] = {}
        # Tag -> the directory that used it first.
        self._owners: dict[str, Path] = {}
        # The line with the largest step so far.
        self._last = 0, 0.0
        for one in there:
            if is_event_file(one.path):
                self._files[one.path] = EventFile(one.path, one.size)
                self._sizes[one.path] = one.size

    @classmethod
    def begin(cls, start: ReaderStart) -> TensorBoardEvents:
        """Return a reader of one attempt."""
        return cls(start.there, start.batch)

    def poll(self, look: Look) -> Found:
        """Return the new events in the order of their times."""
        found = Found()
        events: list[Line] = []
        for one in look.files or ():
            path = one.path
            if not is_event_file(path) or self._sizes.get(path) == one.size:
                continue
            if path not in self._files and len(self._files) >= _MOST_FILES:
                continue
            file = self._files.setdefault(path, EventFile(path))
            before, new = file.offset, file.read(MOST_BYTES)
            # There may be more behind what has no numbers, as pictures.
            goes_on = file.offset > before
            self._sizes[path] = file.offset if goes_on else one.size
            found.is_more |= goes_on and file.offset < one.size
            for step, time, values in new:
                if any(tag.startswith(_BY_SAMPLES) for tag in values):
                    step = self._in_steps(step)
                if step >= 0 and (step, values) != _PLACEHOLDER:
                    events.append(
                        Line(step, time or look.time, self._name_values(path.parent, values))
                    )
            found.path = path if new else found.path
        events.sort(key=lambda line: line.time or 0.0)
        found.lines = [self._at_scale(line) for line in events]
        return found

    def _in_steps(self, samples: int) -> int:
        """Return the step of a number of samples; -1 for the first, if the batch is not known."""
        if self._batch is None and 0 <= self._samples < samples:
            self._batch = samples - self._samples
        self._samples = samples
        return samples // self._batch if self._batch else -1

    def _name_values(self, directory: Path, values: dict[str, float]) -> dict[str, float]:
        own = {tag: self._owners.setdefault(tag, directory) == directory for tag in values}
        return name_values(
            (tag if own[tag] else f"{directory.name}/{tag}", value) for tag, value in values.items()
        )

    def _at_scale(self, line: Line) -> Line:
        step, time = self._last
        if line.step >= step:
            self._last = line.step, line.time or time
            return line
        # Older lines of another file may be read later.
        return line if (line.time or 0.0) < time else line._replace(step=step)


class Scalars(NamedTuple):
    """The numbers of one event."""

    step: int
    time: float | None
    """Seconds since the epoch; None if the event has no such time."""
    values: dict[str, float]


class EventFile:
    """One file, read from ``offset`` on."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path, self.offset = path, offset
        self.is_broken = False
        """What follows are no records: nothing more is read."""

    def read(self, most: int) -> list[Scalars]:
        """Return the events in about the next ``most`` bytes; raise OSError if it is unreadable."""
        if self.is_broken:
            return []
        with files.open_stream(self.path) as stream:
            data = os.pread(stream.fileno(), max(most, _HEAD + MOST_RECORD + _FOOT), self.offset)
        found, used = parse(data)
        self.is_broken = used < 0
        self.offset += max(0, used)
        return found


def parse(data: bytes) -> tuple[list[Scalars], int]:
    """Return the events with numbers among whole records, and the bytes that these have.

    A record that is too long to be read is skipped, and the number may lie beyond the data. It is
    -1 where something that is no record follows the events.
    """
    found: list[Scalars] = []
    at = 0
    while at + _HEAD <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        if length > _LONGEST:
            return found, -1
        end = at + _HEAD + length + _FOOT
        if length <= MOST_RECORD:
            if end > len(data):
                break
            event = _event(data[at + _HEAD : at + _HEAD + length])
            if event is not None:
                found.append(event)
        at = end
    return found, at


def _event(data: bytes) -> Scalars | None:
    """Return an event's numbers; None if it has none, or is no event."""
    step, time = 0, None
    values: dict[str, float] = {}
    try:
        for field, value in _fields(data):
            if field == 1 and isinstance(value, bytes):
                (time,) = struct.unpack("<d", value)
            elif field == 2 and isinstance(value, int):
                step = value
            elif field == 5 and isinstance(value, bytes):
                for inner, part in _fields(value):
                    if inner == 1 and isinstance(part, bytes) and len(values) < _MOST_VALUES:
                        values.update(_value(part))
    except (struct.error, ValueError):
        return None
    if not values or not -MOST < step < MOST:
        return None
    is_time = time is not None and 0 < time <= LAST_TIME
    return Scalars(step, time if is_time else None, values)


def _value(data: bytes) -> dict[str, float]:
    """Return tag and number of a summary's value; empty if it is none, as a picture."""
    tag, number = "", None
    for field, value in _fields(data):
        if not isinstance(value, bytes):
            continue
        if field == 1:
            tag = value[:_MOST_TAG].decode(errors="replace")
        elif field == 2 and len(value) == 4:
            (number,) = struct.unpack("<f", value)
        elif field == 8:
            number = _tensor(value)
    return {} if number is None or not tag else {tag: float(number)}


def _tensor(data: bytes) -> float | None:
    """Return the number of a tensor that has one alone."""
    kind, content, number = 0, b"", None
    for field, value in _fields(data):
        if field == 1 and isinstance(value, int):
            kind = value
        elif isinstance(value, bytes):
            if field == 4:
                content = value
            elif field in (5, 6) and len(value) in (4, 8):
                (number,) = struct.unpack("<f" if len(value) == 4 else "<d", value)
        elif field in (7, 10):
            number = value
    form = _PACKED.get(kind)
    if form and len(content) == struct.calcsize(form):
        (number,) = struct.unpack(form, content)
    return None if number is None else float(number)


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of a message's fields; raise ValueError at what is no field."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            length, at = _varint(data, at)
        elif kind in (_FIXED64, _FIXED32):
            length = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError("no field")
        if at + length > len(data):
            raise ValueError("a field ends beyond its message")
        yield key >> 3, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at a place, and the place after it."""
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            # Negative numbers are written as those of 64 bits.
            return number - (1 << 64) if number >= 1 << 63 else number, at
    raise ValueError("no number")
