"""Experiments beside each other: a column each, a row for each fact and each value that differs."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from hpcrun.observe import diff
from hpcrun.observe.read.run_values import MISSING, lookup, show
from hpcrun.observe.tables import number
from hpcrun.text import hours_text, shortened
from hpcrun.tools.report.report import Report, RunReport

# More have no room beside each other.
_MOST, _MOST_KEYS, _LONGEST = 6, 60, 120


class ComparedRow(NamedTuple):
    """One fact of each experiment."""

    name: str
    cells: tuple[str, ...]
    is_key: bool = False
    """It is a key of the spec, of the first run of each."""

    @property
    def differs(self) -> bool:
        return len(set(self.cells)) > 1


def rows(found: Report) -> list[ComparedRow]:
    """Return what two to six experiments have in common, and in what they differ; else none."""
    if not 2 <= len(found.bases) <= _MOST:
        return []
    runs = {name: [one for one in found.runs if _of(one) == name] for name in found.bases}
    facts = [_facts(found, name, those) for name, those in runs.items()]
    names = dict.fromkeys(name for each in facts for name in each)
    rows = [ComparedRow(name, tuple(each.get(name, "") for each in facts)) for name in names]
    specs = [one.run.spec for one in found.bases.values()]
    swept = {key for one in found.runs for key in one.selected.run.swept}
    changes = (change.key for spec in specs[1:] for change in diff.changes(specs[0], spec))
    changed = [key for key in dict.fromkeys(changes) if key not in swept and key != "name"]
    # Of an empty block and one that is not, both the block and its keys are changes.
    parents = {key[:at] for key in changed for at, sign in enumerate(key) if sign == "."}
    keys = [key for key in changed if key not in parents]
    for key in keys[:_MOST_KEYS]:
        values = [lookup(spec, key) for spec in specs]
        cells = ("(not there)" if v is MISSING else shortened(show(v), _LONGEST) for v in values)
        rows.append(ComparedRow(key, tuple(cells), is_key=True))
    if (more := len(keys) - _MOST_KEYS) > 0:
        rows.append(ComparedRow(f"and {more} more keys", ("",) * len(specs), is_key=True))
    return rows


def _of(run: RunReport) -> str:
    return run.selected.experiment.name


def _facts(found: Report, name: str, runs: Sequence[RunReport]) -> dict[str, str]:
    """Return what there is to say of one experiment."""
    states = Counter(one.story.status.state for one in runs).most_common()
    facts = {"runs": ", ".join(f"{count} {state}" for state, count in states)}
    ranked = [place for place in found.ranked if _of(found.runs[place]) == name]
    if ranked:
        values = [found.results.rows[place][f"{found.objective}.best"] for place in ranked]
        best = found.runs[ranked[0]]
        facts[f"best {found.objective}"] = number(values[0])
        facts[f"median of the best {found.objective}"] = number(statistics.median(values))
        facts["the best run"] = " ".join(filter(None, (best.name, best.selected.run.label)))
    for total in found.totals:
        if total.experiment == name:
            facts[f"paid {total.unit}"] = hours_text(total.paid)
            facts["useful"] = "" if total.share is None else f"{total.share:.0%}"
            if total.money_text:
                facts["money"] = total.money_text
    causes: Counter[str] = Counter(one.story.kind for one in runs if one.story.kind)
    wrong = ", ".join(f"{count} {kind}" for kind, count in causes.most_common())
    facts["what went wrong"] = wrong or "nothing"
    return facts
