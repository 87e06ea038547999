"""Find the holders of runs: other runs that begin with them or wait for them, and links."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from hpcrun.control.cleanup import needed_checkpoints, over
from hpcrun.errors import UsageError
from hpcrun.observe.read.selection import Finder, Selected
from hpcrun.state import layout
from hpcrun.text import Say


def holders(root: Path, selected: Sequence[Selected], warn: Say) -> dict[Path, str]:
    """Map the directories of runs under a root to what needs them, in words.

    That is runs that are not over and begin with their checkpoints, or wait for them; and links in
    the root, among an experiment's runs and among their checkpoints. An experiment that cannot be
    read could need any of them.
    """
    places = {str(one.paths.directory.resolve()): one.paths.directory for one in selected}
    unread: list[str] = []
    found: dict[Path, str] = {}
    for path, name in needed_checkpoints(root, warn, unread).items():
        if (place := _inside(str(path), places)) is not None:
            found[place] = f"{name} begins with it, and is not over"
    for run, name in _awaited(root, {one.experiment.name for one in selected}):
        found.setdefault(run, f"{name} waits for it")
    for link in _links(root, {str(one.experiment.directory) for one in selected}):
        place = _inside(os.path.realpath(link), places)
        if place is not None and _inside(os.path.realpath(link.parent), places) is None:
            found.setdefault(place, f"{link} is a link into it")
    if unread:
        why = f"what {', '.join(unread)} begins with is not known"
        found = {one.paths.directory: found.get(one.paths.directory, why) for one in selected}
    return found


def mentions(root: Path, name: str) -> list[str]:
    """Return the experiments whose newest plan names another one, to wait for it or begin with it.

    What cannot be read is passed over.
    """
    found = []
    for experiment in layout.experiments(root):
        with contextlib.suppress(UsageError):
            for one in Finder(root).runs(experiment):
                begin = (one.run.checkpoint.initialize_from or "").partition("@")[0]
                waits = {each.experiment for each in one.plan.depends_on}
                if name in waits or begin.partition("/")[0] == name:
                    found.append(experiment.name)
                    break
    return found


def _inside(path: str, places: dict[str, Path]) -> Path | None:
    """Return which of the places a path is or lies in."""
    while path not in places:
        above = os.path.dirname(path)  # noqa: PTH120 - of each link of a root
        if above == path:
            return None
        path = above
    return places[path]


def _awaited(root: Path, names: set[str]) -> Iterator[tuple[Path, str]]:
    """Yield the runs of these experiments that runs of others wait for, and these."""
    waiting: list[Selected] = []
    for experiment in layout.experiments(root):
        with contextlib.suppress(UsageError):
            waiting += [
                one
                for one in Finder(root).runs(experiment)
                if any(each.experiment in names for each in one.plan.depends_on)
            ]
    for one, _, going_on in over(waiting, lambda message: None) if waiting else ():
        for each in one.plan.depends_on:
            if going_on is not None and each.experiment in names:
                before = layout.experiment(root, each.experiment)
                yield from (
                    (before.run(run).directory, one.name) for run in each.of(one.run.number)
                )


def _links(root: Path, own: set[str]) -> Iterator[Path]:
    """Yield the links in a root, among runs and among checkpoints; ``own`` are the names of some
    experiments, which may be links themselves."""
    places = [root]
    for experiment in layout.experiments(root):
        places.append(experiment.runs_directory)
        places += [experiment.run(number).checkpoints for number in experiment.run_numbers()]
    for place in places:
        with contextlib.suppress(OSError), os.scandir(place) as entries:
            yield from (
                Path(one.path) for one in entries if one.is_symlink() and one.path not in own
            )
