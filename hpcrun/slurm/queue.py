"""The state of jobs: one query for all of them, one rule of what is over."""

from __future__ import annotations

import contextvars
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from hpcrun import slurm_state
from hpcrun.errors import ClusterUnreachable
from hpcrun.shared_dataclass import dataclass, replace
from hpcrun.shared_look import CLOCKS, SEEN_WITHIN
from hpcrun.slurm import client
from hpcrun.slurm.background import BackgroundCall
from hpcrun.slurm.hostlist import expand_job_id
from hpcrun.slurm.parse import parse_rows, parse_size, parse_text, parse_time
from hpcrun.state import permissions
from hpcrun.state.layout import is_slurm_id
from hpcrun.text import whole_number

# The last field is `Start`, and after blanks what `_LAST` names.
_SQUEUE = "%i|%T|%r|%N|%S %e %V %U %Z"
_FIELDS = ("JobID", "State", "Reason", "NodeList", "Start")
_LAST = ("End", "Submit", "UID", "WorkDir")
# The last field of a row is `End`, and after bars the rest of `_LAST`.
_ROW = (*_FIELDS, "ExitCode", "End")
_SACCT = (*_FIELDS, "ExitCode", *_LAST)
_SIZES = ("JobID", "MaxRSS", "JobName", "UID", "WorkDir")
# Steps of every job of ours in which no rank is: the supervisor's, agents', those looked in by.
_NO_RANKS = ("batch", "extern", "hpcrun-agent", "hpcrun-beside")

UNKNOWN = "UNKNOWN"
# The state of a local process that has ended.
GONE = "GONE"

_NO_ACCOUNTING = re.compile(r"accounting storage is disabled", re.IGNORECASE)
_NO_SUCH_JOB = re.compile(r"invalid job id", re.IGNORECASE)
_NO_REASON = ("", "None")
# Seconds without an answer of squeue's after which sacct is asked beside it.
_ALONE = 0.7


@dataclass(frozen=True)
class JobState:
    """The state of a job, of one element of an array, or of a local process."""

    job_id: str
    """``123``, ``123_4`` or ``local:PID``."""
    state: str
    """Slurm's word without additions, such as ``RUNNING`` or ``CANCELLED``; ``UNKNOWN`` when
    accounting never heard of the end of a job that the controller has forgotten. A local process is
    ``RUNNING`` or ``GONE``."""
    reason: str = ""
    """Slurm's reason why it waits or ended; empty if it gives none."""
    nodes: str = ""
    """The node list in Slurm's notation; empty before it starts."""
    start: float | None = None
    """The expected start of a waiting job, in seconds since the epoch; None if unknown."""
    exit_code: int | None = None
    """The exit code of the batch script, which accounting alone knows; None if unknown."""
    ended: float | None = None
    """Time of the end of a job that is over, since the epoch, by Slurm's clock; None if unknown."""
    known_at: float | None = None
    """The time of this answer, in seconds since the epoch, if Slurm does not answer now; None if it
    is fresh."""
    submitted: float | None = None
    """When it was submitted or requeued, since the epoch; None if Slurm does not tell."""
    user: int | None = None
    """Whose job it is; None if Slurm does not tell."""
    directory: str = ""
    """Its working directory; empty if Slurm does not tell."""

    @property
    def is_over(self) -> bool:
        """True if it is known to have ended (until somebody requeues it)."""
        return self.state == GONE or self.state in slurm_state.TERMINAL

    @property
    def has_just_completed(self) -> bool:
        """Check whether what its run recorded may not be seen on this host yet.

        A job whose script ended with 0 has recorded its run's end. Where this host has looked for a
        name before it was there, shared storage may go on saying that it is not.
        """
        known = self.state == slurm_state.COMPLETED and self.ended is not None
        return known and time.time() - float(self.ended or 0.0) < SEEN_WITHIN

    @property
    def is_waiting(self) -> bool:
        """True if it waits in the queue."""
        return self.state in slurm_state.WAITING

    @property
    def is_alive(self) -> bool:
        """True if it waits or runs."""
        return not self.is_over and self.state != UNKNOWN


@dataclass(frozen=True)
class JobMark:
    """What Slurm must say of a job beside its number for it to be the one that was submitted.

    Numbers are given anew after a reset of Slurm's state, to anybody's jobs.
    """

    directory: Path
    """The submission's directory: whoever owns it submitted the job."""
    began: float | None = None
    """When it was there, in seconds since the epoch, if it may be an allocation in which
    `hpcrun run` was used. The working directory of any other is the submission's directory."""

    def problem(self, state: JobState) -> str | None:
        """Return whose job the number is now, if it is another one; None if it is this one."""
        # Of a job that ended before it could start, accounts may tell no directory, and root.
        if not state.directory:
            return None
        if state.user not in (None, 0, os.geteuid(), permissions.owner(self.directory)):
            return _given_away(state)
        if Path(state.directory).parts[-3:] == self.directory.parts[-3:]:
            return None
        if self.began is None or state.submitted is None:
            return _given_away(state)
        return None if state.submitted <= self.began + CLOCKS else _given_away(state)

    def checked(self, state: JobState) -> JobState:
        """Return the state of the job; ``UNKNOWN`` if Slurm has given its number to another."""
        problem = self.problem(state)
        return state if problem is None else JobState(state.job_id, UNKNOWN, reason=problem)


