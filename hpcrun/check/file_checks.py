"""What of a plan's files, directories and Pythons would fail in the job; Slurm is not asked."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from hpcrun import feature
from hpcrun.check import path_checks
from hpcrun.check.finding import ERROR, NOTE, WARNING, Finding
from hpcrun.compile.freeze import Compiled
from hpcrun.errors import UsageError
from hpcrun.policy.retention import Retention
from hpcrun.state import manifest, permissions
from hpcrun.state.layout import ExperimentPaths, experiment
from hpcrun.state.manifest import Manifest
from hpcrun.state.plan import Plan, RunPlan
from hpcrun.submission import preflight
from hpcrun.submission.code import unfrozen
from hpcrun.submission.environment import environment_freeze
from hpcrun.text import plural, size

_INODES_OF_A_RUN = 50
_IMAGE = "environment.container.image"
_SETUP = "try these lines by hand here; where only compute nodes have what they need, all is well"


def findings(
    compiled: Compiled, plan: Plan, runs: Sequence[RunPlan], resumed: Collection[int]
) -> Iterator[Finding]:
    """Yield what is wrong for the runs of a plan that would be submitted."""
    paths = experiment(compiled.root, compiled.name)
    coming = {one.experiment for one in plan.depends_on}
    told: list[str] = []
    lacking: list[str] = []
    failing: list[str] = []
    unseen: list[str] = []
    check_python = partial(
        preflight.check_python,
        runs,
        plan.cluster,
        unchecked=permissions.foreign(compiled.sources),
        say=told.append,
        lacks=lacking.append,
        fails=failing.append,
        code_root=Path(compiled.code_root),
    )
    going_on = [run for run in runs if run.number in resumed]
    steps: dict[str, Callable[[], object]] = {
        "root": lambda: preflight.check_root(compiled.root, compiled.cluster, told.append),
        "name": lambda: preflight.check_directory(paths),
        "resources.time": lambda: preflight.check_time_limits(runs, paths),
        **{
            name: partial(one.preflight, runs, coming, told.append)
            for name, one in feature.every().items()
        },
        "checkpoint.initialize_from": lambda: preflight.check_initial_weights(runs, paths, coming),
        "resources.nodes": lambda: preflight.check_world_sizes(going_on, paths, told.append),
        "environment.lock": lambda: environment_freeze.check_lock(plan.runs[0]),
        _IMAGE: lambda: preflight.check_images(runs, plan.cluster, coming, unseen.append),
        "environment.python": check_python,
        "depends_on": lambda: preflight.check_counterparts(plan),
    }
    for key, step in steps.items():
        try:
            step()
        except UsageError as error:
            named, _, message = error.message.partition(": ")
            if named.partition(".")[0] != key.partition(".")[0] or " " in named:
                named, message = key, error.message
            yield Finding(ERROR, named, message, error.hint)
    yield from (Finding(ERROR, "entry", message) for message in lacking)
    yield from (Finding(WARNING, "environment.setup", message, _SETUP) for message in failing)
    for message in unseen:
        yield Finding(WARNING, _IMAGE, message.removeprefix(f"{_IMAGE}: "))
    yield from (Finding(NOTE, "", message) for message in told)
    if frozen := environment_freeze.description(plan.runs[0]):
        yield Finding(NOTE, "environment.venv", f"{frozen}, by hpcrun submit")
    yield from path_checks.root(compiled.root, runs, plan.cluster)
    yield from path_checks.check_paths(runs, plan.cluster)
    yield from unfrozen_paths(replace(plan, runs=tuple(runs)), paths)
    saved = newest_saves(paths)
    yield from path_checks.stripes(paths, runs, saved)
    yield from room(paths, runs, saved)


def unfrozen_paths(plan: Plan, paths: ExperimentPaths) -> Iterator[Finding]:
    """Yield a finding where the job will not find what is here and runs or programs name."""
    try:
        lacking = unfrozen.find(plan, paths)
    except UsageError as error:
        yield Finding(ERROR, "code", error.message, error.hint)
        return
    if lacking.paths:
        yield Finding(WARNING, "code", lacking.message, lacking.hint)


def newest_saves(paths: ExperimentPaths) -> list[Manifest]:
    """Return the newest complete checkpoint of each run that has one."""
    found = map(manifest.complete, paths.runs_directory.glob("*/checkpoints"))
    return [complete[0][1] for complete in found if complete]


def room(
    paths: ExperimentPaths, runs: Sequence[RunPlan], saved: Sequence[Manifest]
) -> Iterator[Finding]:
    """Yield a finding where the storage has less room than the runs' checkpoints will take.

    Their size is that of the largest of ``saved``, which the experiment has so far.
    """
    there = next((one for one in (paths.directory, *paths.directory.parents) if one.is_dir()), None)
    if there is None:
        return
    try:
        usage, inodes = shutil.disk_usage(there), os.statvfs(there)
    except OSError:
        return
    if inodes.f_files and inodes.f_favail < _INODES_OF_A_RUN * len(runs):
        found = f"the storage of {there} has room for {inodes.f_favail:,} more files; "
        found += f"{plural(len(runs), 'run')} write about {_INODES_OF_A_RUN * len(runs):,}"
        yield Finding(WARNING, "root", found, "remove some, or choose another root")
    largest = max((one.bytes for one in saved), default=0)
    if not largest:
        return
    kept = 0
    for run in runs:
        rules = Retention.of(run)
        have = len(manifest.complete(paths.run(run.number).checkpoints))
        # One more is being written while the older ones are still there.
        kept += max(0, rules.newest + rules.best + 1 - have)
    if kept * largest > usage.free:
        yield Finding(
            WARNING,
            "checkpoint.keep",
            f"{plural(len(runs), 'run')} will keep about {size(kept * largest)} of checkpoints "
            f"({size(largest)} each, as the largest so far); the storage of {there} has "
            f"{size(usage.free)}",
            "`hpcrun clean` removes old checkpoints; or keep fewer, or choose another root",
        )
