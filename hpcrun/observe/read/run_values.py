"""The keys of runs and their values: what was swept, and what is configured."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Protocol

from hpcrun import bounded_json
from hpcrun.errors import UsageError
from hpcrun.observe.read import said
from hpcrun.observe.read.said import Annotated
from hpcrun.state.plan import RunPlan
from hpcrun.text import listed, shortened

MISSING = object()


class UnknownKey(UsageError):
    """No run has a key that ends so."""


class Candidate(Annotated, Protocol):
    """A run; runs of one plan have the same object as ``planned``."""

    @property
    def name(self) -> str: ...

    @property
    def run(self) -> RunPlan: ...

    @property
    def planned(self) -> object: ...


def resolve_key(selected: Sequence[Candidate], suffix: str, others: Collection[str] = ()) -> str:
    """Return the full key that a suffix stands for: a swept one, one of ``others``, else any.

    Of several keys that have one value in each run, it is the first. Raises UnknownKey if it
    matches no key, UsageError if it matches several.
    """
    swept = list(dict.fromkeys(key for one in selected for key in one.run.swept))
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
    if key in said.SAID:
        yield from said.values(selected, key)
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