def _given_away(state: JobState) -> str:
    whose = "" if state.user is None else f" of {permissions.user_name(state.user)}"
    where = f" in {state.directory}" if state.directory else ""
    return (
        f"Slurm has forgotten its job and given the number {state.job_id} to another{whose}{where}"
    )


class JobStates(dict[str, JobState]):
    """The states of jobs by their ids; a job that nothing is known of is absent."""

    problems: tuple[str, ...] = ()
    """Reasons why the answer is incomplete, such as a slurmdbd that does not answer: the absence of
    a job then proves nothing."""
    controller_is_down: bool = False
    """slurmctld, which alone knows what is alive, did not answer."""
    accounting: bool = True
    """The cluster keeps accounts, as far as is known."""


def query(
    job_ids: Iterable[str],
    *,
    settled: Collection[str] = (),
    accounting: bool = True,
) -> JobStates:
    """Ask for the states of jobs, with at most one ``squeue`` and one ``sacct``.

    Where squeue does not answer at once, both are asked side by side. Raises ClusterUnreachable if
    neither slurmctld nor slurmdbd answers. ``123`` may be a whole array: its elements are returned;
    what is no job's id is ignored. ``settled`` jobs are known to have ended: accounting is not
    asked about them, nor about any without ``accounting``.
    """
    wanted = {job_id for job_id in job_ids if is_slurm_id(job_id)}
    answer = JobStates()
    if not wanted:
        return answer
    answer.accounting = accounting
    found: dict[str, JobState] = {}
    squeue = _begin(_ask_squeue, wanted)
    maybe = wanted.difference(settled)
    sacct = None if squeue.wait(_ALONE) or not maybe else _begin(_ask_sacct, maybe)
    try:
        found = squeue.result()
    except client.CommandFailed as error:
        answer.controller_is_down = True
        answer.problems = (_problem("slurmctld", error),)
    unsettled = _unsettled(maybe, found)
    if unsettled and (accounting or answer.controller_is_down):
        try:
            past = _ask_sacct(unsettled) if sacct is None else sacct.result()
        except client.CommandFailed as error:
            if answer.controller_is_down:
                raise ClusterUnreachable(
                    _both(answer.problems[0], error),
                    hint="repeat the same command when the cluster is back",
                ) from None
            answer.accounting = not _NO_ACCOUNTING.search(str(error))
            if answer.accounting:
                answer.problems = (_problem("slurmdbd", error),)
        else:
            found = merge(found, past, controller_answered=not answer.controller_is_down)
    answer.update(
        (key, state)
        for key, state in found.items()
        if key in wanted or key.partition("_")[0] in wanted
    )
    return answer


def current(job: str) -> JobState | None:
    """Ask slurmctld alone about one job, once; None if it knows none. Raises CommandFailed."""
    return _ask_squeue({job}, partial(client.command, timeout=20.0)).get(job)


class LargestTask(NamedTuple):
    """The task of a job's that was seen to hold most memory."""

    size: int
    """sacct's MaxRSS, in bytes: of one task, not of its node."""
    step: str
    """``123.0`` or ``123_4.batch``."""


def largest_tasks(marks: Mapping[str, JobMark]) -> dict[str, LargestTask]:
    """Ask accounting once for the largest task of jobs' ranks, in all of their starts.

    A job is absent whose number is another's by its mark, was never sampled, or left no account.
    Of a heterogeneous job its first part counts. Raises CommandFailed.
    """
    jobs = ",".join(sorted(filter(is_slurm_id, marks)))
    if not jobs:
        return {}
    argv = ["sacct", "--noheader", "--parsable2", "--duplicates", f"--jobs={jobs}"]
    found: dict[str, LargestTask] = {}
    is_mine = False
    for row in parse_rows(client.ask([*argv, f"--format={','.join(_SIZES)}"]), _SIZES):
        full, dot, _ = row["JobID"].partition(".")
        job = full.partition("+")[0]
        if not dot:
            where, user = parse_text(row["WorkDir"]), whole_number(row["UID"])
            state = JobState(job, UNKNOWN, user=user, directory=where)
            is_mine = bool(where) and job in marks and marks[job].problem(state) is None
        size = 0 if row["JobName"] in _NO_RANKS else parse_size(row["MaxRSS"])
        if is_mine and not client.FURTHER_PART.search(full) and size > found.get(job, (0,))[0]:
            found[job] = LargestTask(size, row["JobID"])
    return found


