"""The files of cluster profiles, found by name; without reading any."""

from __future__ import annotations

import os
from pathlib import Path

from hpcrun import resources
from hpcrun.compile.source import git
from hpcrun.host import expand_home, is_there
from hpcrun.state import permissions


def directories(beside: Path) -> list[Path]:
    """List the directories in which profiles are looked for, the first wins.

    ``configs/clusters`` beside the spec and in the directories around it up to the checkout's top,
    HPCRUN_CLUSTERS, the user's and the machine's configuration, and those that ship.
    """
    # In a checkout of hpcrun the shipped ones lie beside specs, and hide none of the user's.
    found = [one for one in around(beside) if one != shipped_directory()]
    named = os.environ.get("HPCRUN_CLUSTERS")
    if named:
        found.append(expand_home(named))
    return [*found, own_directory(), Path("/etc/hpcrun/clusters"), shipped_directory()]


def own_directory() -> Path:
    """Return the directory of the user's own profiles."""
    return expand_home("~/.config/hpcrun/clusters")


def shipped_directory() -> Path:
    """Return the directory of the profiles that ship."""
    return resources.directory("configs") / "clusters"


def around(beside: Path) -> list[Path]:
    """List the directories that come with a spec, up to its checkout's top.

    What a stranger made in a directory that is everybody's, such as ``/tmp``, does not.
    """
    top = git.top_level(beside)
    around = [beside]
    if top is not None:
        around += [parent for parent in beside.parents if parent.is_relative_to(top)]
    own = (place for place in around if not permissions.is_planted(place / "configs"))
    return [place / "configs" / "clusters" for place in own]


def files(name: str, beside: Path, ending: str = ".yaml") -> list[Path]:
    """List the files of the profile ``name``, those that are hidden by the first included."""
    places = dict.fromkeys(directories(beside))
    return [path for place in places if is_there((path := place / f"{name}{ending}").is_file)]


def available(beside: Path) -> dict[str, Path]:
    """Return name -> file of every profile that a spec in ``beside`` can name."""
    found: dict[str, Path] = {}
    for directory in directories(beside):
        for path in sorted(directory.glob("*.yaml")):
            found.setdefault(path.stem, path)
    return found
