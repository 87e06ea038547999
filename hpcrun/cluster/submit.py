"""From a compiled spec to jobs: what to do about each run, the frozen files, the executor's answer.

A submission that Slurm accepts nothing of leaves nothing behind. The journal has a line before each
call of sbatch and one after it.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcrun import ledger
from hpcrun.cluster import decide, journal, local, sbatch, sizes, slurm, submit_lock, time_limit
from hpcrun.cluster.decide import Decision
from hpcrun.cluster.draft import Draft, check_root
from hpcrun.cluster.probe import Probe, probe
from hpcrun.compile import Compiled, freeze
from hpcrun.errors import ClusterUnreachable, HpcrunError
from hpcrun.layout import ExperimentPaths, SubmissionPaths, experiment
from hpcrun.plan import Array, Plan, RunPlan

Say = Callable[[str], None]
# Of an experiment's runs, the numbers of those that are asked for.
Only = Callable[[ExperimentPaths, Sequence[RunPlan]], Collection[int]]


@dataclass(frozen=True)
class SubmittedRun:
    """One run and what was done about it; ``action`` is that of `hpcrun.cluster.decide`."""

    run: int
    label: str
    action: str
    job_id: str | None


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

    def to_data(self) -> dict[str, Any]:
        """What ``hpcrun submit --json`` prints."""
        return dataclasses.asdict(self)


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
    """

    experiment: ExperimentPaths
    plan: Plan
    decisions: list[Decision]
    draft: Draft | None
    taken_back: list[int] = field(default_factory=list)

    @property
    def submission(self) -> SubmissionPaths:
        assert self.draft is not None
        return self.draft.paths

    def take_back_cancellations(self, runs: Sequence[int]) -> None:
        """A cancelled run that is submitted again is no longer cancelled."""
        for run in runs:
            paths = self.experiment.run(run)
            if ledger.intent(paths) == ledger.CANCELLED:
                ledger.set_intent(paths, None)
                self.taken_back.append(run)

    def restore_cancellations(self, runs: Sequence[int]) -> None:
        """Undo `take_back_cancellations` for runs that were not submitted after all."""
        for run in set(runs) & set(self.taken_back):
            ledger.set_intent(self.experiment.run(run), ledger.CANCELLED)
            self.taken_back.remove(run)

    def result(self, arrays: Sequence[SubmittedArray] = ()) -> Submitted:
        """What was done, once ``arrays`` have been accepted."""
        ids = {run: job_of(array, run) for array in arrays for run in array.runs}
        labels = {run.number: run.label for run in self.plan.runs}
        runs = []
        for decision in self.decisions:
            job_id = ids.get(decision.run)
            if job_id is None and not decision.is_submitted and decision.job:
                job_id = decision.job.job_id
            runs.append(SubmittedRun(decision.run, labels[decision.run], decision.action, job_id))
        number = self.draft.paths.number if self.draft else None
        return Submitted(
            self.plan.name, number, self.experiment.directory, tuple(runs), tuple(arrays)
        )


def submit(
    compiled: Compiled,
    *,
    new: bool = False,
    only: Only | None = None,
    argv: Sequence[str],
    say: Say,
) -> Submitted:
    """Submit what is neither completed nor on its way.

    Parameters
    ----------
    new
        Give every run a new number, even where the same was run before.
    only
        Which runs may be submitted; None for all.
    argv
        The command, for the record.
    say
        Takes messages for the person.

    Raises
    ------
    UsageError
        The root cannot be written to, the code cannot be frozen or the job's Python is of no use.
    ClusterRefused
        Slurm refuses the job; nothing is left behind unless an earlier array was accepted.
    ClusterUnreachable
        Slurm was asked for and is not there; the same.
    """
    check_executor(compiled.cluster)
    check_root(compiled.root)
    with submit_lock.held(experiment(compiled.root, compiled.name), say):
        prepared = prepare(compiled, new=new, only=only, argv=argv, say=say)
        if prepared.draft is None:
            return prepared.result()
        return prepared.result(send(prepared, say))


