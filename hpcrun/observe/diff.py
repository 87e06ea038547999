"""The difference of two experiments or runs: values, runs and frozen code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcrun.errors import UsageError
from hpcrun.observe.read import detail
from hpcrun.observe.read.run_values import MISSING, flatten, lookup
from hpcrun.observe.read.selection import Selected
from hpcrun.state.plan import RunPlan
from hpcrun.state.spec import blocks
from hpcrun.submission.code import snapshot
from hpcrun.submission.code.code_diff import ADDED, CHANGED, REMOVED, CodeDiff


@dataclass(frozen=True)
class Change:
    """A value that differs; ``MISSING`` on the side that has none."""

    key: str
    before: Any
    after: Any

    def to_data(self) -> dict[str, Any]:
        """Return plain data; a side that has no value has no entry."""
        sides = {"before": self.before, "after": self.after}
        return {"key": self.key, **{k: v for k, v in sides.items() if v is not MISSING}}


@dataclass(frozen=True)
class ChangedRuns:
    """The labels of runs that changed alike (empty without swept values), and the changes."""

    labels: tuple[str, ...]
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class Difference:
    """The difference of two selections."""

    groups: tuple[ChangedRuns, ...]
    """Runs that both sides have and whose values differ."""
    same: int
    """The number of runs that are the same on both sides."""
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    """Labels of the runs that only this side has."""
    code: CodeDiff | None
    """None if the frozen code of a side cannot be read, because of the ``problem``."""
    problem: str = ""
    of_one_version: tuple[str, ...] = ()
    """Keys that only the hpcrun of one side knew, where the other has what their absence means;
    they are no changes."""

    def to_data(self) -> dict[str, Any]:
        """Return plain data, without the patch."""
        code = self.code
        return {
            "changed": [
                {"runs": list(group.labels), "values": [one.to_data() for one in group.changes]}
                for group in self.groups
            ],
            "same": self.same,
            "only_before": list(self.only_before),
            "only_after": list(self.only_after),
            "code": code and {how: code.names(how) for how in (ADDED, REMOVED, CHANGED)},
            **({"of_one_version": list(self.of_one_version)} if self.of_one_version else {}),
        }


def difference(before: Sequence[Selected], after: Sequence[Selected]) -> Difference:
    """Compare two selections; runs are paired by their swept values, two single runs always."""
    one, other = _by_label(before), _by_label(after)
    if len(before) == len(after) == 1:
        other = dict.fromkeys(one, after[0].run)
    alike: dict[str, tuple[list[str], tuple[Change, ...]]] = {}
    same = 0
    usual, passed_over = blocks.when_absent(), dict[str, None]()
    for label in one:
        if label not in other:
            continue
        values = _values(one[label]), _values(other[label])
        known = {key: None for key in flatten(usual) if _is_of_one_version(key, *values, usual)}
        passed_over.update(known)
        found = tuple(one for one in changes(*values) if one.key not in known)
        if found:
            alike.setdefault(repr(found), ([], found))[0].append(label)
        else:
            same += 1
    code, problem = None, ""
    try:
        code = code_difference(before[0], after[0])
    except UsageError as error:
        problem = error.message
    return Difference(
        groups=tuple(ChangedRuns(tuple(labels), found) for labels, found in alike.values()),
        same=same,
        only_before=tuple(label for label in one if label not in other),
        only_after=tuple(label for label in other if label not in one),
        code=code,
        problem=problem,
        of_one_version=tuple(passed_over),
    )


def _is_of_one_version(
    key: str, before: dict[str, Any], after: dict[str, Any], usual: dict[str, Any]
) -> bool:
    """Check whether one side lacks a key of specs, and the other has what its absence means."""
    one, other = lookup(before, key), lookup(after, key)
    return (one is MISSING) != (other is MISSING) and lookup(usual, key) in (one, other)


def changes(before: dict[str, Any], after: dict[str, Any]) -> tuple[Change, ...]:
    """List the leaves of nested mappings that differ; 1, 1.0 and true are three values."""
    keys = dict.fromkeys([*flatten(before), *flatten(after)])
    found = [Change(key, _at(before, key), _at(after, key)) for key in keys]
    return tuple(
        one for one in found if (type(one.before), one.before) != (type(one.after), one.after)
    )


def code_difference(before: Selected, after: Selected) -> CodeDiff:
    """Compare the code that was frozen for two runs.

    Raises UsageError if a submission did not record its code, or the archive cannot be read.
    """
    one, other = detail.code(before), detail.code(after)
    if one.get("digest") == other.get("digest"):
        return CodeDiff({}, {})
    return CodeDiff(snapshot.read(Path(one["archive"])), snapshot.read(Path(other["archive"])))


def _by_label(selected: Sequence[Selected]) -> dict[str, RunPlan]:
    """Return the newest run of each label."""
    return {one.run.label: one.run for one in sorted(selected, key=lambda one: one.run.number)}


def _values(run: RunPlan) -> dict[str, Any]:
    """Return a run's spec without its experiment's name, and the entry as one would write it."""
    entry = run.entry
    what = f"{entry.module}:{entry.function}" if entry.module else entry.file
    spec = {name: value for name, value in run.spec.items() if name not in ("name", "entry")}
    # Of a command as it was written: its flags are those of ``config``.
    return {"entry": what or run.spec.get("entry"), **spec}


def _at(data: Any, key: str) -> Any:
    found = lookup(data, key)
    return MISSING if isinstance(found, dict) and found else found