def _begin(
    ask: Callable[[set[str]], dict[str, JobState]], job_ids: set[str]
) -> BackgroundCall[dict[str, JobState]]:
    """Begin a question in a thread, which waits no longer than this command may."""
    return BackgroundCall(partial(contextvars.copy_context().run, ask, job_ids))


def _problem(daemon: str, error: client.CommandFailed) -> str:
    if isinstance(error, client.CommandTimedOut):
        return f"{daemon} has not answered for {round(error.seconds, 1):g} s"
    return f"{daemon} does not answer: {error}"


def _both(controller: str, error: client.CommandFailed) -> str:
    if isinstance(error, client.CommandTimedOut) and ":" not in controller:
        return controller.replace("slurmctld has", "slurmctld and slurmdbd have")
    return f"Slurm does not answer: {controller}; sacct: {error}"


def _ask_squeue(
    wanted: set[str], ask: Callable[[Sequence[str]], str] = client.ask
) -> dict[str, JobState]:
    argv = ["squeue", "--noheader", "--states=all", _jobs(wanted), f"--format={_SQUEUE}"]
    try:
        return parse_squeue(ask(argv))
    except client.CommandFailed as error:
        if _NO_SUCH_JOB.search(str(error)):
            return {}
        raise


def _ask_sacct(wanted: set[str]) -> dict[str, JobState]:
    argv = ["sacct", "--noheader", "--parsable2", "--allocations", _jobs(wanted)]
    return parse_sacct(client.ask([*argv, f"--format={','.join(_SACCT)}"]))


def _jobs(wanted: set[str]) -> str:
    jobs = sorted({job_id.partition("_")[0] for job_id in wanted}, key=int)
    return f"--jobs={','.join(jobs)}"


def _unsettled(job_ids: set[str], found: dict[str, JobState]) -> set[str]:
    """Return the jobs of which squeue does not say enough: it has none, or one that has ended."""
    ended = {key for key, state in found.items() if state.is_over}
    there, over = ({*keys, *(key.partition("_")[0] for key in keys)} for keys in (found, ended))
    return (job_ids - there) | (job_ids & over)


def parse_squeue(text: str) -> dict[str, JobState]:
    """Read what ``squeue --noheader --format=…`` printed."""
    return _states(parse_rows(text, _FIELDS), " ")


def parse_sacct(text: str) -> dict[str, JobState]:
    """Read what ``sacct --noheader --parsable2 --allocations --format=…`` printed.

    Of several records of one id (a requeued job) the last counts.
    """
    return _states(parse_rows(text, _ROW), "|")


def _states(rows: Iterable[dict[str, str]], separator: str) -> dict[str, JobState]:
    """Read the rows of either command; one row stands for all waiting elements of an array."""
    states: dict[str, JobState] = {}
    waits_for: dict[str, str] = {}
    for row in rows:
        # `CANCELLED by 1000`; `CANCELLED+` is what a narrow column makes of it.
        state = row["State"].strip().partition(" ")[0].rstrip("+").upper()
        # The code and the signal, ``0:9``.
        code = row.get("ExitCode", "").partition(":")[0]
        start, _, rest = row["Start"].strip().partition(" ")
        told = row.get("End", rest).strip().split(separator, len(_LAST) - 1)
        end, submitted, user, directory = (*told, *[""] * (len(_LAST) - len(told)))
        job = JobState(
            "",
            state or UNKNOWN,
            reason=parse_text(row["Reason"]),
            nodes=parse_text(row["NodeList"]),
            start=parse_time(start) if state in slurm_state.WAITING else None,
            exit_code=whole_number(code),
            ended=parse_time(end) if state in slurm_state.TERMINAL else None,
            submitted=parse_time(submitted),
            user=whole_number(user),
            directory=parse_text(directory),
        )
        full = row["JobID"].strip()
        if client.FURTHER_PART.search(full) and job.is_waiting and job.reason not in _NO_REASON:
            waits_for[full.partition("+")[0]] = job.reason
        for job_id in expand_job_id(full):
            states[job_id] = replace(job, job_id=job_id)
    # All parts of a heterogeneous job wait for the one that has a reason.
    for job_id, reason in waits_for.items():
        first = states.get(job_id)
        if first is not None and first.is_waiting and first.reason in _NO_REASON:
            states[job_id] = replace(first, reason=reason)
    return states


def merge(
    queue: dict[str, JobState], past: dict[str, JobState], *, controller_answered: bool
) -> dict[str, JobState]:
    """Merge the controller's answer and accounting's.

    The controller is right about what lives; accounting adds how a job ended. A job that only
    accounting believes to be alive, while the controller has answered without it, is ``UNKNOWN``.
    """
    merged = dict(queue)
    for job_id, state in past.items():
        current = queue.get(job_id)
        if current is None:
            if controller_answered and not state.is_over:
                reason = f"accounting says {state.state}, the controller has forgotten the job"
                state = replace(state, state=UNKNOWN, reason=reason, start=None)
            merged[job_id] = state
        elif current.is_over and state.is_over:
            merged[job_id] = state
    return merged
