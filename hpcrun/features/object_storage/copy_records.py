"""The ledger's records of copies, and the sentences that they become."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hpcrun.feature import Event
from hpcrun.fields import COUNT, NAME, NUMBER, TEXT, TEXTS, WHOLE, Kinds, wrong
from hpcrun.state import files
from hpcrun.state.layout import RunPaths
from hpcrun.text import agreeing, listed, one_line, shortened, size, time_spent

# The events.
COPIED = "checkpoint_copied"  # it is complete there
FETCHED = "checkpoint_fetched"  # one that the root had lost is complete here again
PASSED_OVER = "copy_passed_over"  # it is damaged, gone or another one than was made
TROUBLE = "copying_fails"  # nothing is copied for now
NOT_COPIED = "not_copied"  # checkpoints of which there was no copy as the attempt ended
FIELDS: Kinds = {
    **dict.fromkeys(("place", "digest", "message"), TEXT),
    "checkpoint": NAME,
    **dict.fromkeys(("step", "newest"), WHOLE),
    "bytes": COUNT,
    "seconds": NUMBER,
    "names": TEXTS,
}
EVENTS: Mapping[str, Event] = {
    COPIED: Event(FIELDS, ("checkpoint", "step", "place", "digest", "bytes")),
    FETCHED: Event(FIELDS, ("checkpoint", "place")),
    PASSED_OVER: Event(FIELDS, ("checkpoint", "message")),
    TROUBLE: Event(FIELDS, ("message",)),
    NOT_COPIED: Event(FIELDS, ("message",)),
}
_NAME = re.compile("step-([0-9]{1,15})-a([0-9]{1,9})")
_SHOWN = 3

Record = Mapping[str, Any]


def step_and_attempt(name: str) -> tuple[int, int] | None:
    """Return the step and the attempt of a checkpoint's name; None if it is no such name."""
    found = _NAME.fullmatch(name)
    return (int(found[1]), int(found[2])) if found else None


def read_records(run: RunPaths) -> list[Record]:
    """Read the records of a run, in order; those that no supervisor wrote are left out.

    Raises OSError if the ledger cannot be read; a run without one has none.
    """
    found: list[Record] = []
    try:
        for record in files.read_lines(run.ledger):
            if (known := EVENTS.get(str(record.get("event")))) is None:
                continue
            name = record.get("checkpoint")
            is_named = name is None or (type(name) is str and step_and_attempt(name) is not None)
            if not wrong(record, known.fields, known.needed) and is_named:
                found.append(record)
    except FileNotFoundError:
        pass
    return found


def copies(records: Iterable[Record]) -> list[Record]:
    """Return the newest record of each copy that may be fetched, the newest checkpoint first.

    One that was passed over is left out until it is copied again.
    """
    found = [record for record in _last(records).values() if record["event"] == COPIED]
    return sorted(found, key=lambda one: step_and_attempt(one["checkpoint"]) or (), reverse=True)


def passed_over(records: Iterable[Record]) -> set[str]:
    """Return the names of checkpoints whose copies were found to be of no use."""
    return {name for name, one in _last(records).items() if one["event"] == PASSED_OVER}


def _last(records: Iterable[Record]) -> dict[str, Record]:
    """Return checkpoint -> the newest record on whether its copy may be fetched."""
    seen = (one for one in records if one["event"] in (COPIED, PASSED_OVER))
    return {one["checkpoint"]: one for one in seen if one.get("checkpoint")}


def notice(of_attempt: Mapping[str, Record]) -> str | None:
    """Return a clause on the copies of an attempt, from its newest records; None without any."""
    made, trouble = of_attempt.get(COPIED), _open_trouble(of_attempt)
    if trouble is not None:
        return f"checkpoints are not copied: {shortened(one_line(trouble['message']), 120)}"
    return f"checkpoints copied up to step {_newest(made):,}" if made else None


def sentences(of_attempt: Mapping[str, Record]) -> Iterator[str]:
    """Describe the copies of an attempt, from its newest records."""
    if record := of_attempt.get(PASSED_OVER):
        yield one_line(f"The copy of {record['checkpoint']} was not used: {record['message']}.")
    if record := of_attempt.get(FETCHED):
        spent = ""
        if record.get("bytes") is not None and record.get("seconds") is not None:
            spent = f" ({size(record['bytes'])} in {time_spent(record['seconds'])})"
        name, place = record["checkpoint"], record["place"]
        yield one_line(f"The root had lost {name}: it was fetched from {place}{spent}.")
    if record := of_attempt.get(COPIED):
        yield one_line(f"Copied to {record['place']}, up to step {_newest(record):,}.")
    if record := _open_trouble(of_attempt):
        yield one_line(f"Checkpoints were not copied: {record['message']}")
    if record := of_attempt.get(NOT_COPIED):
        yield one_line(record["message"])


def _newest(record: Record) -> int:
    """Return the highest step of which there is a copy."""
    return int(record.get("newest", record["step"]))


def not_copied_message(names: Sequence[str], goes_on: bool) -> str:
    """Return the sentence on checkpoints without a copy as a job ends."""
    if not names:
        return (
            "Nothing was copied: no session has saved a checkpoint, and what a program saves by "
            "itself is not copied."
        )
    was = agreeing(len(names), "was", "were")
    then = "the next start of its job copies what the root still has" if goes_on else "by hand: "
    then += "" if goes_on else "docs/object-storage.md, What was not copied"
    return f"{listed(list(names), _SHOWN)} {was} not copied before the job ended; {then}."


def _open_trouble(of_attempt: Mapping[str, Record]) -> Record | None:
    """Return the newest trouble, unless something was copied after it."""
    made, trouble = of_attempt.get(COPIED) or {}, of_attempt.get(TROUBLE)
    if trouble is None or (made.get("time") or 0.0) > (trouble.get("time") or 0.0):
        return None
    return trouble
