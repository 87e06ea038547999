"""Steps that a program prints and hpcrun does not read: the ``progress.pattern`` that would."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence

from hpcrun.observe.read.selection import Selected
from hpcrun.state import files
from hpcrun.state.metrics_file import RESERVED

_TAIL_BYTES, _LONGEST, _MOST_METRICS = 1 << 16, 400, 4
# Lines that show a step, and programs whose log is looked into at once.
_LEAST, _MOST_RUNS = 3, 3

_STEP = re.compile(
    r"\b(?P<word>global_step|steps?|iter(?:ation)?s?|epochs?)(?P<between>[ :=#\[(]{1,4})"
    r"(?P<step>\d{1,12})(?:(?P<of> ?/ ?| of )(?P<total>\d{1,12}))?(?![\w.])",
    re.ASCII | re.IGNORECASE,
)
_METRIC = re.compile(
    r"\b(?P<name>[A-Za-z_]\w{0,30})(?P<between> ?[:=] ?| )"
    r"[-+]?\d+(?:\.\d*)?(?:e[-+]?\d+)?(?![\w/.])",
    re.ASCII | re.IGNORECASE,
)


def proposed(lines: Iterable[str]) -> str | None:
    """Return the pattern that reads the steps of these lines; None if no form is unmistakable."""
    found: dict[str, list[tuple[re.Match[str], str]]] = {}
    for line in lines:
        for match in _STEP.finditer(line):
            found.setdefault(match["word"], []).append((match, line))
    # Steps before epochs, in which they may be counted anew.
    for word in sorted(found, key=lambda one: (one.lower().startswith("epoch"), -len(found[one]))):
        steps = [int(match["step"]) for match, _ in found[word]]
        if len(set(steps)) >= _LEAST and steps == sorted(steps):
            return _pattern(found[word])
    return None


def _pattern(found: Sequence[tuple[re.Match[str], str]]) -> str | None:
    first, line = found[0]
    parts = [rf"{first['word']}{_between(first['between'])}(?P<step>\d+)"]
    if first["total"]:
        parts.append(rf"{_between(first['of'])}(?P<total>\d+)")
    names: set[str] = {"step", "total", *RESERVED}
    for metric in _METRIC.finditer(line, first.end()):
        name = metric["name"]
        if name not in names and len(names) < _MOST_METRICS + 2 + len(RESERVED):
            names.add(name)
            parts.append(rf".*?\b{name}{_between(metric['between'])}(?P<{name}>[-+.\w]+)")
    pattern = "".join(parts)
    # A line that shows another form would be left out.
    return pattern if all(re.search(pattern, each) for _, each in found) else None


def _between(text: str) -> str:
    """Return an expression for what stands between a word and its number."""
    return "".join(" +" if part.isspace() else re.escape(part) for part in re.split("( +)", text))


def of_run(selected: Selected, attempt: int) -> str | None:
    """Return the line of a spec that would have an attempt's steps read; None if none is known."""
    run = selected.run
    settings = run.spec.get("progress") or {}
    if run.entry.kind == "function" or settings.get("pattern") or settings.get("source") == "none":
        return None
    log = selected.paths.attempt(attempt).rank_log(0)
    with contextlib.suppress(OSError):
        text = files.read_tail(log, _TAIL_BYTES).decode(errors="replace")
        pattern = proposed(line[:_LONGEST] for line in text.splitlines())
        return None if pattern is None else f"progress: {{pattern: '{pattern}'}}"
    return None


def told(without: Iterable[tuple[Selected, int]]) -> Iterator[str]:
    """Yield what to say of runs and their attempts in which no step was read, once a line."""
    said: set[str] = set()
    for _, (selected, attempt) in zip(range(_MOST_RUNS), without, strict=False):
        line = of_run(selected, attempt)
        if line is not None and line not in said:
            said.add(line)
            yield (
                f"{selected.name} prints steps that hpcrun does not read; with this line in its "
                f"spec it does:\n{line}"
            )
