"""Delete runs, and experiments of which every run is deleted.

What goes is renamed first, under the submit lock, so that nobody sees half of it; a submission of
the same name waits, and begins anew. What a deletion that was cut off has left is removed by the
next one of that name.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcrun import activity, feature, shared_look
from hpcrun.control import cleanup, removal
from hpcrun.control.cleanup import measure, over
from hpcrun.errors import HpcrunError, Interrupted
from hpcrun.observe.diagnosis import cost
from hpcrun.observe.diagnosis.attempts import stories
from hpcrun.observe.read.selection import Finder, Selected
from hpcrun.observe.status.status import RunStatus
from hpcrun.state import history, journal, layout, permissions
from hpcrun.state.layout import DELETED, ExperimentPaths
from hpcrun.submission import lock
from hpcrun.text import Say, listed, plural, size

# Lines on what stays elsewhere.
_MOST_ELSEWHERE = 10


@dataclass(frozen=True)
class Deletion:
    """A run that may be deleted."""

    run: Selected
    status: RunStatus
    bytes: int
    files: int
    """The files of its directory, and its batch logs."""
    hours: float
    unit: str
    """The GPU-hours or CPU-hours that it used."""
    spared: str | None = None
    """Why it is left alone; None if it goes."""

    def to_data(self, deleted: bool) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            **{"experiment": self.status.experiment, "run": self.status.run},
            **{"state": self.status.state, "bytes": self.bytes, "files": self.files},
            **{"hours": round(self.hours, 3), "unit": self.unit},
            **{"spared": self.spared, "deleted": deleted},
        }


def find(selected: Sequence[Selected], warn: Say) -> list[Deletion]:
    """Return what a deletion of these runs comes to, in the order given."""
    with activity.doing("looking what these runs hold, and who needs them"):
        spared = _spared(selected, warn)
        now, found = time.time(), []
        told = stories(selected, warn=lambda message: None)
        for one, story in zip(selected, told, strict=True):
            paid = cost.of_run(one.experiment.name, story.plan_of, story.spans(now))
            held = [
                measure(path)
                for path in (one.paths.directory, *one.batch_logs())
                if shared_look.is_there(path)
            ]
            bytes_, files = (sum(part) for part in zip(*held, strict=True)) if held else (0, 0)
            reason = spared.get(one.paths.directory)
            found.append(Deletion(one, story.status, bytes_, files, paid.paid, paid.unit, reason))
        return found


def _spared(selected: Sequence[Selected], warn: Say) -> dict[Path, str]:
    """Map the directories of runs that are left alone to the reasons."""
    found: dict[Path, str] = {}
    for root in dict.fromkeys(one.experiment.root for one in selected):
        mine = [one for one in selected if one.experiment.root == root]
        found.update(cleanup.holders(root, mine, warn))
    for one, _, reason in over(selected, warn):
        if reason is not None:
            found[one.paths.directory] = reason
    return found


def whole(runs: Iterable[Selected]) -> set[ExperimentPaths]:
    """Return the experiments all of whose runs are among these."""
    numbers: dict[ExperimentPaths, set[int]] = {}
    for one in runs:
        numbers.setdefault(one.experiment, set()).add(one.run.number)
    return {one for one, these in numbers.items() if history.read(one).runs.keys() <= these}


def kept_elsewhere(found: Sequence[Deletion]) -> list[str]:
    """Return lines on what runs have outside of the root, which stays."""
    told = [
        f"{one.run.name}: {what} stay there"
        for one in found
        for each in feature.every().values()
        if (what := each.outside(one.run.paths))
    ]
    more = len(told) - _MOST_ELSEWHERE
    return told[:_MOST_ELSEWHERE] + [f"and of {plural(more, 'more run')}"] * (more > 0)


def delete(found: Sequence[Deletion], say: Say) -> list[Deletion]:
    """Delete the runs that are not spared, and still may go; return those.

    Raise Interrupted after Ctrl-C, HpcrunError if something cannot be removed: the next deletion
    of that name goes on with what is left.
    """
    groups: dict[ExperimentPaths, list[Deletion]] = {}
    for one in found:
        if one.spared is None:
            groups.setdefault(one.run.experiment, []).append(one)
    gone: list[Deletion] = []
    aside: list[Path] = []
    try:
        for experiment, these in groups.items():
            with lock.hold(experiment, say):
                # They may have been submitted again, or deleted, meanwhile.
                numbers = [one.run.run.number for one in these]
                now = Finder(experiment.root).runs(experiment, numbers)
                spared = _spared(now, lambda message: None)
                for run in now:
                    if reason := spared.get(run.paths.directory):
                        say(f"left alone: {run.name}: {reason}")
                going = [run for run in now if run.paths.directory not in spared]
                aside += _set_aside(experiment, going)
                names = {run.name for run in going}
                gone += [one for one in these if one.run.name in names]
        _remove(aside)
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted: {_names(gone)} cannot be seen any more, and some of the files are left; "
            "the same command removes them"
        ) from None
    return gone


def _set_aside(experiment: ExperimentPaths, runs: Sequence[Selected]) -> list[Path]:
    """Give what goes another name, and return the paths; the caller holds the lock."""
    if not runs:
        return []
    if experiment in whole(runs):
        return [_renamed(experiment.directory)]
    logs = [path for one in runs for path in one.batch_logs()]
    journal.write_deleted(experiment.submissions()[-1], [one.run.number for one in runs])
    there = (one.paths.directory for one in runs if shared_look.is_there(one.paths.directory))
    return [*logs, *map(_renamed, there)]


def _renamed(path: Path) -> Path:
    target = path.with_name(f"{DELETED}{path.name}-{os.urandom(4).hex()}")
    try:
        path.rename(target)
    except OSError as error:
        raise HpcrunError(
            f"{path} cannot be removed: {error.strerror}",
            hint=f"whoever owns {path.parent} can let you",
        ) from None
    return target


def leftovers(root: Path, names: Collection[str]) -> list[Path]:
    """Return what deletions of these experiments, or of their runs, have left half way."""
    found: list[Path] = []
    for name in names:
        experiment = layout.experiment(root, name)
        paths = [*root.glob(f"{DELETED}{name}-????????")]
        paths += experiment.runs_directory.glob(f"{DELETED}*")
        found += [path for path in paths if permissions.owner(path) == os.geteuid()]
        with contextlib.suppress(HpcrunError):
            # Nothing goes unasked because somebody else wrote that it was deleted.
            mine = {
                run
                for submission in experiment.submissions()
                if permissions.owner(submission.journal) == os.geteuid()
                for run, job in journal.read(submission).items()
                if job.event == journal.DELETED
            }
            deleted = history.read(experiment).deleted & mine
            numbers = deleted.intersection(experiment.run_numbers())
            found += [experiment.run(number).directory for number in sorted(numbers)]
    return found


def finish(paths: Sequence[Path], say: Say) -> None:
    """Remove `leftovers`; raise as `delete` does."""
    try:
        with activity.doing("removing what a deletion has left"):
            total = sum(measure(path)[0] for path in paths)
            _remove(paths)
    except KeyboardInterrupt:
        raise Interrupted("interrupted; the same command goes on") from None
    say(f"removed what a deletion that was cut off had left: {size(total)}")


def _remove(paths: Sequence[Path]) -> None:
    """Remove files and directories of this user's; raise HpcrunError once all else is gone."""
    failed = []
    with activity.doing("removing files"):
        for path in paths:
            try:
                _remove_one(path)
            except OSError as error:
                failed.append(f"{error.filename or path}: {error.strerror or error}")
    removal.check_all_removed(failed)


def _remove_one(path: Path) -> None:
    base = path.parent.resolve() / path.name
    with contextlib.suppress(FileNotFoundError):
        is_run = ExperimentPaths(base.parent.parent).exists
        if base.is_symlink() and not is_run:
            # An experiment on other storage: its directory there, then the name here.
            _empty(base.resolve())
            base.unlink()
        elif base.is_dir() and not base.is_symlink():
            _empty(base)
        else:
            removal.remove(base.parent, base)


def _empty(directory: Path) -> None:
    for each in os.listdir(directory):  # noqa: PTH208 - removed meanwhile
        removal.remove(directory, directory / each)
    removal.rmdir(directory)


def _names(found: Sequence[Deletion]) -> str:
    return listed([one.run.name for one in found], 6) or "nothing"
