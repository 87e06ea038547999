"""A submission's directory, from the claim of its number to its result."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import re
import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hpcrun
from hpcrun import activity
from hpcrun.errors import UsageError
from hpcrun.host import current_user
from hpcrun.state import files, ledger, permissions, plan_file, submission_facts
from hpcrun.state.environment import frozen_environment
from hpcrun.state.environment.frozen_environment import FrozenEnvironment
from hpcrun.state.journal import job_of
from hpcrun.state.layout import ExperimentPaths, SubmissionPaths
from hpcrun.state.plan import Plan
from hpcrun.submission import run_actions
from hpcrun.submission.code import own_package, snapshot
from hpcrun.submission.code.unfrozen import Unfrozen
from hpcrun.submission.python_probe import Probe
from hpcrun.submission.run_actions import Decision

# Names that programs and people set; those of functions and of module systems' tables are not.
_VARIABLE = re.compile(r"(?!BASH_FUNC_|_|LMOD_|__)[A-Za-z]\w{0,99}")
_MOST_VARIABLES = 500


class Draft:
    """The directory of an experiment's next submission; `discard` restores the disk.

    Making one claims the number, by creating the directory. As a context manager it is discarded
    when an exception leaves the block. Raises UsageError if the root cannot be written to.
    """

    def __init__(self, experiment: ExperimentPaths) -> None:
        self._experiment = experiment
        self._made: list[Path] = []
        parent = experiment.submission(1).directory.parent
        try:
            with permissions.owner_writes():
                self._make_parents(parent)
                self.paths = self._claim(experiment)
        except OSError as error:
            self.discard()
            raise unwritable(parent, error) from None

    def __enter__(self) -> Draft:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.discard()

    def fill(
        self,
        plan: Plan,
        probe: Probe,
        *,
        argv: Sequence[str],
        earlier: SubmissionPaths | None = None,
        environment: FrozenEnvironment | None = None,
        lacking: Unfrozen | None = None,
        typed: str | None = None,
    ) -> tuple[str, ...]:
        """Write everything that the runs will need; return notes on the code for the user.

        The code in the scope of ``lacking`` is frozen, or that of the submission ``earlier`` is
        taken, with its ``environment`` where that was frozen. ``typed`` is the spec where that is
        no file. Nothing outside is read after this. Raise UsageError if the code cannot be frozen
        or is gone, or the directory cannot be written to.
        """
        notes: tuple[str, ...] = ()
        variables: Iterable[str] = os.environ
        try:
            with permissions.owner_writes():
                if earlier is not None:
                    code = snapshot.read_record(earlier)
                    variables = submission_facts.describe(earlier).get("variables") or ()
                    if plan.runs[0].environment.is_frozen:
                        environment, _ = frozen_environment.of_submission(earlier)
                    if plan.is_typed:
                        typed = earlier.spec.read_text()
                else:
                    assert lacking is not None
                    with activity.doing(f"freezing the code of {plan.code_root}"):
                        frozen = self._freeze_code(lacking)
                    code, notes = frozen.to_data(), frozen.notes
                    code["left_out"] = [*lacking.left_out]
                if typed is not None:
                    files.write_bytes(self.paths.spec, typed.encode())
                own_package.write(self.paths.package, own_package.added_files(plan))
                plan_file.write(plan, self.paths.plan)
                facts = self._facts(probe, code, argv, environment, variables)
                files.write_json(self.paths.submission, facts)
                for index, array in enumerate(plan.arrays):
                    if array.script:
                        files.write_bytes(self.paths.script(index), array.script.encode())
        except OSError as error:
            raise unwritable(self.paths.experiment.directory, error) from None
        return notes

    def discard(self) -> None:
        """Remove what this made, unless another submission may use it by now."""
        archives: list[Path] = []
        for path in reversed(self._made):
            if path.parent == self._experiment.submissions_directory:
                shutil.rmtree(path, ignore_errors=True)
            elif path.suffix == ".gz":
                archives.append(path)
        submissions = self._experiment.submissions_directory
        if not (submissions.is_dir() and any(submissions.iterdir())):
            for path in archives:
                path.unlink(missing_ok=True)
        for path in reversed(self._made):
            with contextlib.suppress(OSError):
                path.rmdir()

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

    def _freeze_code(self, lacking: Unfrozen) -> snapshot.Snapshot:
        directory = self.paths.experiment.code
        self._make_parents(directory)
        before = {path.name for path in directory.iterdir()}
        assert lacking.scope is not None
        frozen = snapshot.freeze(lacking.scope, directory)
        if frozen.archive.name not in before:
            self._made.append(frozen.archive)
        return frozen

    def _facts(
        self,
        probe: Probe,
        code: dict[str, Any],
        argv: Sequence[str],
        environment: FrozenEnvironment | None,
        variables: Iterable[str],
    ) -> dict[str, Any]:
        packages = probe.packages if environment is None else environment.packages
        return {
            "number": self.paths.number,
            "time": time.time(),
            "user": current_user(),
            "host": os.uname().nodename,
            "argv": list(argv),
            "hpcrun": hpcrun.__version__,
            "python": probe.facts,
            **({"packages": dict(packages)} if packages else {}),
            **({frozen_environment.KEY: environment.to_data()} if environment else {}),
            "code": code,
            # The names of the shell's, never their values: `why` compares them.
            "variables": sorted(filter(_VARIABLE.fullmatch, variables))[:_MOST_VARIABLES],
        }


@dataclass(frozen=True)
class SubmittedRun:
    """One run and what was done about it."""

    run: int
    label: str
    action: str
    """As in `hpcrun.submission.run_actions`."""
    job_id: str | None
    older_code: bool = False
    """True if it completed with other code than the code of now."""


@dataclass(frozen=True)
class SubmittedArray:
    """Runs that were given to the executor together, as one job or array."""

    array: int
    runs: tuple[int, ...]
    job_id: str
    gpu_hours: float
    offset: int = 0
    cpu_hours: float = 0.0
    packed: bool = False

    def jobs(self) -> dict[int, str]:
        """Return run -> its job id."""
        own = self.job_id, self.runs
        return {run: job_of(*own, run, self.offset, packed=self.packed) for run in self.runs}


@dataclass(frozen=True)
class Submitted:
    """The result of a submission."""

    experiment: str
    submission: int | None
    """The submission's number; None if there was nothing to submit."""
    directory: Path
    runs: tuple[SubmittedRun, ...]
    """Every run of the spec."""
    arrays: tuple[SubmittedArray, ...] = ()
    """The arrays and jobs that the executor accepted."""
    unfrozen: dict[str, Any] | None = None
    """What the runs name that is not in the frozen code, as `Unfrozen.to_data` has it."""

    @property
    def numbers(self) -> tuple[str, tuple[int, ...]]:
        """The experiment's name and its runs' numbers."""
        return self.experiment, tuple(run.run for run in self.runs)

    def to_data(self) -> dict[str, Any]:
        """Return what ``hpcrun submit --json`` prints."""
        return dataclasses.asdict(self)


