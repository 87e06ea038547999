"""Completion of conditions: keys and metrics of the runs that are meant, and their values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from hpcrun.errors import HpcrunError
from hpcrun.observe.read import run_values
from hpcrun.observe.read.expression import is_condition
from hpcrun.observe.read.filter import AGE, ATTEMPTS, FACTS, METRIC, STEP, words_of
from hpcrun.observe.read.run_values import show
from hpcrun.observe.read.selection import Finder, Selected, have_begun
from hpcrun.state import job_changes
from hpcrun.tools.completion.completion_answers import PART, TypedLine, Word
from hpcrun.tools.completion.run_names import complete_names, root_of

_MOST, _MOST_LOGS = 1_000, 4
# The last comparison, as far as it is typed: a key, or a key, a sign and a value.
_LAST = re.compile(r"[^\s(]*$")
_COMPARISON = re.compile(r"(?P<key>[^<>=!~]+)(?P<sign>[<>!=]=|[<>=~])(?P<value>.*)")
_SIGNS = ("=", "<", ">", "<=", ">=")
_AGES = ("1d", "1w", "30d")


def complete_condition(line: TypedLine, incomplete: str) -> list[Word]:
    """Complete a condition on the runs that the line names so far."""
    return _complete(line, line.values.get("where", ()), incomplete)


def complete_where(line: TypedLine, incomplete: str) -> list[Word]:
    """Complete WHERE: names of experiments and runs, and conditions once something is typed."""
    named = line.values.get("where", ())
    if "/" in incomplete and not is_condition(incomplete):
        return complete_names(line, incomplete)
    names = [] if is_condition(incomplete) else complete_names(line, incomplete)
    return [*names, *(_complete(line, named, incomplete) if named or incomplete else ())]


def complete_update(line: TypedLine, incomplete: str) -> list[Word]:
    """Complete the words of `hpcrun update`: once runs are named, what can be changed of them."""
    named = line.values.get("where", ())
    known = [f"{name}=" for name in job_changes.KEYS] if named else []
    found = [Word(one, PART) for one in known if one.startswith(incomplete)]
    return [*found, *complete_where(line, incomplete)]


def complete_only(line: TypedLine, incomplete: str) -> list[Word]:
    """Complete ``--only``: its words, and conditions on the runs of the spec's experiment."""
    from hpcrun.tools.completion import spec_keys

    name = spec_keys.name_of(line)
    words = [word for word in ("new", "failed", "cancelled") if word.startswith(incomplete)]
    return [*map(Word, words), *_complete(line, [name], incomplete)]


def _complete(line: TypedLine, where: Sequence[str], incomplete: str) -> list[Word]:
    selected: list[Selected] = []
    try:
        finder = Finder(root_of(line))
        selected = finder.resolve([word for word in where if not is_condition(word)])[:_MOST]
    except (HpcrunError, OSError):
        pass
    found = _LAST.search(incomplete)
    last = found[0] if found else ""
    head = incomplete[: len(incomplete) - len(last)]
    typed = _COMPARISON.fullmatch(last)
    if not typed:
        return [Word(head + word, PART, is_condition=True) for word in _keys(selected, last)]
    *before, value = typed["value"].split(",")
    head += typed["key"] + typed["sign"] + "".join(f"{one}," for one in before)
    values = [one for one in _values(selected, typed["key"]) if one.startswith(value)]
    return [Word(head + one, is_condition=True) for one in values]


def _keys(selected: Sequence[Selected], typed: str) -> Iterator[str]:
    """Yield keys that begin so, with the sign that is usual; of one in full, all signs."""
    numeric = {_short(ATTEMPTS), _short(STEP), _short(AGE)}
    signs = {_short(key): ">" if _short(key) in numeric else "=" for key in FACTS}
    signs |= {"tag": "="} if any(one.annotation.tags for one in selected) else {}
    signs |= {"note": "~"} if any(one.annotation.notes for one in selected) else {}
    for one in selected:
        for key, value in one.run.swept.items():
            signs.setdefault(key.rpartition(".")[2], "=")
            if isinstance(value, (int, float)):
                numeric.add(key.rpartition(".")[2])
    metrics = _metrics(selected)
    for name in metrics if typed else ():
        signs.setdefault(name, "<")
    if typed.startswith(METRIC):
        signs |= {METRIC + name: "<" for name in metrics}
    elif metrics and METRIC.startswith(typed):
        signs[METRIC] = ""
    numeric.update(metrics, (METRIC + name for name in metrics))
    for key, sign in signs.items():
        if key == typed and key in numeric:
            yield from (key + each for each in _SIGNS[key == _short(AGE) :])
        elif key.startswith(typed):
            yield key + sign


def _values(selected: Sequence[Selected], key: str) -> list[str]:
    """Return what a key can be, or is in some run."""
    found = dict.fromkeys(
        word for fact in FACTS if key in (fact, _short(fact)) for word in words_of(fact)
    )
    if key in (AGE, _short(AGE)):
        found |= dict.fromkeys(_AGES)
    if run_values.condition_key(key).removeprefix("run.") == "tag":
        found |= dict.fromkeys(run_values.all_tags(one.annotation for one in selected))
    for one in selected:
        for full, value in one.run.swept.items():
            if full == key or full.endswith(f".{key}"):
                found[show(value)] = None
    return [*found]


def _metrics(selected: Sequence[Selected]) -> list[str]:
    """Return the names of metrics that some of the runs logged lately."""
    from hpcrun.observe.read import metric_curves

    names: dict[str, None] = {}
    there = [one for one, is_begun in zip(selected, have_begun(selected), strict=True) if is_begun]
    for one in there[:: max(1, len(there) // _MOST_LOGS)]:
        try:
            attempts = [attempt.number for attempt in one.paths.attempts()]
            names.update(dict.fromkeys(metric_curves.latest(one.paths, attempts).values))
        except (HpcrunError, OSError):
            continue
    return sorted(names)


def _short(key: str) -> str:
    return key.removeprefix("run.")
