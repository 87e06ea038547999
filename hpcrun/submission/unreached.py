"""Runs with other code than that of now, and changes that do not reach queued or running ones.

A submit leaves those runs as they are, so what was changed meanwhile would be dropped in silence.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcrun import activity
from hpcrun.errors import UsageError
from hpcrun.state import annotation_log, job_changes
from hpcrun.state.job_changes import JobChange
from hpcrun.state.layout import ExperimentPaths
from hpcrun.state.plan import Plan
from hpcrun.submission.code import code_files, snapshot
from hpcrun.submission.code.code_diff import CodeDiff
from hpcrun.submission.run_actions import ATTACHED, Decision
from hpcrun.text import agreeing, listed, one_line, ranges, runs_text, shortened

_SHOWN = 5


@dataclass(frozen=True)
class ChangedCode:
    """Runs whose frozen code differs alike from the code of now."""

    runs: tuple[int, ...]
    files: tuple[str, ...]
    """Such as ``train.py changed``, by name."""

    def told(self, what: str) -> str:
        """``WHAT: runs 0-3: train.py changed``."""
        return f"{what}: {runs_text(self.runs)}: {listed(self.files, _SHOWN)}"


def changed_code(
    experiment: ExperimentPaths, plan: Plan, *groups: Sequence[Decision]
) -> list[list[ChangedCode]]:
    """Compare the code of now with the code that runs were last submitted with, group by group.

    The spec itself does not count: what a run computes from it is its identity. Raise UsageError if
    the code of now or the frozen code cannot be read.
    """
    archives = [_archives(experiment, decisions) for decisions in groups]
    if not any(archives):
        return [[] for _ in groups]
    with activity.doing(f"comparing {plan.code_root} with the code that runs were submitted with"):
        now = snapshot.look(code_files.scope(plan, experiment))
        changed = {
            archive: tuple(
                f"{name} {how}"
                for name, how in CodeDiff(snapshot.read(archive), now).files.items()
                if Path(plan.code_root, name) != Path(plan.spec_file)
            )
            for archive in {each for group in archives for each in group}
        }
    return [
        [
            ChangedCode(tuple(sorted(runs)), changed[one])
            for one, runs in group.items()
            if changed[one]
        ]
        for group in archives
    ]


def _archives(experiment: ExperimentPaths, decisions: Sequence[Decision]) -> dict[Path, list[int]]:
    """Map frozen archives to the runs that were last submitted with them."""
    found: dict[Path, list[int]] = {}
    by_submission: dict[int, list[int]] = {}
    for decision in decisions:
        if decision.job is not None:
            by_submission.setdefault(decision.job.submission, []).append(decision.run)
    for number, runs in by_submission.items():
        earlier = experiment.submission(number)
        try:
            archive = earlier.experiment.code / snapshot.read_record(earlier)["archive"]
        except UsageError:
            continue
        found.setdefault(archive, []).extend(runs)
    return found


_MAX_PARALLEL = "sweep.max_parallel"
# Key of a spec -> its name for `hpcrun update`.
_UPDATABLE = {
    ".".join(one.spec) or _MAX_PARALLEL: name
    for name, one in job_changes.KEYS.items()
    if one.spec or name == job_changes.MAX_PARALLEL
}
# Blocks in which keys are the user's own; elsewhere a key that one side lacks may be a new one of
# hpcrun's.
_FREE = ("config", "deepspeed", "environment.variables", "resources.sbatch", "cluster.variables")
# Of the command, the place of the runs and what people say of them, not of what the jobs get; and
# what of a search reaches them, as the newest submission has it, or is looked up.
_NOT_TOLD = (
    "search.budget",
    "search.told",
    "tags",
    "notes",
    "cluster.executor",
    "cluster.fabric",
    "cluster.root",
    "cluster.name",
    "cluster.confirm_above",
)


def messages(
    plans: Mapping[int, Plan],
    plan: Plan,
    decisions: Sequence[Decision],
    code: Sequence[ChangedCode] = (),
) -> list[str]:
    """Return a message for each group of queued or running runs that a change does not reach.

    ``plans`` are the earlier ones by the number of their submission, ``code`` what has changed in
    the code that these runs were submitted with.
    """
    groups: dict[tuple[_Unreached, ...], list[int]] = {}
    elsewhere: dict[str, list[int]] = {}
    files = {run: one.files for one in code for run in one.runs}
    for one in decisions:
        if one.action != ATTACHED or one.job is None:
            continue
        before = plans.get(one.job.submission)
        if before is not None and before.executor.queues != plan.executor.queues:
            elsewhere.setdefault(_place(before), []).append(one.run)
            continue
        changes = (
            *_values(before, plan, one.run, one.job.changes),
            *(_Unreached(file) for file in files.get(one.run, ())),
        )
        if changes:
            groups.setdefault(changes, []).append(one.run)
    return [
        *(_stays(plan, where, runs) for where, runs in elsewhere.items()),
        *(_message(plan.name, runs, changes) for changes, runs in groups.items()),
        *_overridden(plan, decisions),
    ]


@dataclass(frozen=True)
class _Unreached:
    """A change that does not reach a job."""

    text: str
    update: str = ""
    """The word of `hpcrun update` that makes it; empty where none does."""


def _place(plan: Plan) -> str:
    return f"on the cluster {plan.cluster.get('name')}" if plan.executor.queues else "on a machine"


def _stays(plan: Plan, where: str, runs: Sequence[int]) -> str:
    """Return what becomes of runs that are queued or run elsewhere than a submit says."""
    are, them = agreeing(len(runs), "is", "are"), agreeing(len(runs), "it", "them")
    there = f"to the cluster {plan.cluster.get('name')}" if plan.executor.queues else "here"
    return (
        f"{runs_text(runs)} {are} queued or running {where}, and this does not move {them} {there}"
        f"\nto have {them} moved: `hpcrun cancel {plan.name}/{','.join(ranges(runs))}`, then this "
        "command again"
    )


def _overridden(plan: Plan, decisions: Sequence[Decision]) -> Iterator[str]:
    """Yield what `hpcrun update` had changed of jobs that are over, and a new one has otherwise."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for one in decisions:
        if one.is_submitted and one.job is not None and one.job.changes:
            new = plan.run(one.run).spec
            told = tuple(
                f"{'.'.join(key)} was {change.value} and is {_value_text(_at(new, key))}"
                for name, change in one.job.changes.items()
                if (key := job_changes.KEYS[name].spec) and str(_at(new, key)) != change.value
            )
            if told:
                groups.setdefault(told, []).append(one.run)
    for told, runs in groups.items():
        yield (
            f"{runs_text(runs)}: what `hpcrun update` changed is as the spec says again: "
            f"{listed(told, _SHOWN)}"
        )


