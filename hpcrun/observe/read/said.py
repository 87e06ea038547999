"""Tags and notes of runs as keys of conditions and columns: ``tag=good``, ``note~diverged``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from hpcrun.state.annotation_log import Annotation

if TYPE_CHECKING:
    from hpcrun.observe.read.selection import Selected

TAG, NOTE = SAID = ("run.tag", "run.note")
# The keys of columns, and of a spec, by which these are known too.
TAGS, NOTES = "tags", "notes"
_KEYS = {TAGS: TAG, NOTES: NOTE}


class Annotated(Protocol):
    """A run of which people said something."""

    @property
    def annotation(self) -> Annotation: ...


def key(name: str) -> str:
    """Return the key of a condition for one of a column: ``run.tag`` for ``tags``."""
    return _KEYS.get(name, name)


def column(name: str) -> str | None:
    """Return the column that a word stands for; None if it is no tag and no note."""
    found = name.removeprefix("run.")
    return next((one for one in (TAGS, NOTES) if found in (one, one[:-1])), None)


def values(one: Annotated, key: str) -> Iterator[str]:
    """Yield the tags, or the texts of the notes, of a run."""
    if key == TAG:
        yield from one.annotation.tags
    else:
        yield from (note.text for note in one.annotation.notes)


def cell(one: Annotated, column: str) -> Any:
    """Return what a run has in the column of tags or notes; None if it has nothing."""
    separator = "," if column == TAGS else "; "
    return separator.join(values(one, _KEYS[column])) or None


def row(one: Selected, column: str) -> dict[str, Any]:
    """Return a run with its tags or its notes, as plain data."""
    found = one.annotation.to_data()[column]
    return {"experiment": one.experiment.name, "run": one.run.number, column: found}


def tags(annotations: Iterable[Annotation]) -> Sequence[str]:
    """Return every tag, sorted."""
    return sorted({tag for one in annotations for tag in one.tags})
