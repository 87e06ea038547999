"""The columns of values in tables of runs: what was swept, and what else differs between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcrun.observe.read import said
from hpcrun.observe.read.run_values import MISSING, flatten, lookup, resolve_key, show
from hpcrun.observe.read.selection import Selected

# Of values that differ and were not swept, a table has so many, together with the swept ones.
MOST = 6
ALL = "all"
# The parts of a spec in which a difference tells most; others, and what is longer, is not shown
# unless it is asked for. The name is a column of its own.
_TELLING = ("config", "deepspeed", "resources")
_LONG = 40
_NEVER = ("name", said.TAGS, said.NOTES)


def swept_keys(selected: Sequence[Selected]) -> list[str]:
    """Return the keys that any of the runs was swept over, in their order."""
    return list(dict.fromkeys(key for one in selected for key in one.run.swept))


def tagged(selected: Sequence[Selected]) -> list[str]:
    """Return the key of the tags' column, if any of the runs has a tag."""
    return [said.TAGS] if any(one.annotation.tags for one in selected) else []


def choose(selected: Sequence[Selected], names: Sequence[str] = ()) -> tuple[list[str], int]:
    """Return the keys to show, and how many more differ.

    Without ``names`` these are the swept keys and, up to `MOST` in all, others that differ between
    the runs' plans, the most telling first; `ALL` is all of them. Tags are shown where there are
    any. Raises UsageError for a name that is no key.
    """
    if names and ALL not in names:
        keys = (said.column(name) or resolve_key(selected, name) for name in names)
        return list(dict.fromkeys(keys)), 0
    swept = swept_keys(selected)
    others = _differing(selected, swept)
    telling = [key for key, tells in others.items() if tells or names]
    shown = telling if names else telling[: max(0, MOST - len(swept))]
    return [*swept, *shown, *tagged(selected)], len(others) - len(shown)


def left_out(count: int) -> str:
    """Return the line that says how many keys were left out, and what shows them."""
    differ = "1 more value differs" if count == 1 else f"{count} more values differ"
    return f"{differ} between these runs: --columns all shows all, --columns KEY,KEY some"


def value(one: Selected, key: str) -> Any:
    """Return the swept value of a key, else the configured one; None if the run has neither.

    Of tags and notes, return the run's own in one text.
    """
    if key in (said.TAGS, said.NOTES):
        return said.cell(one, key)
    found = one.run.swept.get(key, MISSING)
    found = lookup(one.run.spec, key) if found is MISSING else found
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
