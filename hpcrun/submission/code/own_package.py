"""The zip file from which jobs import the hpcrun that submitted them, and packages beside it.

Only a package whose entry a plan names goes along: its modules, and its ``.dist-info`` by which
`hpcrun.extensions` finds the entry on compute nodes.
"""

from __future__ import annotations

import importlib.util
import io
import json
import marshal
import os
import types
import zipfile
from collections.abc import Iterator, Mapping
from importlib import machinery
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hpcrun
from hpcrun.errors import UsageError
from hpcrun.extensions import FRAMEWORKS, READERS, RECIPES, RUNTIMES, TRACKERS, Registry
from hpcrun.policy import frameworks, resume
from hpcrun.state import files as state_files
from hpcrun.state.plan import Plan, RunPlan

if TYPE_CHECKING:
    from importlib.metadata import Distribution

# Folders of which supervisors, agents, ranks and the local executor import something.
_OF_JOBS = {"container", "features", "policy", "run", "slurm", "state", "submission"}
# Endings of what a zip file is no place for, as the system's loader opens it.
_COMPILED = (*machinery.EXTENSION_SUFFIXES, ".so", ".dylib", ".pyd", ".dll")


def write(path: Path, added: Mapping[str, bytes] | None = None) -> None:
    """Write the running hpcrun to a zip file that Python imports from.

    ``PYTHONPATH=hpcrun.zip python -m hpcrun.run.supervisor`` then runs this version, whatever is
    installed, upgraded or removed later. What jobs import is compiled beside its source, for the
    Python that submits; another one compiles the source, in 0.3 s of each agent's start. ``added``
    is put beside it, as `added_files` returns it.
    """
    source = Path(hpcrun.__file__).resolve().parent
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:

        def add(name: str, data: bytes, how: int = zipfile.ZIP_DEFLATED) -> None:
            info = zipfile.ZipInfo(name, (2000, 1, 1, 0, 0, 0))
            info.external_attr = 0o644 << 16
            archive.writestr(info, data, how, compresslevel=1)

        for file in _python_files(source):
            name = file.relative_to(source)
            inside = f"hpcrun/{name.as_posix()}"
            add(inside, file.read_bytes())
            of_tool_in_job = name.parts[0] == "tools" and "on_nodes" in name.parts
            if len(name.parts) == 1 or name.parts[0] in _OF_JOBS or of_tool_in_job:
                # Each process of a job would inflate a hundred of them, in 5 ms.
                add(f"{inside}c", _compiled(file, f"{path}/{inside}"), zipfile.ZIP_STORED)
        for inside, data in (added or {}).items():
            add(inside, data)
    state_files.write_bytes(path, buffer.getvalue())


def _python_files(source: Path) -> list[Path]:
    """Return the modules of a package; raise OSError for a directory that cannot be listed.

    Caches, which may go at any time, are not looked into.
    """
    found: list[Path] = []
    left = [source]
    while left:
        for entry in os.scandir(left.pop()):
            if entry.is_dir() and entry.name not in ("__pycache__", "_data"):
                left.append(Path(entry.path))
            elif entry.name.endswith(".py"):
                found.append(Path(entry.path))
    return sorted(found)


def _compiled(file: Path, shown: str) -> bytes:
    """Return a module as `zipimport` takes it without a look at the source.

    ``shown`` is the path that tracebacks are to have. Python keeps beside the source what it had to
    compile, if it may write there.
    """
    code = machinery.SourceFileLoader(file.stem, str(file)).get_code(file.stem)
    assert code is not None, file
    # PEP 552: by the hash of the source, which is not to be checked.
    header = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8)
    return header + marshal.dumps(_renamed(code, shown))


def _renamed(code: types.CodeType, path: str) -> types.CodeType:
    constants = (
        _renamed(one, path) if isinstance(one, types.CodeType) else one for one in code.co_consts
    )
    return code.replace(co_filename=path, co_consts=tuple(constants))


def added_files(plan: Plan) -> dict[str, bytes]:
    """Return path -> content of what the plan's packages have, to be put beside hpcrun.

    Raise UsageError for a package that has compiled parts, or that jobs cannot import from a zip.
    """
    named = [one for run in plan.runs for one in _entries_of(run)]
    # Package -> the key of the spec that names one of its entries.
    used = {package: key for kind, key, name in named if (package := kind.package(name))}
    found: dict[str, bytes] = {}
    for package, key in sorted(used.items()):
        found |= _files_of(package, key)
    return found


def _entries_of(run: RunPlan) -> Iterator[tuple[Registry[Any], str, str]]:
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
    again = f"pip install --force-reinstall {package}"
    recorded = distribution.files
    if recorded is None:
        raise refusal("no RECORD lists its files", again)
    found = {}
    for name in recorded:
        if name.is_absolute() or ".." in name.parts or "__pycache__" in name.parts:
            continue  # jobs need no commands, and nothing that Python compiled
        if name.name.endswith(_COMPILED):
            hint = "its authors can leave the entry in a package of its own, of Python alone"
            raise refusal(f"it has the compiled file {name}", hint)
        if name.parts[0] == "hpcrun" or name.suffix == ".pth":
            hint = "its authors can leave it out"
            raise refusal(f"it has {name}, which changes how Python or hpcrun is imported", hint)
        try:
            found[name.as_posix()] = name.read_binary()
        except OSError as error:
            raise refusal(f"its file {name}: {error.strerror}", again) from None
    entries = (one for one in distribution.entry_points if one.group.startswith("hpcrun."))
    for module in (one.module for one in entries):
        path = module.replace(".", "/")
        if not {f"{path}.py", f"{path}/__init__.py"} & found.keys():
            raise refusal(f"its files lack the module {module}", again)
    return found


def _is_editable(distribution: Distribution) -> bool:
    try:
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    except ValueError:
        return False
    return isinstance(origin, dict) and bool(origin.get("dir_info", {}).get("editable"))
