"""Rename an experiment: its directory gets another name, and all that is in it stays as it is.

Files name each other relative to that directory, or by what is looked up anew at each start, so
that runs go on under the new name. What a job holds are absolute paths: no run may be under way.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from hpcrun.compile.target.slurm_options import LONGEST_NAME, NAME, plain_name
from hpcrun.control import cleanup
from hpcrun.control.cleanup import over
from hpcrun.errors import HpcrunError, UsageError
from hpcrun.observe.read.selection import Finder
from hpcrun.state import layout, permissions
from hpcrun.state.layout import ExperimentPaths
from hpcrun.submission import lock
from hpcrun.text import Say, listed


def check(root: Path, old: str, new: str, warn: Say) -> ExperimentPaths:
    """Return the experiment; raise UsageError if it cannot be renamed now."""
    finder = Finder(root)
    experiment = finder.named(old)
    if experiment is None:
        there = listed([one.name for one in layout.experiments(root)], 8) or "none"
        raise UsageError(
            f"there is no experiment {old!r} under {root}", hint=f"experiments there: {there}"
        )
    if not NAME.fullmatch(new) or len(new) > LONGEST_NAME:
        raise UsageError(
            f"found {new!r}; accepted are letters, digits, '.', '_' and '-', a letter first, "
            f"{LONGEST_NAME} in all",
            hint=f"such as {plain_name(new)}" if any(map(str.isalnum, new)) else None,
        )
    if new == experiment.name:
        raise UsageError(
            f"{old} has that name already", hint=f"type another: hpcrun rename {old} NEW"
        )
    target = layout.experiment(root, new)
    if permissions.owner(target.directory) is not None:
        raise UsageError(
            f"{target.directory} is there already",
            hint=f"take another name, or `hpcrun delete {new}` first" if target.exists else None,
        )
    runs = finder.runs(experiment)
    permissions.check_mine(experiment, [one.run.number for one in runs], "rename")
    living = [f"{one.name} ({why})" for one, _, why in over(runs, warn) if why is not None]
    if living:
        raise UsageError(
            f"jobs hold the paths of runs that are not over: {listed(living, 4)}",
            hint=f"wait for them, or end them: hpcrun cancel {old}",
        )
    held = cleanup.holders(root, runs, warn)
    if held:
        shown = [f"{path.name}: {why}" for path, why in held.items()]
        raise UsageError(
            f"others need {old} by its name: {listed(shown, 4, '; ')}",
            hint="repeat this once they are over, or the link is gone",
        )
    return experiment


def rename(root: Path, old: str, new: str, say: Say) -> list[str]:
    """Rename an experiment; return what its user should know. Raise as `check` does."""
    experiment = check(root, old, new, say)
    renamed = layout.experiment(root, new)
    with lock.hold(experiment, say):
        # Somebody may have submitted it meanwhile, or made the other one.
        check(root, old, new, lambda message: None)
        try:
            experiment.directory.rename(renamed.directory)
        except OSError as error:
            raise HpcrunError(
                f"{experiment.directory} cannot be renamed: {error.strerror}"
            ) from None
        # It was moved along.
        with contextlib.suppress(OSError):
            for owner in renamed.submit_lock.iterdir():
                owner.unlink()
            renamed.submit_lock.rmdir()
    return _notes(renamed, old)


def _notes(renamed: ExperimentPaths, old: str) -> list[str]:
    runs = Finder(renamed.root).runs(renamed)
    new = renamed.name
    specs = list(dict.fromkeys(one.plan.spec_file for one in runs if not one.plan.is_typed))
    ways = [f"write `name: {new}` into {listed(specs, 3)}"] if specs else []
    if any(one.plan.is_typed for one in runs):
        ways.append(f"type -J {new} before the program")
    found = [
        f"to go on with these runs by `submit`, {', or '.join(ways)}: with the old name, they "
        f"begin anew as {old}"
    ]
    if others := [one for one in cleanup.mentions(renamed.root, old) if one != new]:
        found.append(
            f"{listed(others, 6)} named {old} (depends_on or checkpoint.initialize_from): write "
            f"{new} there before they are submitted again"
        )
    if any(one.run.trackers for one in runs):
        found.append(f"trackers know these runs as {old}, and take those that go on for new ones")
    return found
