"""The installed packages beside hpcrun that runs need, as jobs import them from hpcrun.zip.

Only a package whose entry a plan names goes along: its modules, and its ``.dist-info`` by which
`hpcrun.registry` finds the entry on compute nodes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import machinery
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from hpcrun.errors import UsageError
from hpcrun.extensions import FRAMEWORKS, READERS, RECIPES, RUNTIMES, TRACKERS
from hpcrun.policy import frameworks, resume
from hpcrun.registry import Registry
from hpcrun.state.plan import Plan, RunPlan

if TYPE_CHECKING:
    from importlib.metadata import Distribution

# Endings of what a zip file is no place for, as the system's loader opens it.
_COMPILED = (*machinery.EXTENSION_SUFFIXES, ".so", ".dylib", ".pyd", ".dll")


def files(plan: Plan) -> dict[str, bytes]:
    """Return path -> content of what the plan's packages have, to be put beside hpcrun.

    Raise UsageError for a package that has compiled parts, or that jobs cannot import from a zip.
    """
    found: dict[str, bytes] = {}
    for package, used_as in sorted(_used(plan).items()):
        found |= _files_of(package, used_as)
    return found


def _used(plan: Plan) -> dict[str, str]:
    """Return package -> the key of the spec that names one of its entries."""
    found: dict[str, str] = {}
    for run in plan.runs:
        for kind, key, name in _named(run):
            package = kind.package(name)
            found |= {package: key} if package is not None else {}
    return found


def _named(run: RunPlan) -> Iterator[tuple[Registry[Any], str, str]]:
    """Yield the kind, the key of the spec and the name of each entry that a run's jobs load."""
    for name in run.trackers:
        yield TRACKERS, f"tracking.{name}", name
    if run.container is not None:
        yield RUNTIMES, "environment.container.runtime", str(run.container.runtime)
    for entry in (run.entry, *(role.entry for role in run.role_plans)):
        if entry is not None:
            yield FRAMEWORKS, "framework", entry.framework
            yield READERS, "framework", frameworks.of(entry.framework).progress
    yield READERS, "progress.source", run.progress.source
    if (recipe := resume.recipe_of(run)) is not None:
        yield RECIPES, "recovery.resume", recipe


def _files_of(package: str, used_as: str) -> dict[str, bytes]:
    from importlib import metadata

    distribution = metadata.distribution(package)

    def refusal(why: str, hint: str) -> UsageError:
        found = f"{used_as} is of the package {package}, which jobs cannot import"
        return UsageError(f"{found}: {why}", hint=hint)

    if _is_editable(distribution):
        why = "it is installed as editable, so that its code is elsewhere and may change"
        raise refusal(why, "install a copy, without -e: pip install DIRECTORY")
    recorded = distribution.files
    if recorded is None:
        raise refusal("no RECORD lists its files", f"pip install --force-reinstall {package}")
    found = {}
    for name in recorded:
        if _is_left_out(name):
            continue
        if name.name.endswith(_COMPILED):
            hint = "its authors can leave the entry in a package of its own, of Python alone"
            raise refusal(f"it has the compiled file {name}", hint)
        if name.parts[0] == "hpcrun" or name.suffix == ".pth":
            hint = "its authors can leave it out"
            raise refusal(f"it has {name}, which changes how Python or hpcrun is imported", hint)
        try:
            found[name.as_posix()] = name.read_binary()
        except OSError as error:
            hint = f"pip install --force-reinstall {package}"
            raise refusal(f"its file {name}: {error.strerror}", hint) from None
    for module in _modules(distribution):
        if not {f"{module}.py", f"{module}/__init__.py"} & found.keys():
            hint = f"pip install --force-reinstall {package}"
            raise refusal(f"its files lack the module {module.replace('/', '.')}", hint)
    return found


def _is_editable(distribution: Distribution) -> bool:
    try:
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    except ValueError:
        return False
    return isinstance(origin, dict) and bool(origin.get("dir_info", {}).get("editable"))


def _is_left_out(name: PurePosixPath) -> bool:
    """Check whether jobs need not have a file: commands, and what Python compiled."""
    return name.is_absolute() or ".." in name.parts or "__pycache__" in name.parts


def _modules(distribution: Distribution) -> Iterator[str]:
    """Yield the paths, without an ending, of the modules that hold entries for hpcrun."""
    for offered in distribution.entry_points:
        if offered.group.startswith("hpcrun."):
            yield offered.module.replace(".", "/")
