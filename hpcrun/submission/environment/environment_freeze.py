"""Freeze the environment of a submission's Python, for `hpcrun submit`, and say what it would be.

Nothing is built or copied where the same is there already, of this or another experiment.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcrun import activity, python_packages
from hpcrun.errors import UsageError
from hpcrun.state.environment import frozen_environment
from hpcrun.state.environment.frozen_environment import COPY, LOCK, FrozenEnvironment
from hpcrun.state.layout import ExperimentPaths
from hpcrun.state.plan import RunPlan
from hpcrun.state.spec.blocks import early
from hpcrun.submission.environment import environment_archive, environment_files, lock_build
from hpcrun.submission.environment.environment_archive import FilesChanged
from hpcrun.submission.environment.environment_files import EnvironmentFiles, PythonPlace
from hpcrun.submission.environment.environment_files import listed as listed_files
from hpcrun.submission.python_probe import Probe
from hpcrun.text import Say, plural, size, time_spent

_TRIES = 3


def told(run: RunPlan) -> str | None:
    """Return what would be frozen for a run, in words; None if nothing is."""
    own = run.environment
    if not own.is_frozen:
        return None
    if own.lock is not None:
        return f"frozen: built from {own.lock} for {own.python}"
    return f"frozen: a copy of what {own.python} has"


def check_lock(run: RunPlan) -> None:
    """Raise UsageError if the lock of a run's environment cannot be used; see `lock_build.read`."""
    if run.environment.lock is not None:
        lock_build.read(Path(run.environment.lock))


def freeze(
    run: RunPlan, cluster: Mapping[str, Any], experiment: ExperimentPaths, probe: Probe, say: Say
) -> FrozenEnvironment | None:
    """Freeze the environment that a run asks for; None if it asks for none.

    Raises UsageError if the Python is not to be started here, or its environment cannot be listed,
    built or kept.
    """
    own = run.environment
    if not own.is_frozen:
        return None
    if probe.unchecked is not None:
        raise UsageError(
            f"environment.venv: {own.python} cannot be frozen: {probe.unchecked}",
            hint="freeze an environment of your own, or leave out `environment.venv: frozen`",
        )
    setup = [*cluster["setup"], *own.setup]
    variables = {**cluster["variables"], **early(own.variables)}
    with activity.doing(f"asking {own.python} where its packages lie"):
        place = environment_files.ask_place(probe.executable, setup, variables)
    began = time.monotonic()
    if own.lock is None:
        found, is_new = _of_files(place, experiment, say)
    else:
        found, is_new = _of_lock(Path(own.lock), place, setup, variables, experiment, say)
    _check_needs(run, found)
    what = f"{size(found.bytes)} in {plural(found.files, 'file', ',')}, {found.name}"
    if is_new:
        took = time_spent(time.monotonic() - began)
        say(f"environment: froze that of {found.source} in {took} ({what})")
    else:
        say(f"environment: that of {found.source} is frozen already ({what})")
    return found


def _of_files(
    place: PythonPlace, experiment: ExperimentPaths, say: Say
) -> tuple[FrozenEnvironment, bool]:
    """Return the environment of what a Python has now, and whether it was copied now."""
    for last in (False,) * (_TRIES - 1) + (True,):
        listed = _listed(place, experiment)
        try:
            return _kept(listed.digest, COPY, place, listed, experiment, say)
        except FilesChanged as error:
            if last:
                raise
            say(f"environment: {error.message}; it is read again")
    raise AssertionError("the last try returns")


def _of_lock(
    path: Path,
    place: PythonPlace,
    setup: Sequence[str],
    variables: Mapping[str, str],
    experiment: ExperimentPaths,
    say: Say,
) -> tuple[FrozenEnvironment, bool]:
    lock = lock_build.read(path)
    digest = lock.digest(place)
    if (found := environment_archive.existing(experiment, digest)) is not None:
        return found, False
    with lock_build.built(lock, place, setup, variables, say) as built:
        listed = _listed(built, experiment)
        found, is_new = _kept(digest, LOCK, built, listed, experiment, say, str(path))
    return found, is_new


def _listed(place: PythonPlace, experiment: ExperimentPaths) -> EnvironmentFiles:
    count = 0

    def counted(files: int) -> None:
        nonlocal count
        count = files

    with activity.doing(lambda: f"listing the files of {place.prefix}: {count:,} so far"):
        return listed_files(place, [experiment.root], counted)


def _kept(
    digest: str,
    form: str,
    place: PythonPlace,
    listed: EnvironmentFiles,
    experiment: ExperimentPaths,
    say: Say,
    source: str | None = None,
) -> tuple[FrozenEnvironment, bool]:
    is_new = False

    def make(directory: Path, renew: Callable[[], None]) -> FrozenEnvironment:
        nonlocal is_new
        is_new = True
        length = environment_archive.write(listed, frozen_environment.archive(directory), renew)
        packages = {**python_packages.installed(place.paths), "python": place.version}
        is_inside = not any(one.link == os.path.realpath(place.base) for one in listed.files)
        return FrozenEnvironment(
            digest=digest,
            form=form,
            source=source or place.executable,
            base="" if is_inside else os.path.realpath(place.base),
            version=place.version,
            bytes=length,
            files=len(listed.files),
            moved=listed.moved,
            packages=packages,
        )

    for note in listed.notes:
        say(f"environment: {note}")
    return environment_archive.provide(experiment, digest, make, say), is_new


def _check_needs(run: RunPlan, found: FrozenEnvironment) -> None:
    """Raise UsageError if what was built from a lock lacks what the run's entry needs."""
    needs = ("torch", "deepspeed") if run.entry.kind == "function" else ()
    missing = [name for name in needs if name not in found.packages]
    if found.form == LOCK and missing:
        raise UsageError(
            f"environment.lock: {found.source} has no {' and '.join(missing)}, which a function "
            "entry needs",
            hint="add it, and write the lock anew",
        )