def prepare(
    compiled: Compiled,
    *,
    new: bool = False,
    only: Only | None = None,
    argv: Sequence[str],
    say: Say,
) -> Prepared:
    """Decide about every run and write all files of a submission; nothing is submitted yet.

    The caller holds the experiment's `submit_lock`.

    Raises
    ------
    UsageError, ClusterUnreachable
        As `submit`; nothing is left behind.
    """
    check_root(compiled.root)
    paths = experiment(compiled.root, compiled.name)
    numbers = _numbers(paths, new)
    plan = freeze(compiled, numbers=numbers, select=())
    decisions = decide.settle(paths, [run.number for run in plan.runs], say)
    if only is not None:
        asked = only(paths, plan.runs)
        decisions = [
            dataclasses.replace(decision, action=decide.SKIPPED)
            if decision.is_submitted and decision.run not in asked
            else decision
            for decision in decisions
        ]
    chosen = {decision.run for decision in decisions if decision.is_submitted}
    if not chosen:
        say(summary(plan, decisions))
        return Prepared(paths, plan, decisions, None)
    runs = [run for run in plan.runs if run.number in chosen]
    time_limit.check(runs, paths)
    resumed = {one.run for one in decisions if one.action == decide.RESUMED}
    sizes.check([run for run in runs if run.number in resumed], paths, say)
    found = probe_all(runs, plan.cluster)
    draft = Draft(paths)
    try:
        plan = freeze(compiled, submission=draft.paths.number, numbers=numbers, select=chosen)
        frozen = draft.fill(plan, found, argv=argv)
        for note in frozen.notes:
            say(f"code: {note}")
        say(summary(plan, decisions))
    except BaseException:
        draft.discard()
        raise
    return Prepared(paths, plan, decisions, draft)


def check_executor(cluster: dict[str, Any]) -> None:
    """See that there is an sbatch where one is needed.

    Raises
    ------
    ClusterUnreachable
        There is none.
    """
    if cluster["executor"] == "slurm" and not slurm.available():
        raise ClusterUnreachable(
            f"the cluster profile '{cluster.get('name')}' submits to Slurm, and there is "
            "no sbatch on PATH",
            hint="run this on a login node of the cluster, or choose `cluster=local`",
        )


def send(prepared: Prepared, say: Say) -> list[SubmittedArray]:
    """Give a prepared submission to its executor.

    Raises
    ------
    ClusterRefused, ClusterUnreachable
        As `submit`.
    """
    if prepared.plan.cluster["executor"] == "slurm":
        return _to_slurm(prepared, say)
    return _to_this_machine(prepared)


def preview(compiled: Compiled, *, new: bool = False, only: Only | None = None) -> Plan:
    """The plan that a submission would freeze now, as far as the disk alone tells.

    Nothing is written and no cluster is asked; runs that have completed are in no array.
    """
    check_root(compiled.root)
    paths = experiment(compiled.root, compiled.name)
    earlier = paths.submissions()
    numbers = _numbers(paths, new)
    asked = only(paths, freeze(compiled, numbers=numbers, select=()).runs) if only else None

    def wanted(run: RunPlan) -> bool:
        left = ledger.intent(paths.run(run.number)) != ledger.FINISHED
        return left and (asked is None or run.number in asked)

    return freeze(
        compiled,
        submission=earlier[-1].number + 1 if earlier else 1,
        numbers=numbers,
        select=wanted,
    )


def summary(plan: Plan, decisions: Sequence[Decision]) -> str:
    """How many runs, arrays and at most how many GPU-hours, in one line."""
    counts = {
        decide.NEW: "new",
        decide.RESUMED: "go on where they stopped",
        decide.ATTACHED: "are queued or running already",
        decide.CANCELLING: "are still being cancelled",
        decide.COMPLETED: "completed already",
        decide.SKIPPED: "left out by --only",
    }
    parts = []
    for action, words in counts.items():
        count = sum(decision.action == action for decision in decisions)
        if count:
            parts.append(f"{count} {words}")
    text = f"{plan.name}: {_count(len(decisions), 'run')} ({', '.join(parts)})"
    if not plan.arrays:
        return f"{text}; nothing to submit"
    if plan.cluster["executor"] == "local":
        return f"{text}; on this machine, {plan.max_parallel or 1} at a time"
    hours = sum(array.gpu_hours for array in plan.arrays)
    arrays = sum(array.is_array for array in plan.arrays)
    jobs = len(plan.arrays) - arrays
    shapes = [_count(arrays, "array")] if arrays else []
    shapes += [_count(jobs, "job")] if jobs else []
    return f"{text}; {' and '.join(shapes)}; at most {hours:,.10g} GPU-hours"


