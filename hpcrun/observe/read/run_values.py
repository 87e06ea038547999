"""The keys of runs and their values: swept, configured, tags and notes; the columns of tables."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from hpcrun import bounded_json
from hpcrun.errors import UsageError
from hpcrun.state import chosen_point, job_changes
from hpcrun.state.annotation_log import Annotation
from hpcrun.state.plan import SEARCH, RunPlan
from hpcrun.text import listed, shortened

if TYPE_CHECKING:
    from hpcrun.observe.read.selection import Selected

MISSING = object()
# The run, and its step, from which one of a population began.
_PARENT = f"{SEARCH}.parent"
TAG, NOTE = "run.tag", "run.note"
# What people said of runs, as conditions call it.
SAID = (TAG, NOTE)
# The keys of columns, and of a spec, by which these are known too.
TAGS, NOTES = "tags", "notes"
_ANNOTATION_KEYS = {TAGS: TAG, NOTES: NOTE}
# Of values that differ and were not swept, a table has so many, together with the swept ones.
MOST_COLUMNS = 6
ALL_COLUMNS = "all"
# The parts of a spec in which a difference tells most; others, and what is longer, is not shown
# unless it is asked for. The name is a column of its own.
_TELLING = ("config", "deepspeed", "resources")
_LONG = 40
_NEVER = ("name", TAGS, NOTES)


class UnknownKey(UsageError):
    """No run has a key that ends so."""


class Candidate(Protocol):
    """A run; runs of one plan have the same object as ``planned``."""

    @property
    def name(self) -> str: ...

    @property
    def run(self) -> RunPlan: ...

    @property
    def planned(self) -> object: ...

    @property
    def annotation(self) -> Annotation: ...


def resolve_key(selected: Sequence[Candidate], suffix: str, others: Collection[str] = ()) -> str:
    """Return the full key that a suffix stands for: a swept one, one of ``others``, else any.

    Of several keys that have one value in each run, it is the first. Raises UnknownKey if it
    matches no key, UsageError if it matches several.
    """
    swept = swept_keys(selected)
    matching = _matching([*swept, *others], suffix)
    if not matching:
        shapes = {id(one.planned): one.run.spec for one in selected}
        for one in selected[:: max(1, len(selected) // 16)]:
            shapes.setdefault(id(one.run), one.run.spec)
        configured = list(dict.fromkeys(key for spec in shapes.values() for key in flatten(spec)))
        matching = _matching(configured, suffix)
        if not matching:
            from difflib import get_close_matches

            leaves = [key.rpartition(".")[2] for key in (*swept, *configured)]
            leaves += [key.rpartition(".")[2] for key in others]
            close = set(get_close_matches(suffix.rpartition(".")[2], leaves, n=3, cutoff=0.6))
            candidates = [
                key
                for key in dict.fromkeys((*swept, *configured, *others))
                if key.rpartition(".")[2] in close
            ]
            known = [*swept, *(key.rpartition(".")[2] for key in others)]
            hint = f"did you mean {', '.join(candidates[:5])}?" if candidates else None
            if others:
                told = f"there are {listed(known, 12, rest=', …')}, metric.NAME and the spec's keys"
                hint = f"{hint} {told}" if hint else told
            elif hint is None and swept:
                hint = f"did you mean {', '.join(swept[:5])}?"
            raise UnknownKey(
                f"no swept or configured key ends in {shortened(suffix, 200)!r}", hint=hint
            )
    if len(matching) > 1 and not _are_alike(selected, matching):
        raise UsageError(
            f"{suffix!r} is ambiguous: it could be {', '.join(matching[:8])}",
            hint=f"write more of the key, such as {matching[0]}",
        )
    return matching[0]


def values_of(selected: Candidate, key: str) -> Iterator[Any]:
    """Yield the swept and the configured value of a key, or the tags or notes, of a run."""
    if key in SAID:
        yield from annotation_texts(selected, key)
    if key in selected.run.swept:
        yield selected.run.swept[key]
    value = lookup(selected.run.spec, key)
    if value is not MISSING:
        yield value


def flatten(data: Any, prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys of the leaves of nested mappings."""
    if isinstance(data, dict) and data:
        for key, value in data.items():
            yield from flatten(value, f"{prefix}.{key}" if prefix else str(key))
    elif prefix:
        yield prefix


def equal(value: Any, text: str) -> bool:
    """Compare a value with what ``text`` writes: ``0.0003`` is ``3e-4``, ``null`` is None."""
    if isinstance(value, bool) or value is None:
        return text.lower() == show(value)
    if isinstance(value, (int, float)):
        try:
            return float(text) == float(value)
        except (ValueError, OverflowError):
            return False
    if isinstance(value, (list, dict)):
        try:
            return bool(bounded_json.parse(text.encode(errors="replace")) == value)
        except ValueError:
            return False
    return str(value) == text


def show(value: Any) -> str:
    """Return a value as the user would write it."""
    if isinstance(value, str):
        return value
    if type(value) is int or (type(value) is float and math.isfinite(value)):
        return repr(value)
    return json.dumps(value, default=str)


def _are_alike(selected: Sequence[Candidate], keys: Sequence[str]) -> bool:
    """Check whether keys have one value in each run."""
    first, *others = keys
    for one in selected:
        values = list(values_of(one, first))
        if not values or any(list(values_of(one, key)) != values for key in others):
            return False
    return True


def _matching(keys: Sequence[str], suffix: str) -> list[str]:
    if suffix in keys:
        return [suffix]
    return [key for key in keys if key.endswith(f".{suffix}")]


