"""A submission's directory, from the claim of its number until something was submitted from it."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hpcrun
from hpcrun.errors import UsageError
from hpcrun.host import current_user
from hpcrun.state import files, plan_file
from hpcrun.state.layout import ExperimentPaths, SubmissionPaths
from hpcrun.state.plan import Plan
from hpcrun.submit.code import snapshot
from hpcrun.submit.code.snapshot import Snapshot
from hpcrun.submit.python_probe import Probe


class Draft:
    """The next submission of an experiment; `discard` leaves the disk as it was found.

    Making one claims the number, by the creation of its directory.

    Raises
    ------
    UsageError
        The root cannot be written to.
    """

    def __init__(self, experiment: ExperimentPaths) -> None:
        self._experiment = experiment
        self._made: list[Path] = []
        parent = experiment.submission(1).directory.parent
        try:
            self._make_parents(parent)
            self.paths = self._claim(experiment)
        except OSError as error:
            self.discard()
            raise unwritable(parent, error) from None

    def fill(self, plan: Plan, probe: Probe, *, argv: Sequence[str]) -> Snapshot:
        """Write everything that the runs will need; nothing outside is read after this.

        Raises
        ------
        UsageError
            The code cannot be frozen, or the directory cannot be written to.
        """
        try:
            frozen = self._freeze_code(plan)
            self._write(plan, self._facts(probe, frozen.to_data(), argv))
        except OSError as error:
            raise unwritable(self.paths.directory, error) from None
        return frozen

    def fill_again(
        self, plan: Plan, probe: Probe, earlier: SubmissionPaths, *, argv: Sequence[str]
    ) -> None:
        """The same with the code that an earlier submission froze; hpcrun itself is that of now.

        Raises
        ------
        UsageError
            That code is not there, or the directory cannot be written to.
        """
        code = code_of(earlier)
        try:
            self._write(plan, self._facts(probe, code, argv))
        except OSError as error:
            raise unwritable(self.paths.directory, error) from None

    def discard(self) -> None:
        """Remove what this made and nobody else may use by now."""
        archives: list[Path] = []
        for path in reversed(self._made):
            if path.parent.name == "submissions":
                shutil.rmtree(path, ignore_errors=True)
            elif path.suffix == ".gz":
                archives.append(path)
        submissions = self._experiment.directory / "submissions"
        if not (submissions.is_dir() and any(submissions.iterdir())):
            for path in archives:
                path.unlink(missing_ok=True)
        for path in reversed(self._made):
            with contextlib.suppress(OSError):
                path.rmdir()

    def _write(self, plan: Plan, facts: dict[str, Any]) -> None:
        snapshot.package(self.paths.package)
        plan_file.write(plan, self.paths.plan)
        files.write_json(self.paths.submission, facts)
        for index, array in enumerate(plan.arrays):
            if array.script:
                files.write_bytes(self.paths.script(index), array.script.encode())

    def _make_parents(self, directory: Path) -> None:
        missing = [path for path in (directory, *directory.parents) if not path.exists()]
        for path in reversed(missing):
            path.mkdir(exist_ok=True)
            self._made.append(path)

    def _claim(self, experiment: ExperimentPaths) -> SubmissionPaths:
        earlier = experiment.submissions()
        number = earlier[-1].number + 1 if earlier else 1
        while True:
            paths = experiment.submission(number)
            try:
                paths.directory.mkdir()
            except FileExistsError:
                number += 1
                continue
            self._made.append(paths.directory)
            return paths

    def _freeze_code(self, plan: Plan) -> Snapshot:
        directory = self.paths.experiment.code
        self._make_parents(directory)
        before = {path.name for path in directory.iterdir()}
        root = Path(plan.code_root)
        frozen = snapshot.freeze(root, directory, **scope(plan, self.paths.experiment))
        if frozen.archive.name not in before:
            self._made.append(frozen.archive)
        return frozen

    def _facts(self, probe: Probe, code: dict[str, Any], argv: Sequence[str]) -> dict[str, Any]:
        return {
            "number": self.paths.number,
            "time": time.time(),
            "user": current_user(),
            "host": os.uname().nodename,
            "argv": list(argv),
            "hpcrun": hpcrun.__version__,
            "python": probe.to_data(),
            "code": code,
        }


def scope(plan: Plan, experiment: ExperimentPaths) -> dict[str, Any]:
    """What belongs to a plan's code, as `hpcrun.submit.code.snapshot.freeze` wants to know it."""
    code = plan.runs[0].spec.get("code") or {}
    links = (Path(plan.code_root) / plan.directory / link for link in code.get("link") or ())
    named = {(run.spec.get("environment") or {}).get("secrets_file") for run in plan.runs}
    secrets = sorted({path for file in named if file for path in (file, os.path.realpath(file))})
    return {
        "exclude": code.get("exclude") or (),
        "required": _required(plan),
        "without": [experiment.directory.parent, *links, *map(Path, secrets)],
    }


def check_root(root: Path) -> None:
    """See that the root is a directory, or can become one.

    Raises
    ------
    UsageError
        It or a part of its path is something else.
    """
    for path in (root, *root.parents):
        if path.is_dir():
            return
        if path.exists():
            raise unwritable(path, NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)))


def unwritable(path: Path, error: OSError) -> UsageError:
    """The error for a place under the root that cannot be written to."""
    place = error.filename or path
    return UsageError(
        f"{place}: cannot be written: {error.strerror or error}",
        hint="experiments live under the root; choose another with --root DIR or HPCRUN_ROOT",
    )


def code_of(earlier: SubmissionPaths) -> dict[str, Any]:
    """What ``submission.json`` says of frozen code that is still there."""
    try:
        code = files.read_json(earlier.submission)["code"]
        archive = earlier.experiment.code / str(code["archive"])
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(
            f"{earlier.submission} names no frozen code",
            hint="`hpcrun submit` goes on with the code of now",
        ) from None
    if not archive.is_file():
        raise UsageError(
            f"the code that was frozen at submission is gone: {archive}",
            hint="`hpcrun submit` goes on with the code of now",
        )
    return dict(code)


def _required(plan: Plan) -> list[str]:
    root = Path(plan.code_root)
    required = {run.entry.file for run in plan.runs if run.entry.file}
    for run in plan.runs:
        if run.entry.kind == "function" and run.entry.module and run.entry.import_root is not None:
            required |= _module_file(root, run.entry.import_root, run.entry.module)
    spec = Path(plan.spec_file)
    if spec.is_relative_to(root):
        required.add(spec.relative_to(root).as_posix())
    return sorted(required)


def _module_file(root: Path, import_root: str, module: str) -> set[str]:
    base = root / import_root / Path(*module.split("."))
    for candidate in (base.with_name(base.name + ".py"), base / "__init__.py"):
        if candidate.is_file():
            return {Path(os.path.relpath(candidate, root)).as_posix()}
    return set()
