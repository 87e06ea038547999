"""A submission from the moment its files are on disk, and what became of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcrun.state import ledger
from hpcrun.state.layout import ExperimentPaths, SubmissionPaths
from hpcrun.state.plan import Plan
from hpcrun.submit import run_actions
from hpcrun.submit.run_actions import Decision
from hpcrun.submit.submission_dir import Draft


@dataclass(frozen=True)
class SubmittedRun:
    """One run and what was done about it.

    Attributes
    ----------
    action
        That of `hpcrun.submit.run_actions`.
    older_code
        Whether it completed under other code than that of now.
    """

    run: int
    label: str
    action: str
    job_id: str | None
    older_code: bool = False


@dataclass(frozen=True)
class SubmittedArray:
    """Runs that went to the executor together, as one job or array of that id."""

    array: int
    runs: tuple[int, ...]
    job_id: str
    gpu_hours: float
    offset: int = 0


@dataclass(frozen=True)
class Submitted:
    """What a submission did.

    Attributes
    ----------
    experiment
        The experiment's name.
    submission
        The submission's number; None when there was nothing to submit.
    directory
        The experiment's directory.
    runs
        Every run of the spec.
    arrays
        What was given to the executor.
    """

    experiment: str
    submission: int | None
    directory: Path
    runs: tuple[SubmittedRun, ...]
    arrays: tuple[SubmittedArray, ...] = ()

    @property
    def numbers(self) -> tuple[str, tuple[int, ...]]:
        """The experiment's name and its runs' numbers."""
        return self.experiment, tuple(run.run for run in self.runs)

    def to_data(self) -> dict[str, Any]:
        """What ``hpcrun submit --json`` prints."""
        return dataclasses.asdict(self)


def chain_data(done: Iterable[Submitted]) -> dict[str, Any]:
    """The last one's data, with that of those it depends on, where there are any."""
    *before, last = done
    data = last.to_data()
    return {**data, "before": [one.to_data() for one in before]} if before else data


@dataclass
class Prepared:
    """A submission whose files are all on disk and that nobody was asked for yet.

    Attributes
    ----------
    plan
        The frozen plan; its arrays hold the runs that are to be submitted.
    decisions
        About every run of the plan.
    draft
        The submission's directory; None when there is nothing to submit.
    older
        Completed runs whose code was another than that of now.
    taken_back
        Intents of runs that stand no more.
    dropped
        Runs that were cancelled before they were submitted.
    """

    experiment: ExperimentPaths
    plan: Plan
    decisions: list[Decision]
    draft: Draft | None
    older: frozenset[int] = frozenset()
    taken_back: dict[int, str] = field(default_factory=dict)
    dropped: set[int] = field(default_factory=set)

    @property
    def submission(self) -> SubmissionPaths:
        assert self.draft is not None
        return self.draft.paths

    def take_back_intents(self, runs: Sequence[int]) -> None:
        """A run that is submitted again is no longer cancelled, nor finished if it is extended."""
        extended = {one.run for one in self.decisions if one.action == run_actions.EXTENDED}
        for run in runs:
            paths = self.experiment.run(run)
            intent = ledger.intent(paths)
            if intent == ledger.CANCELLED or (intent == ledger.FINISHED and run in extended):
                self.taken_back[run] = intent
                ledger.set_intent(paths, None)

    def restore_intents(self, runs: Sequence[int]) -> None:
        """Undo `take_back_intents` for runs that were not submitted after all."""
        for run in set(runs) & set(self.taken_back):
            ledger.set_intent(self.experiment.run(run), self.taken_back.pop(run))

    def result(self, arrays: Sequence[SubmittedArray] = ()) -> Submitted:
        """What was done, once ``arrays`` have been accepted."""
        ids = {run: job_of(array, run) for array in arrays for run in array.runs}
        labels = {run.number: run.label for run in self.plan.runs}
        runs = []
        for decision in self.decisions:
            job_id = ids.get(decision.run)
            if job_id is None and not decision.is_submitted and decision.job:
                job_id = decision.job.job_id
            runs.append(
                SubmittedRun(
                    decision.run,
                    labels[decision.run],
                    run_actions.DROPPED if decision.run in self.dropped else decision.action,
                    job_id,
                    decision.run in self.older,
                )
            )
        number = self.draft.paths.number if self.draft else None
        return Submitted(
            self.plan.name, number, self.experiment.directory, tuple(runs), tuple(arrays)
        )


def job_of(array: SubmittedArray, run: int) -> str:
    """The job id of one run: ``123_4`` in an array, else ``123`` or ``local:PID``."""
    is_element = len(array.runs) > 1 and not array.job_id.startswith("local:")
    return f"{array.job_id}_{run - array.offset}" if is_element else array.job_id
