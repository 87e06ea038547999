"""Feed a submission to its executor, in as many pieces as Slurm's limits require.

A piece that Slurm has no room for is halved until it fits; the rest waits here and follows as jobs
end. The journal has a line before and after each call of sbatch, so that this process may be killed
at any point.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from hpcrun import activity
from hpcrun.compile.target import sbatch_script
from hpcrun.errors import ClusterUnreachable, HpcrunError, Interrupted, UsageError
from hpcrun.host import interrupted_from_outside
from hpcrun.slurm import client, queue, suspect_exclusion
from hpcrun.state import files, journal, ledger
from hpcrun.state.plan import Array, RunPlan
from hpcrun.state.suspect_nodes import SuspectChoice
from hpcrun.submission import sbatch
from hpcrun.submission.dependencies import JobDependencies
from hpcrun.submission.local import executor, processes
from hpcrun.submission.submission_dir import Prepared, SubmittedArray
from hpcrun.text import Say, agreeing, plural, runs_text

# Renews the submit lock; returns False if another submit has taken it.
Renew = Callable[[], bool]

PAUSES = (5.0, 60.0)
# Seconds for an sbatch that is known to retry for minutes by itself.
IMPATIENT = 20


def send(prepared: Prepared, say: Say, renew: Renew, *, avoid: bool = True) -> list[SubmittedArray]:
    """Give a prepared submission to its executor; without ``avoid``, suspect nodes are used.

    A submission of which nothing was accepted is removed. Raise ClusterRefused or
    ClusterUnreachable as Slurm answers, Interrupted after Ctrl-C, with what was submitted and what
    was not, UsageError if another submit has taken the lock.
    """
    if prepared.plan.executor.queues:
        return _Feed(prepared, say, renew, avoid).run()
    return _to_this_machine(prepared)


class _Feed:
    """All arrays of a submission, one after another."""

    def __init__(self, prepared: Prepared, say: Say, renew: Renew, avoid: bool) -> None:
        self._prepared, self._say, self._renew = prepared, say, renew
        self._avoid = avoid
        # Array -> the suspect nodes that it leaves out.
        self._suspects: dict[int, SuspectChoice] = {}
        self._arrays = prepared.plan.arrays
        self._accepted: list[SubmittedArray] = []
        self._unknown: tuple[int, ...] = ()
        # Scripts that Slurm may have taken without an answer.
        self._lost: set[Path] = set()
        self._cancelled_before: set[int] | None = None
        self._why = ""
        # Tells since when runs wait, however often that is tried.
        self._telling = contextlib.ExitStack()
        self._pause, self._timeout = PAUSES[0], sbatch.TIMEOUT

    def run(self) -> list[SubmittedArray]:
        try:
            with interrupted_from_outside(), self._telling:
                for index, array in enumerate(self._arrays):
                    wanted = self._still_wanted(array.runs)
                    waits = self._waits()
                    for runs in [wanted] if waits is None else waits.groups(array, wanted):
                        self._feed(index, array, runs)
        except (HpcrunError, KeyboardInterrupt) as error:
            raise self._given_up(error) from None
        return self._accepted

    @property
    def _has_waited(self) -> bool:
        return bool(self._why)

    def _waits(self) -> JobDependencies | None:
        """Return the jobs that the runs have to wait for now; None if they depend on nothing."""
        plan = self._prepared.plan
        return JobDependencies(plan, self._prepared.experiment) if plan.depends_on else None

    def _feed(self, index: int, array: Array, rest: tuple[int, ...]) -> None:
        size, in_a_row = len(rest), 0
        while rest:
            runs = rest[:size]
            try:
                self._submit(index, array, runs)
            except sbatch.QueueFull as full:
                in_a_row = 0
                if full.is_retried:
                    self._timeout = IMPATIENT
                if len(runs) > 1 and not array.packed:
                    size = (len(runs) + 1) // 2
                    continue
                if not self._accepted and full.is_own and _queued() == 0:
                    # Their own limit, and no job of theirs can end.
                    raise
                freed = self._wait(f"there is no room in the queue ({full.reason})")
                rest = self._still_wanted(rest)
                size = len(rest) if freed is None else max(1, freed)
            except ClusterUnreachable as error:
                if not self._has_waited:
                    raise
                self._wait(error.message)
            else:
                rest = rest[len(runs) :]
                in_a_row += 1
                size *= 1 if in_a_row == 1 else 2

    def _submit(self, index: int, array: Array, runs: tuple[int, ...]) -> None:
        submission, offset = self._prepared.submission, array.offset if len(runs) > 1 else 0
        part = 0 if runs == array.runs else 1 + sum(one.array == index for one in self._accepted)
        script = submission.script(index, part)
        if part:
            files.write_bytes(script, self._text(array, runs, offset).encode())
        dependency = self._dependency(index, array, runs)
        first = self._prepared.plan.run(array.runs[0])
        suspects = self._left_out(index, first, script)
        exclude = suspect_exclusion.exclusion(first.resources.exclude, suspects)
        self._check_lock()

        def note(event: str, **details: Any) -> None:
            packed = {"packed": True} if array.packed else {}
            details |= {"offset": offset, "part": part, **packed}
            journal.write(submission, event, index, runs, **details)

        with _uninterrupted():
            note(journal.SUBMITTING, host=os.uname().nodename)
            self._prepared.take_back_intents(runs)
            self._unknown = runs
            try:
                job_id = self._ask(script, dependency, exclude)
            except sbatch.NoAnswer:
                raise
            except HpcrunError as error:
                self._prepared.restore_intents(runs)
                self._unknown = ()
                if isinstance(error, sbatch.QueueFull):
                    note(journal.WAITING, **_this_process())
                else:
                    note(journal.REFUSED, message=error.message)
                raise
            suspect = {"suspects": [one.told for one in suspects.out]} if suspects.out else {}
            note(journal.SUBMITTED, job_id=job_id, **suspect)
            self._unknown = ()
            gpu, cpu = (
                round(hours * len(runs) / len(array.runs), 3)
                for hours in (array.gpu_hours, array.cpu_hours)
            )
            hours = gpu, offset, cpu
            self._accepted.append(SubmittedArray(index, runs, job_id, *hours, array.packed))
        self._pause = PAUSES[0]
        done = sum(len(one.runs) for one in self._accepted)
        total = done + len(self._missing())
        count = f" ({done} of {total})" if len(self._accepted) > 1 or done < total else ""
        self._say(f"submitted job {job_id}: {runs_text(runs)}{count}")

    def _left_out(self, index: int, run: RunPlan, script: Path) -> SuspectChoice:
        """Return the suspect nodes that an array of runs like one leaves out, and say so once."""
        if not self._avoid:
            return SuspectChoice()
        if index not in self._suspects:
            cluster, root = self._prepared.plan.cluster, self._prepared.experiment.root
            before = {told for choice in self._suspects.values() for told in choice.told}
            self._suspects[index] = choice = suspect_exclusion.left_out(
                cluster, root, run.resources, run.shared_nodes, script=script
            )
            for told in choice.told:
                if told not in before:
                    self._say(f"suspect node {told}")
        return self._suspects[index]

    def _ask(self, script: Path, dependency: str | None, exclude: str | None) -> str:
        if script in self._lost:
            try:
                jobs = client.jobs_by_script().get(str(script))
            except ClusterUnreachable as error:
                raise sbatch.NoAnswer(error.message, hint=error.hint) from None
            if jobs:
                return jobs[-1]
        try:
            with activity.doing("waiting for sbatch to answer"):
                return sbatch.submit(script, dependency, exclude, timeout=self._timeout)
        except ClusterUnreachable:
            self._lost.add(script)
            raise

    def _check_lock(self) -> None:
        if not self._renew():
            name = self._prepared.plan.name
            raise UsageError(
                f"another submit of {name} went on in place of this one, which was not seen to "
                "live for long"
            )

    def _text(self, array: Array, runs: Sequence[int], offset: int) -> str:
        """Render the script of a piece of an array."""
        plan = self._prepared.plan
        wanted = set(runs)
        chosen = [run for run in plan.runs if run.number in wanted]
        paths, most = self._prepared.submission, array.parallel
        return sbatch_script.script(plan.name, plan.cluster, chosen, most, paths, offset)

    def _dependency(self, index: int, array: Array, runs: tuple[int, ...]) -> str | None:
        """Return sbatch's ``--dependency`` with the spec's own; None to leave it to the script."""
        waits = self._waits()
        turn = None if array.parallel is None else self._turn(index, array, array.parallel, runs)
        ours = [waits.option(runs) if waits else None, turn]
        if not any(ours):
            return None
        plan = self._prepared.plan
        options = plan.run(array.runs[0]).resources.sbatch
        own = {**plan.cluster["sbatch"], **options}.get("dependency")
        return ",".join(filter(None, [own, *ours]))

    def _turn(self, index: int, array: Array, most: int, runs: tuple[int, ...]) -> str | None:
        """Return the dependency by which at most ``most`` runs go at once."""
        before = [one for one in self._accepted if one.array in (index, array.after)]
        if not before:
            return None
        # A job that Slurm has forgotten is not a valid dependency.
        states = queue.query([one.job_id for one in before])
        mark = queue.JobMark(self._prepared.submission.directory)
        living = {
            key.partition("_")[0]
            for key, state in states.items()
            if not state.is_over and mark.problem(state) is None
        }
        before = [one for one in before if one.job_id in living]
        room = most - min(len(runs), most)
        ids = []
        for one in reversed(before):
            room -= min(len(one.runs), most) if one.array == index else most
            if room < 0:
                ids.append(one.job_id)
        return f"afterany:{':'.join(ids)}" if ids else None

    def _wait(self, why: str) -> int | None:
        """Sleep a while; return how many of my jobs left the queue meanwhile, None if unknown."""
        if why != self._why:
            had_waited = self._has_waited
            if not had_waited:
                # Runs that were cancelled before are not dropped.
                self._cancelled_before = self._cancelled(self._missing())
                self._note_missing(journal.WAITING, **_this_process())
            self._why = why
            if not had_waited:
                self._telling.enter_context(activity.doing(self._still_waiting))
            waiting = len(self._missing()) + len(self._unknown)
            total = sum(len(array.runs) for array in self._arrays)
            are, them = agreeing(waiting, "is", "are"), agreeing(waiting, "it", "them")
            hint = f", and {are} submitted as jobs end. Ctrl-C leaves {them}"
            waits = f"{waiting} of {plural(total, 'run')} {agreeing(waiting, 'waits', 'wait')} here"
            self._say(f"{why}; {waits}{'' if had_waited else hint}")
        before = _queued()
        until = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, PAUSES[1])
        while (left := until - time.monotonic()) > 0:
            time.sleep(left)
        self._check_lock()
        after = _queued()
        return None if before is None or after is None else before - after

    def _still_waiting(self) -> str:
        number = len(self._missing()) + len(self._unknown)
        return f"{self._why}; {plural(number, 'run')} still to submit"

    def _note_missing(self, event: str, **details: Any) -> None:
        missing = set(self._missing())
        for index, array in enumerate(self._arrays):
            runs = [run for run in array.runs if run in missing]
            if runs:
                journal.write(self._prepared.submission, event, index, runs, **details)

    def _cancelled(self, runs: Collection[int]) -> set[int]:
        paths = self._prepared.experiment
        begun = {*paths.run_numbers()} & {*runs}
        return {run for run in begun if ledger.intent(paths.run(run)) == ledger.CANCELLED}

    def _still_wanted(self, runs: tuple[int, ...]) -> tuple[int, ...]:
        """Drop the runs that were cancelled while this waited."""
        if self._cancelled_before is None:
            return runs
        dropped = self._cancelled(runs) - self._cancelled_before
        self._prepared.dropped |= dropped
        return tuple(run for run in runs if run not in dropped)

    def _missing(self) -> list[int]:
        gone = {run for one in self._accepted for run in one.runs} | {*self._unknown}
        runs = {run for array in self._arrays for run in array.runs}
        return sorted(runs - gone - self._prepared.dropped)

    def _summary(self) -> str:
        """Return lines on what was submitted and what was not."""
        parts = [f"submitted: job {one.job_id}: {runs_text(one.runs)}" for one in self._accepted]
        if self._unknown:
            parts.append(f"not known whether submitted: {runs_text(self._unknown)}")
        if missing := self._missing():
            parts.append(f"not submitted: {runs_text(missing)}")
        return "\n".join(parts)

    def _given_up(self, error: HpcrunError | KeyboardInterrupt) -> HpcrunError:
        """Return the error to raise; a submission of which nothing was accepted is removed."""
        nothing = not self._accepted and not self._unknown
        if nothing:
            assert self._prepared.draft is not None
            self._prepared.draft.discard()
        elif self._has_waited:
            self._note_missing(journal.REFUSED, message="the submit ended before its turn came")
        if isinstance(error, HpcrunError):
            told = "" if nothing else f"\n{self._summary()}"
            return type(error)(f"{error.message}{told}", hint=error.hint)
        if nothing:
            return Interrupted("interrupted: nothing was submitted")
        return Interrupted(
            f"interrupted\n{self._summary()}",
            hint="the same command submits the rest; `hpcrun cancel` ends what was submitted",
        )


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold back a Ctrl-C until the end of the block; a second one is not held back."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed = False

    def press(number: int, frame: Any) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    with contextlib.ExitStack() as stack:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if callable(earlier := signal.getsignal(number)):
                signal.signal(number, press)
                stack.callback(signal.signal, number, earlier)
        try:
            yield
        except HpcrunError:
            if pressed:
                raise KeyboardInterrupt from None
            raise
    if pressed:
        raise KeyboardInterrupt


def _this_process() -> dict[str, Any]:
    return {"pid": os.getpid(), **processes.this_process()}


def _queued() -> int | None:
    """Return how many of my jobs Slurm has; None if it does not answer."""
    try:
        return client.queued()
    except ClusterUnreachable:
        return None


def _to_this_machine(prepared: Prepared) -> list[SubmittedArray]:
    submission, arrays = prepared.submission, prepared.plan.arrays
    for index, array in enumerate(arrays):
        host = os.uname().nodename
        journal.write(submission, journal.SUBMITTING, index, array.runs, host=host, local=True)
        prepared.take_back_intents(array.runs)
    entry = executor.start(submission)
    for index, array in enumerate(arrays):
        journal.write(submission, journal.SUBMITTED, index, array.runs, **entry)
    return [
        SubmittedArray(
            index, array.runs, entry["job_id"], array.gpu_hours, cpu_hours=array.cpu_hours
        )
        for index, array in enumerate(arrays)
    ]
