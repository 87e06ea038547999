"""Cluster profiles: a site's settings, found by name."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hpcrun.compile.source import yaml_reader
from hpcrun.compile.source.interpolate import interpolate
from hpcrun.compile.source.marked_tree import Reporter, SourceMark, Tree
from hpcrun.compile.source.problems import MOST_NUMBER, Problems, did_you_mean, listing
from hpcrun.compile.spec import profile_files, schema
from hpcrun.compile.target import slurm_options
from hpcrun.host import expand_home
from hpcrun.shared_dataclass import dataclass
from hpcrun.slurm import client
from hpcrun.state import permissions
from hpcrun.state.spec.cluster_profile import Profile
from hpcrun.text import shortened

LOCAL = "local"
_UMASK = re.compile(r"0{1,2}[0-7]{2}")


@dataclass(frozen=True)
class LoadedProfile:
    """A profile that was read and checked."""

    data: dict[str, Any]
    """Every field of `hpcrun.state.spec.cluster_profile.Profile`, resolved, as plain data."""
    resources: Tree
    """The defaults that its file gives for the resources of specs."""
    names_array_size: bool
    """Its file has ``limits.max_array_size``, which is a default otherwise."""
    notes: tuple[str, ...] = ()
    """A message for the user if its file hides another one of the same name."""


def default_name() -> str:
    """Return the default profile: ``slurm`` where there is an sbatch, else ``local``."""
    return "slurm" if client.available() else LOCAL


def load(name: str, beside: Path, mark: SourceMark, problems: Problems) -> LoadedProfile | None:
    """Read and check the profile ``name`` of a spec in ``beside``; None after a problem."""
    known = profile_files.available(beside)
    if name not in known:
        hint = did_you_mean(name, known)
        site = expand_home(os.environ.get("HPCRUN_CLUSTERS", ""))
        if "/" in name or name.endswith((".yaml", ".yml")):
            place = profile_files.directories(beside)[0]
            hint = (
                f"profiles are chosen by name: put the file in {place}, and write {Path(name).stem}"
            )
        elif others := profile_files.files(name, beside, ".yml"):
            hint = f"{others[0]} is not read, as its name ends in .yml: call it {name}.yaml"
        elif not site.is_dir():
            hint = f"HPCRUN_CLUSTERS names {site}, and there is no such directory"
        found = f"there is no cluster profile {name!r}; there are {listing(sorted(known))}"
        Reporter(Tree({}), problems).at_mark(mark, "cluster", found, hint)
        return None
    before = len(problems.found)
    relative = os.path.relpath(known[name])
    shown = str(known[name]) if relative.startswith("../..") else relative
    tree = yaml_reader.read_yaml(known[name], shown, problems)
    if tree is None or len(problems.found) > before:
        return None
    defaults = {"name": name, "root": Profile.root}
    data = interpolate(tree.over(Tree(defaults)), problems)
    report = Reporter(tree, problems)
    checked = schema.SchemaChecker(report, Profile).block(data, Profile)
    if len(problems.found) == before:
        _check(checked, report)
    if len(problems.found) > before:
        return None
    given = {field: checked["resources"][field] for field in data.get("resources", {})}
    marks = {key: one for key, one in tree.marks.items() if key[:1] == ("resources",)}
    named = "max_array_size" in (data.get("limits") or {})
    is_shipped = known[name].parent == profile_files.shipped_directory()
    notes = () if is_shipped else _hidden(name, beside)
    return LoadedProfile(checked, Tree({"resources": given}, marks), named, notes)


def _hidden(name: str, beside: Path) -> tuple[str, ...]:
    """Say if a profile that comes with the spec hides others of its name."""
    first, *others = profile_files.files(name, beside)
    if not others or first.parent not in profile_files.around(beside):
        return ()
    owner = permissions.stranger(first)
    whose = f" of {owner}'s" if owner is not None else ""
    return (f"cluster {name} is {first}{whose}, which hides {listing(map(str, others))}",)


def _check(data: dict[str, Any], report: Reporter) -> None:
    slurm_options.check_name(data["name"], report)
    slurm_options.check_resources(data["resources"], report.below("resources"))
    slurm_options.check_sbatch(data["sbatch"], report.below("sbatch"))
    slurm_options.check_variables(data["variables"], report.below("variables"))
    slurm_options.check_setup(data["setup"], report.below("setup"))
    limits = data["limits"]
    if limits["max_time"] is not None:
        slurm_options.check_time(limits["max_time"], "limits.max_time", report)
    for field in ("max_array_size", "max_nodes"):
        report.at_least(f"limits.{field}", limits[field], 1)
    for field, hours in data["confirm_above"].items():
        if hours is not None and not 0 <= hours < MOST_NUMBER:
            report.at(f"confirm_above.{field}", f"found {hours}; accepted is a number from 0")
    report.at_least("health.budget", data["health"]["budget"], 0)
    _check_prices(data["prices"], report.below("prices"))
    umask = data["umask"]
    if umask is not None and not _UMASK.fullmatch(umask):
        found = f"found {umask!r}; accepted is an octal mask that leaves the owner all rights"
        report.at("umask", found, 'in quotes: "0027" lets the group read')
    if data["group"] is not None and not data["group"].strip():
        report.at("group", "is empty; accepted is the name of a group, or null")
    if not expand_home(data["root"]).is_absolute():
        report.at("root", f"found {data['root']!r}; accepted is an absolute path")


def _check_prices(prices: dict[str, Any], report: Reporter) -> None:
    given = {name: value for name, value in prices.items() if isinstance(value, float)}
    given |= {f"gpu_types.{name}": value for name, value in prices["gpu_types"].items()}
    for name, value in given.items():
        if not 0 <= value < MOST_NUMBER:
            report.at(name, f"found {value}; accepted is a number from 0 to {MOST_NUMBER:,.0f}")
    if len(prices["currency"]) > 12 or not prices["currency"].isprintable():
        found = shortened(prices["currency"], 40)
        report.at("currency", f"found {found!r}; accepted is a short word, such as EUR")