def job_of(array: SubmittedArray, run: int) -> str:
    """The job id of one run: ``123_4`` in an array, else ``123`` or ``local:PID``."""
    is_element = len(array.runs) > 1 and not array.job_id.startswith("local:")
    return f"{array.job_id}_{run - array.offset}" if is_element else array.job_id


def _to_slurm(prepared: Prepared, say: Say) -> list[SubmittedArray]:
    accepted: list[SubmittedArray] = []
    for index, array in enumerate(prepared.plan.arrays):
        submission = prepared.submission
        note = functools.partial(
            journal.write, submission, array=index, runs=array.runs, offset=array.offset
        )
        note(journal.SUBMITTING, host=os.uname().nodename)
        prepared.take_back_cancellations(array.runs)
        try:
            job_id = sbatch.submit(submission.script(index))
        except sbatch.NoAnswer:
            raise
        except HpcrunError as error:
            prepared.restore_cancellations(array.runs)
            if not accepted:
                assert prepared.draft is not None
                prepared.draft.discard()
                raise
            note(journal.REFUSED, message=error.message)
            raise type(error)(
                _partly(accepted, prepared.plan.arrays[index:], error), hint=error.hint
            ) from None
        note(journal.SUBMITTED, job_id=job_id)
        accepted.append(SubmittedArray(index, array.runs, job_id, array.gpu_hours, array.offset))
        say(f"submitted job {job_id}: {_runs(array.runs)}")
    return accepted


def _to_this_machine(prepared: Prepared) -> list[SubmittedArray]:
    submission, arrays = prepared.submission, prepared.plan.arrays
    for index, array in enumerate(arrays):
        host = os.uname().nodename
        journal.write(submission, journal.SUBMITTING, index, array.runs, host=host, local=True)
        prepared.take_back_cancellations(array.runs)
    entry = local.start(submission)
    for index, array in enumerate(arrays):
        journal.write(submission, journal.SUBMITTED, index, array.runs, **entry)
    return [
        SubmittedArray(index, array.runs, entry["job_id"], array.gpu_hours)
        for index, array in enumerate(arrays)
    ]


def _numbers(paths: ExperimentPaths, new: bool) -> dict[str, int]:
    known = decide.numbers(paths)
    if not new or not known:
        return known
    # An identity that no run has keeps all the numbers given so far from being given again.
    return {"": max(known.values())}


def probe_all(runs: Sequence[RunPlan], cluster: dict[str, Any]) -> Probe:
    """Look at each Python that the runs use, once; the first one's answer."""
    answers: dict[str, Probe] = {}
    for run in runs:
        own = run.spec["environment"]
        needs = ("torch", "deepspeed") if run.entry.kind == "function" else ()
        key = repr((own["python"], own["setup"], own["variables"], needs))
        if key not in answers:
            answers[key] = probe(
                own["python"],
                setup=[*cluster["setup"], *own["setup"]],
                variables={**cluster["variables"], **own["variables"]},
                needs=needs,
            )
    return next(iter(answers.values()))


def _partly(accepted: Sequence[SubmittedArray], rest: Sequence[Array], error: HpcrunError) -> str:
    done = "; ".join(f"job {array.job_id}: {_runs(array.runs)}" for array in accepted)
    missing = "; ".join(_runs(array.runs) for array in rest)
    return f"{error.message}\nsubmitted: {done}\nnot submitted: {missing}"


def _runs(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"run {numbers[0]}"
    consecutive = list(numbers) == list(range(numbers[0], numbers[-1] + 1))
    listed = f"{numbers[0]}-{numbers[-1]}" if consecutive else ", ".join(map(str, numbers[:8]))
    return f"runs {listed}" + (", …" if not consecutive and len(numbers) > 8 else "")


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