def chain_data(done: Iterable[Submitted]) -> dict[str, Any]:
    """Return the data of the last experiment, with ``before`` for those that it depends on."""
    *before, last = done
    data = last.to_data()
    return {**data, "before": [one.to_data() for one in before]} if before else data


@dataclass
class Prepared:
    """A submission whose files are all on disk, and that no executor has been given yet."""

    experiment: ExperimentPaths
    plan: Plan
    """The frozen plan; its arrays hold the runs that are to be submitted."""
    decisions: list[Decision]
    """One for each run of the plan."""
    draft: Draft | None
    """The submission's directory; None if there is nothing to submit."""
    older: frozenset[int] = frozenset()
    """Completed runs whose code differs from the code of now."""
    unfrozen: Unfrozen = field(default_factory=Unfrozen)
    """What the runs name that is not in the frozen code."""
    taken_back: dict[int, str] = field(default_factory=dict)
    """Run -> the intent that was removed from it."""
    dropped: set[int] = field(default_factory=set)
    """Runs that were cancelled before they were submitted."""

    @property
    def submission(self) -> SubmissionPaths:
        assert self.draft is not None
        return self.draft.paths

    @property
    def numbers(self) -> tuple[str, tuple[int, ...]]:
        """The experiment's name and its runs' numbers."""
        return self.plan.numbers

    def take_back_intents(self, runs: Sequence[int]) -> None:
        """Remove the intents of runs that go on, unless they are finished and not extended."""
        extended = {one.run for one in self.decisions if one.action == run_actions.EXTENDED}
        for run in runs:
            paths = self.experiment.run(run)
            intent = ledger.intent(paths)
            if intent and (intent != ledger.FINISHED or run in extended):
                self.taken_back[run] = intent
                ledger.set_intent(paths, None)

    def restore_intents(self, runs: Sequence[int]) -> None:
        """Undo `take_back_intents` for runs that were not submitted after all."""
        for run in set(runs) & set(self.taken_back):
            ledger.set_intent(self.experiment.run(run), self.taken_back.pop(run))

    def result(self, arrays: Sequence[SubmittedArray] = ()) -> Submitted:
        """Return the result, once ``arrays`` have been accepted."""
        kept = [one for one in self.decisions if not one.is_submitted]
        ids = {one.run: one.job.job_id for one in kept if one.job}
        for array in arrays:
            ids.update(array.jobs())
        labels = {run.number: run.label for run in self.plan.runs}
        runs = [
            SubmittedRun(
                one.run,
                labels[one.run],
                run_actions.DROPPED if one.run in self.dropped else one.action,
                ids.get(one.run),
                one.run in self.older,
            )
            for one in self.decisions
        ]
        number = self.draft.paths.number if self.draft else None
        return Submitted(
            self.plan.name,
            number,
            self.experiment.directory,
            tuple(runs),
            tuple(arrays),
            self.unfrozen.to_data(),
        )


def unwritable(path: Path, error: OSError) -> UsageError:
    """Return the error for a path under the root that cannot be written to, or what it is of."""
    at = Path(error.filename or path)
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
    if not (is_full or at.is_relative_to(path) or path.is_relative_to(at)):
        said = f"{at}, of which the jobs get a copy: {error.strerror or error}"
        return UsageError(said, hint="make it readable; if it has just changed, submit again")
    return UsageError(
        f"{at}: cannot be written: {error.strerror or error}",
        hint="experiments live under the root; choose another with --root DIR or HPCRUN_ROOT",
    )
