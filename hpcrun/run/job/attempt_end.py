"""After an attempt: records its end and the decision, and has it requeued."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hpcrun import slurm_state
from hpcrun.errors import HpcrunError, UsageError
from hpcrun.policy import causes, faults, next_attempt, recovery
from hpcrun.policy.batch import Triple
from hpcrun.policy.causes import End, Evidence, JobFacts
from hpcrun.policy.recovery import Action
from hpcrun.run.job import evidence
from hpcrun.run.job.launchers import Launcher
from hpcrun.run.node import cgroup
from hpcrun.run.protocol.output import say
from hpcrun.slurm import client, requeue_nodes, steps, suspect_exclusion
from hpcrun.slurm import job as slurm_job
from hpcrun.slurm.queue import JobMark
from hpcrun.state import files, job_changes, journal, ledger, plan_file
from hpcrun.state.layout import SubmissionPaths
from hpcrun.state.plan import RunPlan
from hpcrun.state.suspect_nodes import SuspectNodes
from hpcrun.text import one_line

# The part of an array's script that is one run's alone, less its number.
_ALONE = 1_000_000
# Seconds before each further try to write to a full disk.
_PAUSES = (0.5, 2.0, 5.0)


class AttemptEnd:
    """The ends of one run's attempts, as the supervisor of the newest sees them."""

    def __init__(
        self,
        submission: SubmissionPaths,
        run: RunPlan,
        launcher: Launcher,
        cluster: Mapping[str, Any],
    ) -> None:
        self._submission, self._cluster = submission, cluster
        self._run = run
        self._launcher = launcher
        self._paths = submission.experiment.run(run.number)
        self._began = time.time()
        self._kills = cgroup.kills_for_memory()

    def conclude_earlier(self, *, here: bool = False) -> Action | None:
        """Record the ends of attempts whose supervisors did not live to do so.

        ``here`` is that of `record`.
        Returns the decision about the last of them; None if there was nothing to record, or a
        person has submitted the run again since. Raises HpcrunError if an earlier attempt still
        runs in another job.
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
                finished=evidence.session(paths).finished,
                lost_nodes=tuple((orphaned or {}).get("lost_nodes") or ()),
                supervisor_lost=True,
                orphaned=orphaned is not None,
                job=facts,
            )
            end = causes.decide(found)
            # Slurm's clock may be behind that of the attempt's node.
            ended = max(facts.ends or time.time(), attempt.began or 0.0)
            action = self.record(attempt.number, end, here=here, concluded=True, time=ended)
            if attempt.submission != self._submission.number:
                action = None
            say(f"attempt {attempt.number} had ended without a word: {end.message}")
        return action

    def facts(self, attempt: int) -> JobFacts:
        """Return Slurm's facts about this start of the job."""
        if not self._launcher.requeues:
            return JobFacts()
        found = self._ask_slurm(self._launcher.job_id, self._submission, attempt, self._began)
        if not self._launcher.is_packed:
            return found
        # Slurm tells of it once the step is over, which has this process.
        is_out = found.out_of_memory or cgroup.kills_for_memory() > self._kills
        asked = self._run.resources.mem
        memory = f"the run asked for {asked}" if asked else ""
        return dataclasses.replace(found, out_of_memory=is_out, memory=memory)

    def record(
        self, attempt: int, end: End, *, here: bool = False, concluded: bool = False, **details: Any
    ) -> Action:
        """Write an end and the decision about it to the ledger, and return the decision.

        With ``here``, the run can be restarted in its allocation. With ``concluded``, the end is an
        earlier attempt's: a cancelled job then does not cancel the run, because a person has
        submitted it again since; nor does an attempt with other values (`extendable`) finish it.
        """
        if end.outcome == causes.COMPLETED and not (concluded and self._is_extended(attempt)):
            self._intend(ledger.FINISHED)
        elif end.outcome == causes.PRUNED:
            self._intend(ledger.PRUNED)
        elif end.outcome == causes.CANCELLED and not concluded:
            self._intend(ledger.CANCELLED)
        came = evidence.progress(self._paths, self._paths.attempt(attempt))
        known = {**dataclasses.asdict(end), **dataclasses.asdict(came)}
        known["bad_step"] = evidence.session(self._paths.attempt(attempt)).bad_step
        for name in ("doubt", "unit", "bad_step"):
            if known[name] is None:
                del known[name]
        fields = {"time": time.time(), **known, **details}
        self._write(ledger.ENDED, attempt, fields)
        self._kills = cgroup.kills_for_memory()
        attempts = [one for one in ledger.read(self._paths) if one.number <= attempt]
        if not attempts or attempts[-1].number != attempt:
            attempts.append(ledger.Attempt(attempt))
        # Even where it could not be written.
        attempts[-1].ended = fields
        if not concluded:
            self._record_suspects(attempts[-1])
        planned, growth = Triple.of_config(self._run.deepspeed), self._growth(attempts)
        policy = self._run.recovery
        action = recovery.decide(attempts, policy, here=here, planned=planned, growth=growth)
        action = self._bearable(attempts, action)
        why, exclude = action.reason, list(action.exclude)
        decided: dict[str, Any] = {"action": action.kind, "reason": why, "exclude": exclude}
        decided |= {"left_out": list(action.left_out)} if action.left_out else {}
        decided |= {"grow": dict(action.grow)} if action.grow else {}
        self._write(ledger.DECIDED, attempt, decided)
        return action

    def _growth(self, attempts: Sequence[ledger.Attempt]) -> dict[str, str] | None:
        """Return what a next start asks for in place of what was too little; None of nothing."""
        key = causes.too_little(attempts[-1].cause)
        asked: Mapping[str, Any] = self._run.spec["recovery"].get("grow") or {}
        factor = asked.get(key) if key else None
        if key is None or factor is None or not self._launcher.requeues or self._launcher.is_packed:
            return None
        most = (asked.get("most") or {}).get(key)
        found = slurm_job.growth(self._launcher.job_id, key, factor, most)
        mine = self._submission.number
        before = [(one["key"], one["was"]) for one in next_attempt.growths(attempts, mine)]
        if (key, found.get("was")) in before:
            told = f"more was asked for before, and Slurm gave {found['was']} again"
            return {"key": key, "problem": told}
        return found

    def _record_suspects(self, attempt: ledger.Attempt) -> None:
        """Write the nodes whose hardware ended an attempt to the user's record. Best effort.

        One that fell silent is suspect if Slurm has lost it too, or once that was seen again.
        """
        if not self._launcher.is_slurm or self._run.spec.get(faults.KEY):
            return
        record, kind = SuspectNodes(self._submission.experiment.root), str(attempt.kind)
        try:
            for node, why in recovery.broken(attempt).items():
                record.record(node, str(why), kind)
            for node in recovery.silent(attempt):
                is_lost = requeue_nodes.is_lost(node)
                record.record(node, "it did not answer any more", kind, certain=is_lost)
        except HpcrunError as error:
            say(str(error))

    def _is_extended(self, number: int) -> bool:
        """Check whether an earlier attempt was of a submission with other values."""
        attempts = ledger.read(self._paths)
        submission = next(one.submission for one in attempts if one.number == number)
        if submission == self._submission.number or not isinstance(submission, int):
            return False
        try:
            plan = plan_file.read(self._submission.experiment.submission(submission).plan)
            return plan.run(self._run.number).identity != self._run.identity
        except (OSError, ValueError, UsageError):
            return False

    def carry_out(self, action: Action, attempt: int, end: End, lost: Sequence[str]) -> bool:
        """Have the run requeued where that was decided; return whether it will be started again.

        ``lost`` are nodes of the job that do not answer.
        """
        if action.kind != recovery.REQUEUE:
            return False
        if not self._launcher.requeues:
            # An allocation that is being taken away cannot be used again.
            return not (self._launcher.is_slurm and end.kind in causes.TAKEN_AWAY)
        if self._launcher.is_packed:
            return True

        def still_wanted() -> bool:
            if ledger.intent(self._paths) or self._paths.attempt(attempt).has_successor:
                return False
            found = Evidence(supervisor_lost=True, job=self.facts(attempt))
            if causes.decide(found).outcome != causes.CANCELLED:
                return True
            say("not requeued: the job has been cancelled meanwhile")
            self._intend(ledger.CANCELLED)
            return False

        accepted = slurm_job.requeue(
            self._launcher.job_id,
            action.exclude,
            mark=JobMark(self._submission.directory),
            kept=self._run.resources.exclude,
            needed=self._run.shared_nodes,
            lost=lost,
            between=still_wanted,
            say=say,
        )
        if accepted and action.grows:
            self._enlarge(action)
        return accepted

    def _enlarge(self, action: Action) -> None:
        """Have the requeued job ask for more; where Slurm does not change it, submit it anew.

        That job takes the place of the requeued one, which is cancelled.
        """
        more = dict(action.grow or {})
        job, told = self._launcher.job_id, f"{more['key']} {more['now']}"
        problem = slurm_job.enlarge(job, more)
        if problem is None:
            say(f"job {job} asks for {told} now")
            return
        say(f"Slurm does not change job {job} ({one_line(problem)}): a new one asks for {told}")
        newest = journal.newest_jobs(self._submission.experiment).get(self._run.number)
        if newest is None or newest.paths != self._submission or newest.job_id != job:
            say(f"not submitted anew: job {job} is not the newest of the run's")
            return
        try:
            new = self._submit_alone(newest, action.exclude)
        except (client.CommandFailed, HpcrunError, OSError) as error:
            say(f"not submitted anew, job {job} asks for what it did: {one_line(str(error))}")
            return
        say(f"submitted job {new} in place of job {job}")
        with contextlib.suppress(HpcrunError):
            client.cancel([job])

    def _submit_alone(self, newest: journal.Job, exclude: Sequence[str]) -> str:
        """Submit this run as a job of its own, which asks for what has grown; return its id."""
        number, paths = self._run.number, self._submission
        array, part = newest.record.get("array") or 0, _ALONE + number
        text = re.sub(r"^#SBATCH --array=.*\n", "", newest.script.read_text(), flags=re.MULTILINE)
        text = re.sub(r'--run "\$.*"$', f"--run {number}", text, flags=re.MULTILINE)
        files.write_bytes(paths.script(array, part), text.encode())
        output, kept = paths.batch_log_pattern(array=False), self._run.resources.exclude
        changes = newest.changes
        so_far = next_attempt.growths(ledger.read(self._paths), paths.number, changes)
        asked = {job_changes.KEYS[name].field: one.value for name, one in changes.items()}
        asked |= {grow["field"]: grow["now"] for grow in so_far}
        out = [*([kept] if kept else []), *exclude] if exclude else []
        new = slurm_job.submit_enlarged(paths.script(array, part), asked, output, out)
        journal.write(paths, journal.SUBMITTED, array, [number], part=part, job_id=new)
        return new

    def _bearable(self, attempts: Sequence[ledger.Attempt], action: Action) -> Action:
        if not action.exclude or not self._launcher.requeues:
            return action
        job, needed = self._launcher.job_id, self._run.shared_nodes
        kept = self._run.resources.exclude
        place = self._cluster, self._submission.experiment.root
        out = suspect_exclusion.beside(action.exclude, *place, self._run.resources, needed)
        nodes = requeue_nodes.without(job, out, needed, kept=kept, say=say)
        return recovery.excluding(attempts, action, nodes)

    def _facts_of(self, attempt: ledger.Attempt) -> JobFacts:
        """Return what is known of the job or process of an earlier attempt."""
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
        number, began = attempt.submission or self._submission.number, attempt.began or 0.0
        submission = self._submission.experiment.submission(number)
        facts = self._ask_slurm(job, submission, attempt.number, began, over=True)
        mark = JobMark(submission.directory, began)
        alive = facts.state in slurm_state.HOLDS_NODES
        if alive and job != self._launcher.job_id and not slurm_job.is_forgotten(job, mark):
            raise HpcrunError(
                f"attempt {attempt.number} still runs in job {job}",
                hint=f"wait for it, or scancel {job}",
            )
        return facts

    def _ask_slurm(
        self, job: str, submission: SubmissionPaths, number: int, began: float, over: bool = False
    ) -> JobFacts:
        attempts, log, step = ledger.read(self._paths), submission.batch_log(job), None
        mine = next((one for one in attempts if one.number == number), ledger.Attempt(number))
        restarts = mine.started.get("restart_count")
        if self._launcher.is_packed:
            step = steps.packed_name(self._run.number)
            words = slurm_job.last_words(log, restarts or 0, mark=slurm_job.START_MARK)
        else:
            first = ledger.first_of_start(attempts, number)
            words = slurm_job.last_words(log, number, first)
        which: Any = {"attempt": number, "warm": mine.warm, "restarts": restarts}
        return slurm_job.facts(job, began, words, **which, over=over, step=step)

    def _write(self, event: str, attempt: int, fields: dict[str, Any]) -> None:
        """Write to the ledger. Best effort: a full disk must not prevent the requeue."""
        write = partial(ledger.write, self._paths, event, attempt, **fields)
        files.patiently(write, say, "the ledger", pauses=_PAUSES)

    def _intend(self, value: str) -> None:
        write = partial(ledger.set_intent, self._paths, value)
        files.patiently(write, say, "the intent", pauses=_PAUSES)


def _lives(started: dict[str, Any], run: int) -> bool:
    """Check whether a supervisor of the local executor still runs."""
    if started.get("host") != os.uname().nodename:
        return False
    try:
        command = Path(f"/proc/{int(started['pid'])}/cmdline").read_bytes().split(b"\0")
    except (OSError, KeyError, ValueError):
        return False
    numbers = {str(run).encode(), b"--run=%d" % run}
    return b"hpcrun.run.supervisor" in command and not numbers.isdisjoint(command)
