"""The run that tries candidates: on this machine, in this allocation, or as a job."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hpcrun.compile import Compiled, CompiledRun
from hpcrun.control.cancel import cancel
from hpcrun.control.wait import wait
from hpcrun.errors import (
    EXIT_INTERRUPTED,
    EXIT_OK,
    ClusterUnreachable,
    HpcrunError,
    UsageError,
)
from hpcrun.host import interrupted_from_outside
from hpcrun.observe.read.selection import Finder
from hpcrun.policy import causes
from hpcrun.slurm import allocation
from hpcrun.state import journal, ledger
from hpcrun.state.layout import ExperimentPaths, RunPaths
from hpcrun.state.plan import CALLED_BY
from hpcrun.state.spec.executors import LOCAL, SLURM
from hpcrun.submission import run_actions, run_here
from hpcrun.submission.submission_dir import Prepared
from hpcrun.submission.submit import Request, run_chain, submit
from hpcrun.text import Say
from hpcrun.tools.perf.on_nodes import trial_log
from hpcrun.tools.perf.on_nodes.trial_log import TrialPlan, TrialRecord

TRIALS = "hpcrun.tools.perf.on_nodes.trial_ranks:run_trials"
# A run of trials restarts its ranks after each that failed.
_ENDS = (
    causes.RANK_CRASH,
    causes.OUT_OF_MEMORY,
    causes.NON_FINITE,
    causes.HANG,
    causes.UNKNOWN,
    causes.LOSS_SPIKE,
    causes.REPLICAS_DIFFER,
    causes.LAUNCH,
    causes.BAD_CHECKPOINT,
)
_LOOK_EVERY = 0.3
# Called with the place of a run, and a record of it that is new.
Told = Callable[[int, TrialRecord], None]


@dataclass(frozen=True)
class TrialsDone:
    """Runs of trials that are over."""

    experiment: ExperimentPaths
    numbers: tuple[int, ...]
    """Of the runs, in the order of the plans."""
    records: tuple[tuple[TrialRecord, ...], ...]
    """Of each run."""
    interrupted: bool
    completed: bool
    """All runs came to the end of their trials."""
    left: tuple[str, ...] = ()
    """Jobs that were cancelled and have not ended yet, as far as Slurm told."""


def with_trials(run: CompiledRun, plan: TrialPlan, key: str) -> CompiledRun:
    """Return a run that tries candidates in place of its training.

    Nothing is saved, notified or tracked; ranks that fail are restarted in the same allocation.
    """
    often = 2 * len(plan.candidates) + 10
    recovery = {
        **run.spec["recovery"],
        "requeue": True,
        "in_place": often,
        "max_failures": often,
        "warm_after": None,
        # Another micro batch is another candidate.
        "shrink_micro_batch": 0,
        "grow": None,
        "budgets": dict.fromkeys(_ENDS, often),
    }
    quiet = {
        "tracking": dict.fromkeys(run.spec["tracking"]) | {"tensorboard": False},
        "notify": {**run.spec["notify"], "mail": None, "command": []},
        "checkpoint": {**run.spec["checkpoint"], "every": None, "nearby_every": None},
    }
    trials = {trial_log.KEY: plan.to_data(), CALLED_BY: TRIALS}
    spec = {**run.spec, **quiet, "recovery": recovery, **trials}
    return dataclasses.replace(run, spec=spec, label=key, identity=f"{run.identity}-{key}")


def check(compiled: Compiled) -> None:
    """Raise UsageError if the spec's program cannot be tried."""
    entry = compiled.runs[0].entry
    if entry.kind != "function":
        raise UsageError(
            f"entry: found a {entry.kind}; trials are made of a function that takes a session, "
            "as it can be called again with another configuration",
            hint="entry: train.py:train, see `hpcrun help tuning`; for a script: hpcrun submit "
            "SPEC --sweep key=a,b, and compare with hpcrun results",
        )


