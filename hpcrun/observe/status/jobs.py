"""What the cluster says of the jobs of many runs: one batched query, and local processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from hpcrun.errors import ClusterUnreachable
from hpcrun.host import start_ticks
from hpcrun.observe.status.run_state import Job


@dataclass(frozen=True)
class Process:
    """A local job: which process, where, and when it began.

    Attributes
    ----------
    start_ticks
        Field 22 of ``/proc/PID/stat``; None where it was not recorded.
    """

    job_id: str
    host: str | None = None
    start_ticks: int | None = None

    @property
    def is_local(self) -> bool:
        return self.job_id.startswith("local:")


@dataclass
class Answers:
    """The cluster's answers.

    Attributes
    ----------
    jobs
        Job id -> where it stands; a job that nothing is known of is absent.
    problem
        Why Slurm's answer is missing or not whole; None when it answered in full.
    detail
        The same in Slurm's own words.
    elsewhere
        Local job id -> the host that alone can tell.
    """

    jobs: dict[str, Job] = field(default_factory=dict)
    problem: str | None = None
    detail: str | None = None
    elsewhere: dict[str, str] = field(default_factory=dict)

    def silence(self, job_id: str) -> str | None:
        """Why nothing may be concluded from the absence of a job."""
        if job_id in self.elsewhere:
            return f"it runs on {self.elsewhere[job_id]}, which cannot be asked from here"
        return None if job_id.startswith("local:") else self.problem


def ask(
    processes: Iterable[Process], about: Callable[[set[str], Answers], object] | None = None
) -> Answers:
    """Ask once for all: one ``squeue`` (and ``sacct``) whatever their number.

    Slurm is not asked when there are only local processes, and what cannot be reached is said in
    the answer, never raised.

    Parameters
    ----------
    about
        What asks Slurm about jobs; `ask_slurm` by default.
    """
    answers = Answers()
    slurm_ids: set[str] = set()
    for process in {process.job_id: process for process in processes}.values():
        if not process.is_local:
            slurm_ids.add(process.job_id)
        elif process.host not in (None, os.uname().nodename):
            answers.elsewhere[process.job_id] = str(process.host)
        else:
            answers.jobs[process.job_id] = _local(process)
    if slurm_ids:
        (about or ask_slurm)(slurm_ids, answers)
    return answers


def ask_slurm(
    job_ids: set[str],
    answers: Answers,
    *,
    settled: Collection[str] = (),
    accounting: bool = True,
    patience: float | None = None,
) -> bool:
    """Take Slurm's words on jobs into ``answers``; whether the cluster keeps accounts.

    Accounting is behind the controller, so while that does not answer only ends are taken.

    Parameters
    ----------
    settled, accounting, patience
        As `hpcrun.slurm.client.query` has them.
    """
    from hpcrun.slurm import client

    try:
        states = client.query(job_ids, settled=settled, accounting=accounting, patience=patience)
    except ClusterUnreachable as error:
        answers.problem, answers.detail = "Slurm does not answer", error.message
        return accounting
    if states.problems:
        answers.problem = answers.detail = states.problems[0]
    for job_id, state in states.items():
        if states.controller_is_down and not state.ended:
            continue
        answers.jobs[job_id] = Job(
            state=state.state,
            waiting=state.waiting,
            ended=state.ended,
            reason=state.reason,
            nodes=state.nodes,
            exit_code=state.exit_code,
            start=state.start if state.waiting else None,
        )
    return states.accounting


def _local(process: Process) -> Job:
    from hpcrun.submit.local import processes

    if process.start_ticks is None:
        pid = process.job_id.partition(":")[2]
        alive = bool(pid.isdigit() and start_ticks(int(pid)))
    else:
        entry = {"job_id": process.job_id, "host": process.host, "start_ticks": process.start_ticks}
        alive = bool(processes.alive(entry))
    return Job("RUNNING") if alive else Job("GONE", ended=True)
