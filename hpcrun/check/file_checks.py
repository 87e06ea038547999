"""What of a plan's files, directories and Pythons would fail in the job; Slurm is not asked."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from hpcrun.check.finding import ERROR, NOTE, WARNING, Finding
from hpcrun.compile.freeze import Compiled
from hpcrun.errors import UsageError
from hpcrun.policy.retention import Retention
from hpcrun.state import manifest, permissions
from hpcrun.state.layout import ExperimentPaths, experiment
from hpcrun.state.plan import Plan, RunPlan
from hpcrun.submit import preflight
from hpcrun.text import plural, size

# Directories that each machine has of its own.
_OWN = ("/tmp", "/var/tmp", "/dev/shm", "/run", "/scratch/local")  # noqa: S108 - nothing is written
_INODES_OF_A_RUN = 50


def findings(
    compiled: Compiled, plan: Plan, runs: Sequence[RunPlan], resumed: Collection[int]
) -> Iterator[Finding]:
    """Yield what is wrong for the runs of a plan that would be submitted."""
    paths = experiment(compiled.root, compiled.name)
    coming = {one.experiment for one in plan.depends_on}
    told: list[str] = []
    lacking: list[str] = []
    unchecked = permissions.foreign(compiled.sources)
    code_root = Path(compiled.code_root)

    def check_python() -> None:
        preflight.check_python(
            runs,
            plan.cluster,
            unchecked=unchecked,
            say=told.append,
            lacks=lacking.append,
            code_root=code_root,
        )

    going_on = [run for run in runs if run.number in resumed]
    steps: dict[str, Callable[[], object]] = {
        "root": lambda: preflight.check_root(compiled.root),
        "name": lambda: preflight.check_directory(paths),
        "resources.time": lambda: preflight.check_time_limits(runs, paths),
        "checkpoint.initialize_from": lambda: preflight.check_initial_weights(runs, paths, coming),
        "resources.nodes": lambda: preflight.check_world_sizes(going_on, paths, told.append),
        "environment.python": check_python,
        "depends_on": lambda: preflight.check_counterparts(plan),
    }
    for key, step in steps.items():
        try:
            step()
        except UsageError as error:
            message = error.message.removeprefix(f"{key}: ")
            yield Finding(ERROR, key, message, error.hint)
    yield from (Finding(ERROR, "entry", message) for message in lacking)
    yield from (Finding(NOTE, "", message) for message in told)
    yield from directories(compiled.root, runs, plan.cluster)
    yield from room(paths, runs)


def directories(
    root: Path, runs: Sequence[RunPlan], cluster: dict[str, object]
) -> Iterator[Finding]:
    """Yield a finding for a root that cannot be written, or that other nodes do not see."""
    there = next((path for path in (root, *root.parents) if path.is_dir()), root)
    if not os.access(there, os.W_OK | os.X_OK):
        found = f"{there} cannot be written by you, and runs are to go below {root}"
        yield Finding(ERROR, "root", found, "choose another root: --root DIR, or HPCRUN_ROOT")
    if cluster.get("executor") != "slurm":
        return
    real = os.path.realpath(root)
    own = next((each for each in _OWN if real == each or real.startswith(f"{each}/")), None)
    if own is not None and _is_of_this_machine(there):
        yield Finding(
            WARNING,
            "root",
            f"the root {root} lies in {own}, which every machine usually has of its own: nodes do "
            "not see what this one writes there",
            "choose a root on shared storage: --root DIR, HPCRUN_ROOT, or `root:` of the profile",
        )
    for python in dict.fromkeys(str(run.environment.python) for run in runs):
        if python.startswith(tuple(f"{each}/" for each in _OWN)) and own is None:
            found = f"{python} lies in a directory that every machine has of its own"
            hint = "make the environment on shared storage, or see that all nodes have it"
            yield Finding(WARNING, "environment.python", found, hint)


def _is_of_this_machine(path: Path) -> bool:
    """Check that a path has no mount of its own below the directories of `_OWN`."""
    while not os.path.ismount(path) and path != path.parent:
        path = path.parent
    return str(path) in ("/", *_OWN, "/var", "/dev")


def room(paths: ExperimentPaths, runs: Sequence[RunPlan]) -> Iterator[Finding]:
    """Yield a finding where the storage has less room than the runs' checkpoints will take.

    Their size is that of the largest checkpoint that the experiment has so far.
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
    sizes = []
    for directory in paths.runs_directory.glob("*/checkpoints"):
        complete = manifest.complete(directory)
        sizes += [complete[0][1].bytes] if complete else []
    largest = max(sizes, default=0)
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