def lookup(data: Any, key: str) -> Any:
    """Return the value at a dotted key of nested mappings, or ``MISSING``."""
    for part in key.split("."):
        if not isinstance(data, dict) or part not in data:
            return MISSING
        data = data[part]
    return data


def condition_key(name: str) -> str:
    """Return the key of a condition for one of a column: ``run.tag`` for ``tags``."""
    return _ANNOTATION_KEYS.get(name, name)


def annotation_column(name: str) -> str | None:
    """Return the column that a word stands for; None if it is no tag and no note."""
    found = name.removeprefix("run.")
    return next((one for one in (TAGS, NOTES) if found in (one, one[:-1])), None)


def annotation_texts(one: Candidate, key: str) -> Sequence[str]:
    """Return the tags, or the texts of the notes, of a run."""
    if key == TAG:
        return one.annotation.tags
    return [note.text for note in one.annotation.notes]


def annotation_row(one: Selected, column: str) -> dict[str, Any]:
    """Return a run with its tags or its notes, as plain data."""
    found = one.annotation.to_data()[column]
    return {"experiment": one.experiment.name, "run": one.run.number, column: found}


def all_tags(annotations: Iterable[Annotation]) -> Sequence[str]:
    """Return every tag, sorted."""
    return sorted({tag for one in annotations for tag in one.tags})


def swept_keys(selected: Sequence[Candidate]) -> list[str]:
    """Return the keys that any of the runs was swept over, in their order."""
    return list(dict.fromkeys(key for one in selected for key in one.run.swept))


def further_columns(selected: Sequence[Selected]) -> list[str]:
    """Return the keys of the columns of parents and tags, if any of the runs has one."""
    parents = [_PARENT] if any(chosen_point.parent_of(one.run) for one in selected) else []
    return [*parents, *([TAGS] if any(one.annotation.tags for one in selected) else [])]


def choose_columns(
    selected: Sequence[Selected], names: Sequence[str] = (), *, alike: bool = True
) -> tuple[list[str], int]:
    """Return the keys to show, and how many more differ.

    Without ``names`` these are the swept keys and, up to `MOST_COLUMNS` in all, others that differ
    between the runs' plans, the most telling first; `ALL_COLUMNS` is all of them. Tags are shown
    where there are any. Of experiments that are not ``alike``, having nothing to do with one
    another, swept keys alone are shown, as many. Raises UsageError for a name that is no key.
    """
    if names and ALL_COLUMNS not in names:
        keys = (annotation_column(name) or resolve_key(selected, name) for name in names)
        return list(dict.fromkeys(keys)), 0
    swept = swept_keys(selected)
    if not (alike or names) and len({one.experiment for one in selected}) > 1:
        return [*swept[:MOST_COLUMNS], *further_columns(selected)], len(swept[MOST_COLUMNS:])
    others = _differing(selected, swept)
    telling = [key for key, tells in others.items() if tells or names]
    shown = telling if names else telling[: max(0, MOST_COLUMNS - len(swept))]
    return [*swept, *shown, *further_columns(selected)], len(others) - len(shown)


def left_out_columns(count: int) -> str:
    """Return the line that says how many keys were left out, and what shows them."""
    differ = "1 more value differs" if count == 1 else f"{count} more values differ"
    return f"{differ} between these runs: --columns all shows all, --columns KEY,KEY some"


def column_value(one: Selected, key: str) -> Any:
    """Return the swept value of a key, else the configured one; None if the run has neither yet.

    What `hpcrun update` gave its job outweighs its plan. Of tags and notes, return the run's own in
    one text.
    """
    if key in (TAGS, NOTES):
        separator = "," if key == TAGS else "; "
        return separator.join(annotation_texts(one, _ANNOTATION_KEYS[key])) or None
    is_open = not one.run.swept and key in one.run.spec.get(SEARCH, {}).get("space", ())
    changes = one.submission.changes if one.submission else {}
    spec = job_changes.apply(one.run.spec, changes)
    found = MISSING if is_open else one.run.swept.get(key, lookup(spec, key))
    return None if found is MISSING else found


def _differing(selected: Sequence[Selected], swept: Sequence[str]) -> dict[str, bool]:
    """Return the keys in which runs of several plans differ, the most telling first.

    One run speaks for each plan. The values say whether a key is worth a column.
    """
    specs = list({id(one.planned): one.run.spec for one in selected}.values())
    if len(specs) < 2:
        return {}
    # By their texts: of keys with the same values, one is interpolated from the other.
    found: dict[tuple[str | None, ...], tuple[int, bool, str]] = {}
    copies = {_texts(specs, key) for key in swept}
    for key in dict.fromkeys(key for spec in specs for key in flatten(spec)):
        part, texts = key.partition(".")[0], _texts(specs, key)
        if len(set(texts)) < 2 or texts in copies or key in swept or part in _NEVER:
            continue
        is_long = any(len(text or "") > _LONG for text in texts)
        place = len(_TELLING) if is_long or part not in _TELLING else _TELLING.index(part)
        if texts not in found or place < found[texts][0]:
            found[texts] = (place, None in texts, key)
    ordered = sorted(found.values(), key=lambda one: one[:2])
    return {key: place < len(_TELLING) for place, _, key in ordered}


def _texts(specs: Sequence[dict[str, Any]], key: str) -> tuple[str | None, ...]:
    """Return what each spec has for a key; None where it has none, or a block of keys."""
    values = [lookup(spec, key) for spec in specs]
    return tuple(
        None if value in (MISSING, None) or isinstance(value, dict) else show(value)
        for value in values
    )
