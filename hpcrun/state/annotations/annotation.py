"""The tags and notes of a run, and the records that change them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MOST_TAGS = 100
MOST_NOTE, MOST_NOTES = 4_000, 200
ACCEPTED = "letters, digits and . _ : / -, 64 at most, a letter or digit first"
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,63}")


@dataclass(frozen=True)
class Note:
    """One note."""

    text: str
    user: str | None = None
    """Login name of the owner of the file that it is in; None for the spec's ``notes``."""
    time: float | None = None
    """Seconds since the epoch; None for the spec's."""


@dataclass(frozen=True)
class Annotation:
    """The tags and notes of a run."""

    tags: tuple[str, ...] = ()
    """In the order in which they were given."""
    notes: tuple[Note, ...] = ()
    """The newest `MOST_NOTES`, oldest first."""

    def to_data(self) -> dict[str, Any]:
        """Return plain data."""
        return {"tags": [*self.tags], "notes": [dict(vars(note)) for note in self.notes]}

    def changed(self, record: Mapping[str, Any], user: str | None) -> Annotation:
        """Return what it becomes by a record of this user's."""
        removed = set(record.get("remove") or ())
        tags = [tag for tag in self.tags if tag not in removed]
        added = [tag for tag in record.get("add") or () if is_tag(tag)]
        notes = () if record.get("clear") else self.notes
        if text := record.get("note"):
            notes = (*notes, Note(text[:MOST_NOTE], user, record.get("time")))
        return Annotation(tuple(dict.fromkeys([*tags, *added]))[:MOST_TAGS], notes[-MOST_NOTES:])


NOTHING = Annotation()


def is_tag(text: str) -> bool:
    """Check whether a text can be a tag: one that no shell, table or condition reads as more."""
    return _TAG.fullmatch(text) is not None


def of_spec(spec: Mapping[str, Any]) -> Annotation:
    """Return what a run's spec says of it."""
    tags: Sequence[str] = spec.get("tags") or ()
    notes = spec.get("notes")
    if not tags and not notes:
        return NOTHING
    return Annotation(tuple(filter(is_tag, tags)), (Note(notes),) if notes else ())
