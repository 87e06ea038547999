"""A prepared submission to its executor, in as many pieces as Slurm's limits ask for.

What Slurm has no room for is halved until it fits; the rest waits here and follows as jobs end. The
journal has a line before each call of sbatch and one after it, so that this may be killed anywhere.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hpcrun import ledger, records, words
from hpcrun.cluster import journal, local, sbatch, slurm
from hpcrun.cluster.depends import Waits
from hpcrun.cluster.prepared import Prepared, SubmittedArray
from hpcrun.compile import render
from hpcrun.errors import ClusterUnreachable, HpcrunError, Interrupted, UsageError
from hpcrun.plan import Array

Say = Callable[[str], None]
# Renews the lock under which this happens; False when another submit has it by now.
Renew = Callable[[], bool]

PAUSES = (5.0, 60.0)


def send(prepared: Prepared, say: Say, renew: Renew) -> list[SubmittedArray]:
    """Give a prepared submission to its executor.

    Raises
    ------
    ClusterRefused, ClusterUnreachable
        Slurm says no, or is not there; nothing is left behind of a submission of which nothing
        was accepted.
    Interrupted
        By Ctrl-C; says what was submitted and what was not.
    UsageError
        Another submit went on in place of this one.
    """
    if prepared.plan.cluster["executor"] == "slurm":
        return _Feed(prepared, say, renew).run()
    return _to_this_machine(prepared)


class _Feed:
    """All arrays of a submission, one after another."""

    def __init__(self, prepared: Prepared, say: Say, renew: Renew) -> None:
        self._prepared, self._say, self._renew = prepared, say, renew
        self._arrays = prepared.plan.arrays
        self._accepted: list[SubmittedArray] = []
        self._unknown: tuple[int, ...] = ()
        self._dropped: set[int] = set()
        self._has_waited, self._pause = False, PAUSES[0]
        self._total = sum(len(array.runs) for array in self._arrays)

    def run(self) -> list[SubmittedArray]:
        prepared = self._prepared
        try:
            prepared.take_back_intents([run for array in self._arrays for run in array.runs])
            for index, array in enumerate(self._arrays):
                wanted = self._still_wanted(array.runs)
                for runs in self._waits().groups(array, wanted):
                    self._feed(index, array, runs)
        except sbatch.NoAnswer:
            raise
        except (HpcrunError, KeyboardInterrupt) as error:
            prepared.restore_intents(self._missing())
            if not self._accepted and not self._unknown:
                assert prepared.draft is not None
                prepared.draft.discard()
            if isinstance(error, KeyboardInterrupt):
                raise self._interrupted() from None
            if not self._accepted:
                raise
            raise type(error)(f"{error.message}\n{self._told()}", hint=error.hint) from None
        return self._accepted

    def _waits(self) -> Waits:
        return Waits(self._prepared.plan, self._prepared.experiment)

    def _feed(self, index: int, array: Array, rest: tuple[int, ...]) -> None:
        size = len(rest)
        while rest:
            runs = rest[:size]
            try:
                self._submit(index, array, runs)
            except sbatch.Full as full:
                if len(runs) > 1:
                    size = (len(runs) + 1) // 2
                    continue
                size = self._wait(f"there is no room in the queue ({full.reason})")
                rest = self._still_wanted(rest)
            except ClusterUnreachable as error:
                if not self._has_waited or isinstance(error, sbatch.NoAnswer):
                    raise
                self._wait(error.message)
            else:
                rest = rest[len(runs) :]

    def _submit(self, index: int, array: Array, runs: tuple[int, ...]) -> None:
        submission, offset = self._prepared.submission, array.offset if len(runs) > 1 else 0
        earlier = sum(one.array == index for one in self._accepted)
        part = 0 if runs == array.runs else earlier + 1
        script = submission.script(index, part)
        if part:
            records.write_bytes(script, self._text(array, runs, offset).encode())
        dependency = self._dependency(index, array, runs)

        def note(event: str, **details: Any) -> None:
            journal.write(submission, event, index, runs, offset=offset, part=part, **details)

        with _uninterrupted():
            note(journal.SUBMITTING, host=os.uname().nodename)
            self._unknown = runs
            try:
                job_id = sbatch.submit(script, dependency)
            except sbatch.NoAnswer:
                raise
            except HpcrunError as error:
                self._unknown = ()
                note(journal.REFUSED, message=error.message)
                raise
            note(journal.SUBMITTED, job_id=job_id)
            self._unknown = ()
            hours = round(array.gpu_hours * len(runs) / len(array.runs), 3)
            self._accepted.append(SubmittedArray(index, runs, job_id, hours, offset))
        self._pause = PAUSES[0]
        done = sum(len(one.runs) for one in self._accepted)
        total = done + len(self._missing())
        count = f" ({done} of {total})" if len(self._accepted) > 1 or done < total else ""
        self._say(f"submitted job {job_id}: {words.runs(runs)}{count}")

    def _text(self, array: Array, runs: Sequence[int], offset: int) -> str:
        """The script of a piece of an array."""
        plan = self._prepared.plan
        chosen = [run for run in plan.runs if run.number in set(runs)]
        paths, most = self._prepared.submission, array.parallel
        return render.script(plan.name, plan.cluster, chosen, most, paths, offset)

    def _dependency(self, index: int, array: Array, runs: tuple[int, ...]) -> str | None:
        """sbatch's option, with what the spec itself has of it; None to leave it at that."""
        ours = [self._waits().option(runs), self._turn(index, array)]
        if not any(ours):
            return None
        plan = self._prepared.plan
        resources = plan.run(array.runs[0]).spec["resources"]
        own = {**plan.cluster["sbatch"], **resources["sbatch"]}.get("dependency")
        return ",".join(filter(None, [own, *ours]))

    def _turn(self, index: int, array: Array) -> str | None:
        """On the job that has to end first, lest more runs than `max_parallel` go at once."""
        if array.parallel is None:
            return None
        before = [one for one in self._accepted if one.array in (index, array.after)]
        if not before:
            return None
        job_id = before[-1].job_id
        # One that Slurm has forgotten is no valid dependency.
        states = slurm.query([job_id]).values()
        return None if all(state.ended for state in states) else f"afterany:{job_id}"

    def _wait(self, why: str) -> int:
        """Sleep a while; how many of my jobs have left the queue in it, but at least one."""
        if not self._has_waited:
            told = f"{len(self._missing())} of {self._total} runs wait here"
            self._say(f"{why}; {told}, and are submitted as jobs end. Ctrl-C leaves them for later")
        self._has_waited = True
        before = _queued()
        until = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, PAUSES[1])
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, PAUSES[1]))
        if not self._renew():
            name = self._prepared.plan.name
            raise UsageError(
                f"another submit of {name} went on in place of this one, which was not seen to "
                "live for long"
            )
        return max(1, before - _queued())

    def _still_wanted(self, runs: tuple[int, ...]) -> tuple[int, ...]:
        """Without those that were cancelled while this waited."""
        if not self._has_waited:
            return runs
        paths = self._prepared.experiment
        wanted = tuple(run for run in runs if ledger.intent(paths.run(run)) != ledger.CANCELLED)
        self._dropped.update(set(runs) - set(wanted))
        return wanted

    def _missing(self) -> list[int]:
        gone = {run for one in self._accepted for run in one.runs} | {*self._unknown}
        runs = [run for array in self._arrays for run in array.runs]
        return sorted(set(runs) - gone - self._dropped)

    def _told(self) -> str:
        """What was submitted and what was not, in lines."""
        parts = [f"submitted: job {one.job_id}: {words.runs(one.runs)}" for one in self._accepted]
        if self._unknown:
            parts.append(f"not known whether submitted: {words.runs(self._unknown)}")
        if missing := self._missing():
            parts.append(f"not submitted: {words.runs(missing)}")
        return "\n".join(parts)

    def _interrupted(self) -> Interrupted:
        if not self._accepted and not self._unknown:
            return Interrupted("interrupted: nothing was submitted")
        return Interrupted(
            f"interrupted\n{self._told()}",
            hint="the same command submits the rest; `hpcrun cancel` ends what was submitted",
        )


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold back a Ctrl-C until the block is through; a second one is not held back."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed = False

    def press(number: int, frame: Any) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    earlier = signal.signal(signal.SIGINT, press)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, earlier)
    if pressed:
        raise KeyboardInterrupt


def _queued() -> int:
    """How many of my jobs Slurm has; 0 where it does not say."""
    try:
        return slurm.queued()
    except ClusterUnreachable:
        return 0


def _to_this_machine(prepared: Prepared) -> list[SubmittedArray]:
    submission, arrays = prepared.submission, prepared.plan.arrays
    for index, array in enumerate(arrays):
        host = os.uname().nodename
        journal.write(submission, journal.SUBMITTING, index, array.runs, host=host, local=True)
        prepared.take_back_intents(array.runs)
    entry = local.start(submission)
    for index, array in enumerate(arrays):
        journal.write(submission, journal.SUBMITTED, index, array.runs, **entry)
    return [
        SubmittedArray(index, array.runs, entry["job_id"], array.gpu_hours)
        for index, array in enumerate(arrays)
    ]
