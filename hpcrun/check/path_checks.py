"""Paths that a plan names: the root, and those in configurations and arguments."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any

from hpcrun import mounts
from hpcrun.check.finding import ERROR, NOTE, WARNING, Finding
from hpcrun.compile.source.marked_tree import leaves
from hpcrun.host import is_there
from hpcrun.state.layout import ExperimentPaths
from hpcrun.state.manifest import Manifest
from hpcrun.state.plan import RunPlan
from hpcrun.state.spec.executors import Executor
from hpcrun.text import one_line, size

# Directories that each machine has of its own.
_OWN = ("/tmp", "/var/tmp", "/dev/shm", "/run", "/scratch/local")  # noqa: S108 - nothing is written
# From so many nodes on, a start reads packages from shared storage for minutes.
_MANY_NODES = 16
# On Lustre files are spread over its targets (OSTs): so many of one save by their number, each on
# one target; of fewer, those of more bytes than these are divided among some.
_MANY_FILES, _LARGE_FILE, _STRIPES = 512, 1 << 30, 4
_MOST_PATHS, _MOST_NEIGHBOURS = 200, 2_000
# Nothing that is stored.
_NO_FILES = ("/proc/", "/sys/", "/dev/null", "/dev/std", "/dev/tty", "/dev/fd/")


def root(path: Path, runs: Sequence[RunPlan], cluster: dict[str, object]) -> Iterator[Finding]:
    """Yield a finding for a root that cannot be written, or that other nodes do not see."""
    there = next((one for one in (path, *path.parents) if one.is_dir()), path)
    if not os.access(there, os.W_OK | os.X_OK):
        found = f"{there} cannot be written by you, and runs are to go below {path}"
        yield Finding(ERROR, "root", found, "choose another root: --root DIR, or HPCRUN_ROOT")
    if Executor.of(cluster).is_here:
        return
    own = _own(path)
    if own is not None and _is_of_this_machine(there):
        yield Finding(
            WARNING,
            "root",
            f"the root {path} lies in {own}, which every machine usually has of its own: nodes do "
            "not see what this one writes there",
            "choose a root on shared storage: --root DIR, HPCRUN_ROOT, or `root:` of the profile",
        )
    for python in dict.fromkeys(str(run.environment.python) for run in runs):
        if python.startswith(tuple(f"{each}/" for each in _OWN)) and own is None:
            found = f"{python} lies in a directory that every machine has of its own"
            hint = "make the environment on shared storage, or see that all nodes have it"
            yield Finding(WARNING, "environment.python", found, hint)
    yield from _imports(runs)


def _imports(runs: Sequence[RunPlan]) -> Iterator[Finding]:
    """Yield a finding where very many processes will import from shared storage at once."""
    live = [run for run in runs if not run.environment.is_frozen and run.container is None]
    largest = max(live, key=lambda run: run.world_size, default=None)
    if largest is None or largest.nodes < _MANY_NODES:
        return
    python = str(largest.environment.python)
    mount = mounts.of(os.path.realpath(Path(python).parent), mounts.read())
    if mount is not None and mount.is_remote:
        found = f"{largest.world_size:,} processes will import at once from {python}, on shared "
        found += f"storage ({mount.kind})"
        hint = "environment.venv=frozen has each node import from a copy of its own"
        yield Finding(NOTE, "environment.venv", found, hint)


def stripes(
    paths: ExperimentPaths, runs: Sequence[RunPlan], saved: Sequence[Manifest]
) -> Iterator[Finding]:
    """Yield a finding with the line that stripes the files of checkpoints on Lustre.

    ``saved`` are checkpoints that the experiment has so far, which tell the sizes of their files.
    """
    mount = mounts.of(os.path.realpath(paths.directory), mounts.read())
    if mount is None or mount.kind != "lustre":
        return
    count = max((_files_of_save(run) for run in runs if run.entry.kind == "function"), default=0)
    largest = max((file.bytes for one in saved for file in one.files.values()), default=0)
    if count >= _MANY_FILES:
        found, targets = f"a save has {count:,} files, in one directory on Lustre", 1
        effect = "has each lie on one storage target"
    elif largest > _LARGE_FILE:
        found, targets = f"a checkpoint has a file of {size(largest)}, on Lustre", _STRIPES
        effect = f"divides new files among {targets} storage targets (now: lfs getstripe -d)"
    else:
        return
    there, line = shlex.quote(str(paths.directory)), f"lfs setstripe -c {targets}"
    # A directory has what the one above it had as it was made.
    typed = f"mkdir -p {there} && {line} {there}"
    if paths.directory.is_dir():
        typed = f"find {there} -type d -exec {line} {{}} \\;"
    yield Finding(NOTE, "checkpoint", found, f"`{typed}` {effect}")


def _files_of_save(run: RunPlan) -> int:
    """Return how many files DeepSpeed and hpcrun write into a checkpoint's directory.

    hpcrun writes one of each rank, ZeRO 1 and 2 one more (the optimizer's), ZeRO 3 another one.
    """
    zero = run.deepspeed.get("zero_optimization")
    stage = zero.get("stage") if isinstance(zero, Mapping) else 0
    return run.world_size * (3 if stage == 3 else 2 if stage in (1, 2) else 1)


def _is_of_this_machine(path: Path) -> bool:
    """Check that a path has no mount of its own below the directories of `_OWN`."""
    while not os.path.ismount(path) and path != path.parent:
        path = path.parent
    return str(path) in ("/", *_OWN, "/var", "/dev")


def check_paths(runs: Sequence[RunPlan], cluster: Mapping[str, object]) -> Iterator[Finding]:
    """Yield findings on absolute paths in ``config`` and ``args`` that runs would not find.

    What is not there may be what the program makes, so that it is told and not refused.
    """
    known: dict[str, tuple[str, str, str] | None] = {}
    for run in runs:
        for key, path in _paths(run):
            if path not in known:
                if len(known) == _MOST_PATHS:
                    return
                known[path] = _lacking(path, Executor.of(cluster).queues)
            if (told := known[path]) is not None:
                severity, message, hint = told
                yield Finding(severity, key, message, hint, (run.number,))


def _paths(run: RunPlan) -> Iterator[tuple[str, str]]:
    """Yield the keys and absolute paths of a run."""
    args = run.spec.get("args") or []
    found: list[tuple[str, Any]] = [(f"config.{'.'.join(key)}", v) for key, v in leaves(run.config)]
    found += [("args", word) for word in (args if isinstance(args, list) else [args])]
    for key, value in found:
        if not isinstance(value, str):
            continue
        path = value.rpartition("=")[2] if key == "args" else value
        is_file = path.startswith("/") and not path.startswith(_NO_FILES)
        if is_file and path.strip("/") and "${" not in path and path.isprintable():
            yield key, path


def _lacking(path: str, on_slurm: bool) -> tuple[str, str, str] | None:
    """Return severity, message and hint on a path; None where nothing is to be said."""
    where = Path(os.path.normpath(path))
    shown = one_line(path)
    own = _own(where)
    there = next((one for one in where.parents if is_there(one.is_dir)), where)
    try:
        exists = is_there(where.exists)
    except OSError as error:
        return NOTE, f"{shown} cannot be looked at: {error.strerror}", "check its permissions"
    if own is not None and on_slurm and _is_of_this_machine(there):
        found = f"{shown} lies in {own}, which every machine usually has of its own"
        hint = "put it on shared storage, unless each node has its own or writes only what may go"
        return WARNING, found, hint
    if exists:
        return None
    near = get_close_matches(where.name, _neighbours(there), n=1) if there == where.parent else []
    if near:
        return WARNING, f"{shown} is not there", f"did you mean {one_line(str(there / near[0]))}?"
    if there != where.parent:
        found = f"{shown} is not there, nor is {one_line(str(where.parent))}"
        return WARNING, found, "correct the path, unless the program makes these directories"
    return NOTE, f"{shown} is not there", "all is well if the program makes it"


def _neighbours(directory: Path) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return [one.name for one in islice(entries, _MOST_NEIGHBOURS)]
    except OSError:
        return []


def _own(path: Path) -> str | None:
    """Return the directory of `_OWN` in which a path lies."""
    real = os.path.realpath(path)
    return next((each for each in _OWN if real == each or real.startswith(f"{each}/")), None)
