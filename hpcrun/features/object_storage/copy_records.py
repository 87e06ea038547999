"""The ledger's records of copies, and the sentences that they become."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hpcrun.fields import COUNT, NAME, NUMBER, TEXT, TEXTS, WHOLE, Kinds, wrong
from hpcrun.state import files
from hpcrun.state.layout import RunPaths
from hpcrun.text import agreeing, listed, one_line, size, time_spent

EVENT = "object_storage"
# The values of a record's ``what``.
COPIED = "copied"  # a checkpoint is complete there
FETCHED = "fetched"  # one that the root had lost is complete here again
PASSED_OVER = "passed_over"  # a copy that is damaged, gone or another one than was made
TROUBLE = "trouble"  # nothing is copied for now
NOT_COPIED = "not_copied"  # checkpoints of which there was no copy as the job ended
FIELDS: Kinds = {
    **dict.fromkeys(("what", "place", "digest", "message"), TEXT),
    "checkpoint": NAME,
    "step": WHOLE,
    "bytes": COUNT,
    "seconds": NUMBER,
    "names": TEXTS,
}
NEEDED = ("what",)
_NEEDED_OF_COPY = ("what", "checkpoint", "step", "place", "digest", "bytes")
_NAME = re.compile("step-([0-9]{1,15})-a([0-9]{1,9})")
_SHOWN = 3

Record = Mapping[str, Any]


def step_and_attempt(name: str) -> tuple[int, int] | None:
    """Return the step and the attempt of a checkpoint's name; None if it is no such name."""
    found = _NAME.fullmatch(name)
    return (int(found[1]), int(found[2])) if found else None


def read(run: RunPaths) -> list[Record]:
    """Read the records of a run, in order; those that no supervisor wrote are left out.

    Raises OSError if the ledger cannot be read; a run without one has none.
    """
    found: list[Record] = []
    try:
        for record in files.read_lines(run.ledger):
            if record.get("event") != EVENT:
                continue
            is_of_copy = record.get("what") == COPIED
            needed = _NEEDED_OF_COPY if is_of_copy else NEEDED
            name = record.get("checkpoint")
            is_named = not name or (type(name) is str and step_and_attempt(name) is not None)
            if not wrong(record, FIELDS, needed) and is_named:
                found.append(record)
    except FileNotFoundError:
        pass
    return found


def copies(records: Iterable[Record]) -> list[Record]:
    """Return the newest record of each copy that may be fetched, the newest checkpoint first.

    One that was passed over is left out until it is copied again.
    """
    last: dict[str, Record] = {}
    for record in records:
        if record["what"] in (COPIED, PASSED_OVER) and record.get("checkpoint"):
            last[record["checkpoint"]] = record
    found = [record for record in last.values() if record["what"] == COPIED]
    return sorted(found, key=lambda one: step_and_attempt(one["checkpoint"]) or (), reverse=True)


def passed_over(records: Iterable[Record]) -> set[str]:
    """Return the names of checkpoints whose copies were found to be of no use."""
    seen = [one for one in records if one["what"] in (COPIED, PASSED_OVER)]
    known = {one["checkpoint"] for one in copies(seen)}
    return {one["checkpoint"] for one in seen if one.get("checkpoint")} - known


def word(records: Sequence[Record]) -> str | None:
    """Return a few words on the copies, for ``status``; None where nothing is known of any."""
    made = copies(records)
    trouble = _open_trouble(records)
    if trouble is not None:
        return "not copied: " + str(trouble.get("message") or "")
    return f"copied up to step {made[0]['step']:,}" if made else None


def sentences(records: Sequence[Record]) -> Iterator[str]:
    """Describe the copies of a run, for ``why``."""
    for record in records:
        message, name = record.get("message") or "", record.get("checkpoint") or "?"
        if record["what"] == FETCHED:
            spent = ""
            if record.get("bytes") is not None and record.get("seconds") is not None:
                spent = f" ({size(record['bytes'])} in {time_spent(record['seconds'])})"
            where = record.get("place") or "?"
            attempt = record.get("attempt")
            yield one_line(
                f"The root had lost {name}: attempt {attempt} fetched it from {where}{spent}."
            )
        elif record["what"] == PASSED_OVER:
            yield one_line(f"The copy of {name} was not used: {message}.")
    if made := copies(records):
        yield one_line(f"Copied to {made[0]['place']}, up to step {made[0]['step']:,}.")
    trouble = _open_trouble(records)
    if trouble is not None:
        yield one_line(f"Checkpoints are not copied: {trouble.get('message') or ''}")
    last = records[-1] if records else {}
    if last.get("what") == NOT_COPIED:
        yield one_line(f"{last.get('message') or ''}")


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


def _open_trouble(records: Sequence[Record]) -> Record | None:
    """Return the newest trouble after which nothing was copied; None without one."""
    for record in reversed(records):
        if record["what"] in (COPIED, TROUBLE):
            return record if record["what"] == TROUBLE else None
    return None
