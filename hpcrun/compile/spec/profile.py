"""Cluster profiles: what is true of a site, found by name."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcrun import resources
from hpcrun.compile.source import git, yaml_reader
from hpcrun.compile.source.interpolate import interpolate
from hpcrun.compile.source.marked_tree import Mark, Tree
from hpcrun.compile.source.problems import Problems, did_you_mean, listing
from hpcrun.compile.spec import schema
from hpcrun.compile.target.slurm_options import (
    check_name,
    check_resources,
    check_sbatch,
    check_time,
    check_variables,
)
from hpcrun.slurm import client
from hpcrun.state.spec.cluster_profile import Profile

_VARIABLES = """
RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK MASTER_ADDR MASTER_PORT
    HPCRUN_ATTEMPT HPCRUN_DIRECTORY HPCRUN_LAUNCH HPCRUN_METRICS_FILE HPCRUN_RUN
    HPCRUN_SCRATCH
"""
OWNED_VARIABLES = frozenset(_VARIABLES.split())
_UMASK = re.compile(r"0{1,2}[0-7]{2}")


@dataclass(frozen=True)
class Loaded:
    """A profile that was read and checked.

    Attributes
    ----------
    data
        Every field of ``spec_profile.Profile``, resolved, as plain data.
    resources
        The defaults that it gives for specs: only what the file says.
    """

    data: dict[str, Any]
    resources: Tree


def default_name() -> str:
    """The profile of a spec that names none: ``slurm`` where there is an sbatch, else ``local``."""
    return "slurm" if client.available() else "local"


def directories(beside: Path) -> list[Path]:
    """Where profiles are looked for, the first wins.

    ``configs/clusters`` beside the spec and in the directories around it up to the checkout's top,
    HPCRUN_CLUSTERS, the user's and the machine's configuration, and those that ship.
    """
    top = git.top_level(beside)
    around = [beside]
    if top is not None:
        around += [parent for parent in beside.parents if parent.is_relative_to(top)]
    found = [directory / "configs" / "clusters" for directory in around]
    named = os.environ.get("HPCRUN_CLUSTERS")
    if named:
        found.append(Path(named).expanduser())
    found += [Path("~/.config/hpcrun/clusters").expanduser(), Path("/etc/hpcrun/clusters")]
    return [*found, resources.directory("configs") / "clusters"]


def available(beside: Path) -> dict[str, Path]:
    """Name -> file of every profile that can be named by a spec in ``beside``."""
    found: dict[str, Path] = {}
    for directory in directories(beside):
        for path in sorted(directory.glob("*.yaml")):
            found.setdefault(path.stem, path)
    return found


def load(name: str, beside: Path, mark: Mark, problems: Problems) -> Loaded | None:
    """The profile ``name``, checked; None after mistakes were noted.

    Parameters
    ----------
    name
        The file's name without ``.yaml``.
    beside
        The spec's directory.
    mark
        Where the name was written, for messages.
    """
    asked = Tree({}, {("cluster",): mark})
    known = available(beside)
    if name not in known:
        hint = did_you_mean(name, known)
        if "/" in name or name.endswith((".yaml", ".yml")):
            hint = f"profiles are chosen by name; put the file in {directories(beside)[0]}"
        problems.at(
            asked,
            ("cluster",),
            f"there is no cluster profile {name!r}; there are {listing(sorted(known))}",
            hint,
        )
        return None
    before = len(problems.found)
    tree = yaml_reader.read_yaml(known[name], _shown(known[name]), problems)
    if tree is None or len(problems.found) > before:
        return None
    defaults = {"name": name, "root": Profile.root}
    data = interpolate(tree.over(Tree(defaults)), problems)
    written = data.get("resources")
    checked = schema.Checker(tree, Profile, problems).block(data, Profile)
    if len(problems.found) == before:
        _check(checked, tree, problems)
    if len(problems.found) > before:
        return None
    given = {
        field: checked["resources"][field]
        for field in (written if isinstance(written, dict) else {})
    }
    marks = {key: one for key, one in tree.marks.items() if key[:1] == ("resources",)}
    return Loaded(checked, Tree({"resources": given}, marks))


def _check(data: dict[str, Any], tree: Tree, problems: Problems) -> None:
    check_name(data["name"], ("name",), tree, problems)
    check_resources(data["resources"], ("resources",), tree, problems)
    check_sbatch(data["sbatch"], ("sbatch",), tree, problems)
    check_variables(data["variables"], ("variables",), tree, problems, OWNED_VARIABLES)
    limits = data["limits"]
    if limits["max_time"] is not None:
        check_time(limits["max_time"], ("limits", "max_time"), tree, problems)
    for field in ("max_array_size", "max_nodes"):
        if limits[field] is not None and limits[field] < 1:
            problems.at(
                tree,
                ("limits", field),
                f"found {limits[field]}; accepted is a whole number from 1",
            )
    umask = data["umask"]
    if umask is not None and not _UMASK.fullmatch(umask):
        problems.at(
            tree,
            ("umask",),
            f"found {umask!r}; accepted is an octal mask that leaves the owner all rights",
            'in quotes: "0027" lets the group read, "0007" write too',
        )
    if data["group"] is not None and not data["group"].strip():
        problems.at(tree, ("group",), "is empty; accepted is the name of a group, or null")
    if not data["root"].startswith(("/", "~")):
        problems.at(tree, ("root",), f"found {data['root']!r}; accepted is an absolute path")


def _shown(path: Path) -> str:
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("../..") else relative
