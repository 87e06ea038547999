"""After an attempt: its end and what is done about it go into the ledger, then Slurm is asked."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcrun.errors import HpcrunError, UsageError
from hpcrun.policy import causes, recovery
from hpcrun.policy.causes import End, Evidence, JobFacts
from hpcrun.policy.recovery import Action
from hpcrun.run.job import evidence
from hpcrun.run.job.launchers import Launcher
from hpcrun.slurm import job as slurm_job
from hpcrun.slurm import requeue_nodes
from hpcrun.state import files, ledger, plan_file, session_log
from hpcrun.state.layout import SubmissionPaths
from hpcrun.state.plan import RunPlan
from hpcrun.text import Say

# Before each further try to write to a disk that is full.
_PAUSES = (0.5, 2.0, 5.0)


class AttemptEnd:
    """The ends of one run's attempts, as the supervisor of the newest sees them."""

    def __init__(
        self, submission: SubmissionPaths, run: RunPlan, launcher: Launcher, say: Say
    ) -> None:
        self._submission = submission
        self._run = run
        self._launcher = launcher
        self._paths = submission.experiment.run(run.number)
        self._say = say
        self._began = time.time()

    def conclude_earlier(self) -> Action | None:
        """Record the ends of attempts whose supervisors did not live to do so.

        Returns
        -------
        Action or None
            What follows from the last of them; None when there was nothing to record, or a person
            has submitted the run again since.

        Raises
        ------
        HpcrunError
            An earlier attempt still runs in another job.
        """
        action = None
        for attempt in ledger.read(self._paths):
            if attempt.ended is not None or not attempt.started:
                continue
            facts = self._facts_of(attempt)
            paths = self._paths.attempt(attempt.number)
            orphaned = evidence.orphaned(paths)
            found = Evidence(
                intent=None,
                finished=session_log.read(paths).finished,
                lost_nodes=tuple((orphaned or {}).get("lost_nodes") or ()),
                supervisor_lost=True,
                orphaned=orphaned is not None,
                job=facts,
            )
            end = causes.decide(found)
            action = self.record(
                attempt.number, end, concluded=True, time=facts.ends or time.time()
            )
            if attempt.submission != self._submission.number:
                action = None
            self._say(f"attempt {attempt.number} had ended without a word: {end.message}")
        return action

    def facts(self, attempt: int) -> JobFacts:
        """What Slurm says of this start of the job."""
        if not self._launcher.requeues:
            return JobFacts()
        log = self._submission.batch_log(self._launcher.job_id)
        attempts = ledger.read(self._paths)
        words = slurm_job.last_words(log, attempt, ledger.first_of_start(attempts, attempt))
        warm = any(one.warm for one in attempts if one.number == attempt)
        job = self._launcher.job_id
        return slurm_job.facts(job, self._began, words, attempt=attempt, warm=warm)

    def record(
        self,
        attempt: int,
        end: End,
        *,
        here: bool = False,
        concluded: bool = False,
        **details: Any,
    ) -> Action:
        """Put an end and what is to be done about it into the ledger.

        Parameters
        ----------
        here
            The run can be restarted in its allocation.
        concluded
            It is an earlier attempt's. That its job was cancelled then says nothing about now: a
            person has submitted the run again since; nor that it completed, where its values were
            others (`extendable`).
        """
        if end.outcome == causes.COMPLETED and not (concluded and self._is_extended(attempt)):
            self._intend(ledger.FINISHED)
        elif end.outcome == causes.CANCELLED and not concluded:
            self._intend(ledger.CANCELLED)
        came = evidence.progress(self._paths, self._paths.attempt(attempt))
        now = {"time": time.time()}
        fields = {**now, **dataclasses.asdict(end), **dataclasses.asdict(came), **details}
        self._write(ledger.ENDED, attempt, fields)
        attempts = _with_end(ledger.read(self._paths), attempt, fields)
        action = self._bearable(recovery.decide(attempts, self._run.recovery, here=here))
        self._write(
            ledger.DECIDED,
            attempt,
            {"action": action.kind, "reason": action.reason, "exclude": list(action.exclude)},
        )
        return action

    def _is_extended(self, number: int) -> bool:
        """Whether an earlier attempt was of a submission with other values."""
        earlier = next(one for one in ledger.read(self._paths) if one.number == number)
        submission = earlier.submission
        if submission == self._submission.number or not isinstance(submission, int):
            return False
        try:
            plan = plan_file.read(self._submission.experiment.submission(submission).plan)
            return plan.run(self._run.number).identity != self._run.identity
        except (OSError, ValueError, UsageError):
            return False

    def carry_out(self, action: Action, attempt: int, end: End, lost: Sequence[str]) -> bool:
        """Have the run requeued where that was decided; whether it will be started again.

        Parameters
        ----------
        end
            The attempt's. An allocation that is being taken away is of no more use.
        lost
            Nodes of the job that do not answer.
        """
        if action.kind != recovery.REQUEUE:
            return False
        if not self._launcher.requeues:
            return not (self._launcher.is_slurm and end.kind in causes.TAKEN_AWAY)

        def still_wanted() -> bool:
            if ledger.intent(self._paths) or self._paths.attempt(attempt + 1).directory.exists():
                return False
            found = Evidence(supervisor_lost=True, job=self.facts(attempt))
            if causes.decide(found).outcome != causes.CANCELLED:
                return True
            self._say("not requeued: the job has been cancelled meanwhile")
            self._intend(ledger.CANCELLED)
            return False

        return slurm_job.requeue(
            self._launcher.job_id,
            action.exclude,
            kept=self._kept,
            needed=self._run.all_nodes,
            lost=lost,
            between=still_wanted,
            say=self._say,
        )

    @property
    def _kept(self) -> str | None:
        return self._run.resources.exclude

    def _bearable(self, action: Action) -> Action:
        if not action.exclude or not self._launcher.requeues:
            return action
        nodes = requeue_nodes.without(
            self._launcher.job_id,
            action.exclude,
            self._run.all_nodes,
            kept=self._kept,
            say=self._say,
        )
        return dataclasses.replace(action, exclude=nodes)

    def _facts_of(self, attempt: ledger.Attempt) -> JobFacts:
        """What is known of the job or process of an earlier attempt."""
        job = str(attempt.job_id)
        if job.startswith("local:"):
            if _lives(attempt.started, self._run.number):
                raise HpcrunError(
                    f"attempt {attempt.number} still runs as process {attempt.started.get('pid')}",
                    hint="cancel it first: hpcrun cancel",
                )
            return JobFacts()
        if not self._launcher.is_slurm:
            return JobFacts()
        number = attempt.submission or self._submission.number
        submission = self._submission.experiment.submission(number)
        log = submission.batch_log(job)
        first = ledger.first_of_start(ledger.read(self._paths), attempt.number)
        words = slurm_job.last_words(log, attempt.number, first)
        began = attempt.began or 0.0
        number, warm = attempt.number, attempt.warm
        facts = slurm_job.facts(job, began, words, attempt=number, warm=warm, over=True)
        alive = facts.state in ("RUNNING", "SUSPENDED", "COMPLETING")
        if alive and job != self._launcher.job_id and not slurm_job.is_forgotten(job):
            raise HpcrunError(
                f"attempt {attempt.number} still runs in job {job}",
                hint=f"wait for it, or scancel {job}",
            )
        return facts

    def _write(self, event: str, attempt: int, fields: dict[str, Any]) -> None:
        """A full disk must not keep the supervisor from requeueing the run."""
        files.patiently(
            lambda: ledger.write(self._paths, event, attempt, **fields),
            self._say,
            "the ledger",
            pauses=_PAUSES,
        )

    def _intend(self, value: str) -> None:
        files.patiently(
            lambda: ledger.set_intent(self._paths, value), self._say, "the intent", pauses=_PAUSES
        )


def _with_end(
    attempts: list[ledger.Attempt], number: int, fields: dict[str, Any]
) -> list[ledger.Attempt]:
    """The ledger up to an attempt, with its end even where it could not be written."""
    upto = [attempt for attempt in attempts if attempt.number <= number]
    if not upto or upto[-1].number != number:
        upto.append(ledger.Attempt(number))
    upto[-1].ended = fields
    return upto


def _lives(started: dict[str, Any], run: int) -> bool:
    """Whether a supervisor of the local executor is still there."""
    if started.get("host") != os.uname().nodename:
        return False
    try:
        command = Path(f"/proc/{int(started['pid'])}/cmdline").read_bytes().split(b"\0")
    except (OSError, KeyError, ValueError):
        return False
    numbers = {str(run).encode(), b"--run=%d" % run}
    return b"hpcrun.run.supervisor" in command and not numbers.isdisjoint(command)