def _at(tree: Any, path: Sequence[str]) -> Any:
    for key in path:
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree


def other_annotations(plans: Mapping[int, Plan], plan: Plan) -> str | None:
    """Return what to type for tags and notes of a spec of which nothing is submitted, if any."""
    if not plans:
        return None
    of_spec = annotation_log.of_spec
    earlier = {run.number: of_spec(run.spec) for run in plans[max(plans)].runs}
    pairs = [(earlier[run.number], of_spec(run.spec)) for run in plan.runs if run.number in earlier]
    if all(was == now for was, now in pairs):
        return None
    tags = dict.fromkeys(tag for was, now in pairs for tag in now.tags if tag not in was.tags)
    adds = "".join(f" +{tag}" for tag in tags)
    typed = f"hpcrun tag {plan.name}{adds}" if tags else f"hpcrun note {plan.name} -m TEXT"
    return f"changed tags or notes of the spec are taken as runs are submitted; now: `{typed}`"


def _message(name: str, runs: Sequence[int], changes: Sequence[_Unreached]) -> str:
    where = f"{name}/{','.join(ranges(runs))}"
    are, them = agreeing(len(runs), "is", "are"), agreeing(len(runs), "it", "them")
    words = [one.update for one in changes if one.update]
    ways = [f"`hpcrun update {where} {shlex.join(words)}`"] if words else []
    if len(words) < len(changes):
        rest = "for the rest " if words else ""
        ways.append(f"{rest}`hpcrun cancel {where}`, then this command again")
    return (
        f"{runs_text(runs)} {are} queued or running as submitted before, and this does not reach "
        f"{them}: {listed([one.text for one in changes], _SHOWN)}\n"
        f"to have {them} go on with it: {'; '.join(ways)}"
    )


def _values(
    before: Plan | None, plan: Plan, run: int, changes: Mapping[str, JobChange]
) -> tuple[_Unreached, ...]:
    """Return what differs in the values of a run, such as ``resources.time 01:00:00 -> 02:00``.

    ``changes`` are what its job was changed to since.
    """
    earlier = next((one for one in before.runs if one.number == run), None) if before else None
    if before is None or earlier is None:
        return ()
    now = plan.run(run)
    if earlier.identity != now.identity:
        # Other values of extendable keys, of which `submit` itself tells.
        return ()
    asked = job_changes.apply(earlier.spec, changes)
    was = dict(_flat({**asked, "cluster": before.cluster}))
    are = dict(_flat({**now.spec, "cluster": plan.cluster}))
    keys = [
        key for key in {**was, **are} if was.get(key) != are.get(key) and _counts(key, was, are)
    ]
    limit, now_most = job_changes.max_parallel([changes], before.max_parallel), plan.max_parallel
    if limit != now_most:
        was[_MAX_PARALLEL], are[_MAX_PARALLEL] = limit, now_most or job_changes.NONE
        keys.append(_MAX_PARALLEL)
    return tuple(
        _Unreached(
            f"{key} {_value_text(was.get(key))} -> {_value_text(are.get(key))}",
            _word(key, are.get(key)),
        )
        for key in keys
    )


def _word(key: str, value: Any) -> str:
    """Return ``time=02:00:00``, with which `hpcrun update` gives a key a value; empty if not."""
    name = _UPDATABLE.get(key)
    can = name is not None and value is not None and job_changes.KEYS[name].takes(str(value))
    return f"{name}={value}" if can else ""


def _counts(key: str, was: Mapping[str, Any], are: Mapping[str, Any]) -> bool:
    if key.startswith(_NOT_TOLD):
        return False
    return (key in was and key in are) or key.startswith(_FREE)


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _value_text(value: Any) -> str:
    return one_line(shortened("none" if value is None else str(value), 60))
