"""What changed between two experiments, or two runs: values, runs and frozen code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcrun.errors import UsageError
from hpcrun.observe.read import detail
from hpcrun.observe.read.filter import MISSING, flatten, lookup
from hpcrun.observe.read.selection import Selected
from hpcrun.state.plan import RunPlan
from hpcrun.submit.code import snapshot
from hpcrun.submit.code.code_diff import ADDED, CHANGED, REMOVED, CodeDiff


@dataclass(frozen=True)
class Change:
    """A value that is not the same; ``MISSING`` where a side has none."""

    key: str
    before: Any
    after: Any


@dataclass(frozen=True)
class Group:
    """Runs of both sides that changed alike.

    Attributes
    ----------
    labels
        Of the runs; one that is empty for a run without swept values.
    changes
        By key, in the order of the spec.
    """

    labels: tuple[str, ...]
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class Difference:
    """All of it.

    Attributes
    ----------
    groups
        Runs that both sides have and whose values differ.
    same
        How many runs are the same on both sides.
    only_before, only_after
        Labels of the runs that one side alone has.
    code
        None where a side's frozen code cannot be read; ``problem`` says why.
    """

    groups: tuple[Group, ...]
    same: int
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    code: CodeDiff | None
    problem: str = ""

    def to_data(self) -> dict[str, Any]:
        """What ``hpcrun diff --json`` prints; a side that has no value has no entry."""
        code = None
        if self.code is not None:
            code = {how: self.code.names(how) for how in (ADDED, REMOVED, CHANGED)}
        return {
            "changed": [
                {"runs": list(group.labels), "values": [_data(one) for one in group.changes]}
                for group in self.groups
            ],
            "same": self.same,
            "only_before": list(self.only_before),
            "only_after": list(self.only_after),
            "code": code,
        }


def difference(before: Sequence[Selected], after: Sequence[Selected]) -> Difference:
    """Compare two selections; runs are paired by their swept values, two single runs always."""
    if len(before) == len(after) == 1:
        pairs = [(before[0].run.label, before[0].run, after[0].run)]
        missing: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    else:
        one, other = _by_label(before), _by_label(after)
        pairs = [(label, one[label], other[label]) for label in one if label in other]
        missing = (
            tuple(label for label in one if label not in other),
            tuple(label for label in other if label not in one),
        )
    alike: dict[str, tuple[list[str], tuple[Change, ...]]] = {}
    same = 0
    for label, first, second in pairs:
        found = changes(_values(first), _values(second))
        if not found:
            same += 1
            continue
        alike.setdefault(repr(found), ([], found))[0].append(label)
    groups = tuple(Group(tuple(labels), found) for labels, found in alike.values())
    code, problem = None, ""
    try:
        code = code_difference(before[0], after[0])
    except UsageError as error:
        problem = error.message
    return Difference(groups, same, *missing, code, problem)


def changes(before: dict[str, Any], after: dict[str, Any]) -> tuple[Change, ...]:
    """The leaves of nested mappings that differ; 1, 1.0 and true are three values."""
    keys = dict.fromkeys([*flatten(before), *flatten(after)])
    pairs = [(key, _at(before, key), _at(after, key)) for key in keys]
    return tuple(
        Change(key, one, other)
        for key, one, other in pairs
        if (type(one), one) != (type(other), other)
    )


def code_difference(before: Selected, after: Selected) -> CodeDiff:
    """Compare the code that was frozen for two runs.

    Raises
    ------
    UsageError
        A submission did not record its code, or the archive cannot be read.
    """
    one, other = detail.code(before), detail.code(after)
    if one.get("digest") == other.get("digest"):
        return CodeDiff({}, {})
    return CodeDiff(snapshot.read(Path(one["archive"])), snapshot.read(Path(other["archive"])))


def _by_label(selected: Sequence[Selected]) -> dict[str, RunPlan]:
    """The newest run of each label."""
    return {one.run.label: one.run for one in sorted(selected, key=lambda one: one.run.number)}


def _values(run: RunPlan) -> dict[str, Any]:
    """What a run is, but for its experiment's name; the entry as one would write it."""
    entry = run.entry
    what = f"{entry.module}:{entry.function}" if entry.module else entry.file
    spec = {name: value for name, value in run.spec.items() if name not in ("name", "entry")}
    return {"entry": what or list(entry.argv), **spec}


def _at(data: Any, key: str) -> Any:
    found = lookup(data, key)
    return MISSING if isinstance(found, dict) and found else found


def _data(change: Change) -> dict[str, Any]:
    sides = {"before": change.before, "after": change.after}
    return {"key": change.key, **{k: v for k, v in sides.items() if v is not MISSING}}
