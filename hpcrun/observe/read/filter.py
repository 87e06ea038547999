"""Filter of runs by swept or configured values: ``--where 'lr=3e-4'``."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any, Protocol, TypeVar

from hpcrun import bounded_json
from hpcrun.errors import UsageError
from hpcrun.state.plan import RunPlan
from hpcrun.text import listed, shortened

MISSING = object()


class Candidate(Protocol):
    """A run; runs of one plan have the same object as ``planned``."""

    @property
    def run(self) -> RunPlan: ...

    @property
    def planned(self) -> object: ...


Narrowed = TypeVar("Narrowed", bound=Candidate)


def narrow(
    selected: Sequence[Narrowed], conditions: Sequence[str], option: str = "--where"
) -> list[Narrowed]:
    """Return the runs that meet every ``key=value``; error messages name the ``option``.

    ``key`` is a full dotted key, or a suffix that is unique among the swept keys or, if it matches
    none of these, among all configured ones. Numbers compare as numbers. Raises UsageError if a
    condition has no ``=``, its key is unknown or ambiguous, or no run meets all of them.
    """
    left = list(selected)
    for condition in conditions:
        suffix, equals, text = condition.partition("=")
        suffix = suffix.strip()
        if not equals or not suffix:
            shown = shortened(condition, 200)
            raise UsageError(f"{option} {shown!r} is not of the form key=value")
        key = resolve_key(selected, suffix)
        before, left = left, [one for one in left if _meets(one, key, text.strip())]
        if not left:
            values = sorted({show(value) for one in before for value in values_of(one, key)})
            shown = shortened(listed(values, 12, rest=", …"))
            wanted = shortened(text.strip(), 200)
            raise UsageError(f"no run has {key}={wanted}; its values are {shown or 'none'}")
    return left


def resolve_key(selected: Sequence[Candidate], suffix: str) -> str:
    """Return the full key that a suffix stands for.

    Raises UsageError if it matches no key, or several.
    """
    swept = list(dict.fromkeys(key for one in selected for key in one.run.swept))
    matching = _matching(swept, suffix)
    if not matching:
        shapes = {id(one.planned): one.run.spec for one in selected}
        for one in selected[:: max(1, len(selected) // 16)]:
            shapes.setdefault(id(one.run), one.run.spec)
        configured = list(dict.fromkeys(key for spec in shapes.values() for key in flatten(spec)))
        matching = _matching(configured, suffix)
        if not matching:
            leaves = [key.rpartition(".")[2] for key in (*swept, *configured)]
            close = set(get_close_matches(suffix.rpartition(".")[2], leaves, n=3, cutoff=0.6))
            candidates = [
                key
                for key in dict.fromkeys((*swept, *configured))
                if key.rpartition(".")[2] in close
            ] or swept
            hint = f"did you mean {', '.join(candidates[:5])}?" if candidates else None
            raise UsageError(
                f"no swept or configured key ends in {shortened(suffix, 200)!r}", hint=hint
            )
    if len(matching) > 1:
        raise UsageError(
            f"{suffix!r} is ambiguous: it could be {', '.join(matching[:8])}",
            hint=f"write more of the key, such as {matching[0]}",
        )
    return matching[0]


def values_of(selected: Candidate, key: str) -> Iterator[Any]:
    """Yield the swept and the configured value of a key, if the run has them."""
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


def _matching(keys: Sequence[str], suffix: str) -> list[str]:
    if suffix in keys:
        return [suffix]
    return [key for key in keys if key.endswith(f".{suffix}")]


def _meets(selected: Candidate, key: str, text: str) -> bool:
    return any(equal(value, text) for value in values_of(selected, key))


def lookup(data: Any, key: str) -> Any:
    """Return the value at a dotted key of nested mappings, or ``MISSING``."""
    for part in key.split("."):
        if not isinstance(data, dict) or part not in data:
            return MISSING
        data = data[part]
    return data