def bring_to_end(compiled: Compiled, argv: Sequence[str], say: Say, told: Told) -> TrialsDone:
    """Run all runs of trials, each to its end; Ctrl-C cancels them and ends with what is known.

    Inside an allocation they run on its nodes, with the local executor on this machine, else each
    is a job that is waited for.
    """
    request = Request(argv, say, new=True)
    inside = allocation.around(compiled.cluster)
    if inside is None and compiled.executor.queues:
        return _as_jobs(compiled, request, told)
    if inside is not None:
        inside.check(compiled.runs)
    found: list[TrialsDone] = []

    def to_end(prepared: Prepared) -> int:
        numbers = tuple(run for array in prepared.plan.arrays for run in array.runs)
        with _followed(prepared.experiment, numbers, told):
            code, _ = run_here.bring_to_end(
                prepared,
                None if inside is None else inside.name,
                announce=lambda run: None,
                say=say,
            )
        found.append(_read_trials(prepared.experiment, numbers, code == EXIT_INTERRUPTED))
        return EXIT_OK

    run_chain([compiled], request, LOCAL if inside is None else SLURM, to_end)
    return found[0]


def _as_jobs(compiled: Compiled, request: Request, told: Told) -> TrialsDone:
    submitted = submit(compiled, request)
    experiment = ExperimentPaths(submitted.directory)
    numbers = tuple(one.run for one in submitted.runs)
    interrupted = False
    left: tuple[str, ...] = ()
    try:
        with interrupted_from_outside(), _followed(experiment, numbers, told):
            wait(experiment, numbers, say=request.say)
    except KeyboardInterrupt:
        interrupted = True
        names = [f"{experiment.name}/{number}" for number in numbers]
        cancel(Finder(experiment.root).resolve(names), request.say)
        left = _not_over(experiment, numbers, request.say)
    return dataclasses.replace(_read_trials(experiment, numbers, interrupted), left=left)


def _not_over(experiment: ExperimentPaths, numbers: tuple[int, ...], say: Say) -> tuple[str, ...]:
    """Return the jobs of cancelled runs that have not ended, after waiting a while for their ends.

    All of them where Slurm does not answer, or after another Ctrl-C.
    """
    with contextlib.suppress(ClusterUnreachable, KeyboardInterrupt):
        decisions = run_actions.settle(experiment, numbers, say)
        jobs = [one.job for one in decisions if one.action == run_actions.CANCELLING]
        return tuple(job.job_id for job in jobs if job and job.job_id)
    known = journal.newest_jobs(experiment)
    found = [known[number].job_id for number in numbers if number in known]
    return tuple(job_id for job_id in found if job_id)


def after_interrupt(left: Sequence[str]) -> str:
    """Return the jobs that Ctrl-C has left behind, in words."""
    if not left:
        return "interrupted; nothing is left running"
    are = "is" if len(left) == 1 else "are"
    jobs = ",".join(left)
    return f"interrupted; job {jobs} {are} cancelled, and not known to be over: squeue -j {jobs}"


def _read_trials(
    experiment: ExperimentPaths, numbers: tuple[int, ...], interrupted: bool
) -> TrialsDone:
    runs = [experiment.run(number) for number in numbers]
    completed = all(_is_finished(run) for run in runs)
    records = tuple(tuple(trial_log.read(run.trials)) for run in runs)
    return TrialsDone(experiment, numbers, records, interrupted, completed)


def _is_finished(run: RunPaths) -> bool:
    with contextlib.suppress(HpcrunError):
        return ledger.intent(run) == ledger.FINISHED
    return False


@contextlib.contextmanager
def _followed(experiment: ExperimentPaths, numbers: Sequence[int], told: Told) -> Iterator[None]:
    """Tell each new record during the block."""
    over = threading.Event()
    thread = threading.Thread(target=_follow, args=(experiment, numbers, told, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=10)


def _follow(
    experiment: ExperimentPaths, numbers: Sequence[int], told: Told, over: threading.Event
) -> None:
    seen = dict.fromkeys(numbers, 0)
    is_last = False
    while not is_last:
        is_last = over.wait(_LOOK_EVERY)
        for place, number in enumerate(numbers):
            path = experiment.run(number).trials
            with contextlib.suppress(OSError):
                records = trial_log.read(path)
                for record in records[seen[number] :]:
                    told(place, record)
                seen[number] = max(seen[number], len(records))
