"""States of the jobs of many runs: one batched query, and local processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable

from hpcrun import host, slurm_state
from hpcrun.errors import ClusterUnreachable
from hpcrun.shared_dataclass import dataclass, field
from hpcrun.slurm import queue
from hpcrun.slurm.queue import GONE, JobMark, JobState
from hpcrun.text import whole_number


@dataclass(frozen=True)
class JobRef:
    """The job of a run; for a local process, also its host and field 22 of ``/proc/PID/stat``."""

    job_id: str
    host: str | None = None
    start_ticks: int | None = None
    mark: JobMark | None = None
    """What Slurm must say of it beside its number; None of a local process."""


@dataclass
class Answers:
    """The states of jobs by job id; unknown jobs are absent."""

    jobs: dict[str, JobState] = field(default_factory=dict)
    problem: str | None = None
    detail: str | None = None
    """Why Slurm's answer is missing or incomplete, in our words and in Slurm's; else None."""
    elsewhere: dict[str, str] = field(default_factory=dict)
    """Local job id -> the only host that knows its state."""

    def state_of(self, ref: JobRef) -> JobState | None:
        """Return the state of a run's job; ``UNKNOWN`` if its number is another job's now."""
        state = self.jobs.get(ref.job_id)
        return state if state is None or ref.mark is None else ref.mark.checked(state)

    def silence(self, job_id: str) -> str | None:
        """Return why the absence of a job proves nothing; None if it does."""
        if job_id in self.elsewhere:
            return f"it runs on {self.elsewhere[job_id]}, which cannot be asked from here"
        return None if job_id.startswith("local:") else self.problem


def ask(
    refs: Iterable[JobRef], about: Callable[[set[str], Answers], object] | None = None
) -> Answers:
    """Ask about all jobs with one ``squeue`` (and ``sacct``), unless they are all local.

    What cannot be reached is recorded in the answers, never raised. ``about`` asks Slurm, by
    default `ask_slurm`.
    """
    answers = Answers()
    slurm_ids: set[str] = set()
    for ref in {ref.job_id: ref for ref in refs}.values():
        if not ref.job_id.startswith("local:"):
            slurm_ids.add(ref.job_id)
        elif ref.host not in (None, os.uname().nodename):
            answers.elsewhere[ref.job_id] = str(ref.host)
        else:
            answers.jobs[ref.job_id] = JobState(
                ref.job_id, slurm_state.RUNNING if _lives(ref) else GONE
            )
    if slurm_ids:
        (about or ask_slurm)(slurm_ids, answers)
    return answers


def ask_slurm(
    job_ids: set[str],
    answers: Answers,
    *,
    settled: Collection[str] = (),
    accounting: bool = True,
) -> bool:
    """Add Slurm's answers about jobs to ``answers``; return whether the cluster keeps accounts.

    While the controller does not answer only ends are taken, because accounting lags behind it.

    The options are those of `hpcrun.slurm.queue.query`.
    """
    try:
        states = queue.query(job_ids, settled=settled, accounting=accounting)
    except ClusterUnreachable as error:
        _silent(answers, error.message)
        return accounting
    if states.problems:
        _silent(answers, states.problems[0])
    for job_id, state in states.items():
        if state.is_over or not states.controller_is_down:
            answers.jobs[job_id] = state
    return states.accounting


def _silent(answers: Answers, message: str) -> None:
    """Record which daemon did not answer, and Slurm's own words where there are any."""
    answers.problem, _, words = message.partition(": ")
    answers.detail = words or None


def _lives(ref: JobRef) -> bool:
    pid = whole_number(ref.job_id.partition(":")[2])
    began = None if pid is None else host.start_ticks(pid)
    return began is not None and ref.start_ticks in (None, began)
