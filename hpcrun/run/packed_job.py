"""The batch script's process of a job that runs share (``resources.pack``).

Each run has a step of its own, on a node with a free place: its supervisor, which starts agent and
ranks as children of the step. So Slurm gives each its processors, GPUs and memory, and what ends
one touches no other. A run of several nodes has these alone: its supervisor, on the first of them,
starts agents and ranks as steps, as in a job of its own. Where a run is over, the next begins. What
could not end is requeued with the job. The job lives as long as this process, and outlives its
other nodes: a run that loses one goes on where there is room.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType

from hpcrun.errors import EXIT_FAILED, EXIT_OK, EXIT_SAVED, BrokenFile, HpcrunError
from hpcrun.policy import causes, recovery, stop_lead_time
from hpcrun.run import pack_watch
from hpcrun.run.node import cgroup
from hpcrun.run.protocol import stop_flag
from hpcrun.run.protocol.output import say
from hpcrun.slurm import client, job, requeue_nodes, steps, suspect_exclusion
from hpcrun.slurm.allocation import Allocation
from hpcrun.slurm.clock import SlurmClock
from hpcrun.slurm.hostlist import parse_ranges, write_out
from hpcrun.slurm.parse import parse_duration
from hpcrun.slurm.queue import JobMark
from hpcrun.state import files, journal, ledger, permissions, plan_file
from hpcrun.state.layout import RunPaths, SubmissionPaths, slurm_path
from hpcrun.state.plan import Plan, RunPlan
from hpcrun.text import listed

# Seconds between two looks at what runs, and at whether they are still wanted.
_EVERY, _LOOK_EVERY = 0.1, 10.0
# So often a run is started whose supervisor does not begin, and a node tried that begins none.
_TRIES = 3
# Starts of a job in which nothing began, after which it is not requeued again.
_MOST_STARTS = 10
# Kinds of ends of which Slurm tells each step: no further run is started in this start of the job.
_JOB_ENDS = causes.TAKEN_AWAY - {causes.SIGNAL}
# Nodes that watch over the first one's loss, and seconds between two looks whether they do.
_WATCHERS, _WATCH_EVERY = 3, 30.0
# Seconds in which the steps of a supervisor that was killed end.
_STEPS_END = 10.0
# By it a supervisor has its ranks save and leave, or ends them where the run was cancelled; srun
# passes it on.
_LEAVE = signal.SIGUSR1


@dataclass
class _Seat:
    """A run's place on a node, or its nodes, and the client of its step."""

    nodes: tuple[str, ...]
    process: subprocess.Popen[bytes]
    before: int
    """The last attempt that the run had before; 0 for none."""
    is_told: bool = False
    """Its supervisor was told to have the ranks save and leave."""


@dataclass
class PackedJob:
    """The runs of one start of such a job."""

    submission: SubmissionPaths
    plan: Plan
    allocation: Allocation
    per_node: int
    """Places on each node."""
    at_once: int
    """Most runs at once."""
    waiting: list[int]
    """Runs that have not begun, in the order in which they do."""
    unfinished: set[int] = field(default_factory=set)
    """Runs that go on once the job is requeued."""
    _running: dict[int, _Seat] = field(default_factory=dict)
    _codes: dict[int, int] = field(default_factory=dict)
    _tries: Counter[int] = field(default_factory=Counter)
    _strikes: Counter[str] = field(default_factory=Counter)
    _avoided: dict[int, frozenset[str]] = field(default_factory=dict)
    _lost: set[str] = field(default_factory=set)
    _watchers: subprocess.Popen[bytes] | None = None
    _watch_at: float = 0.0
    _has_begun: bool = False
    _is_ending: bool = False
    _is_stopped: bool = False
    _look_at: float = 0.0
    _has_ended: threading.Event = field(default_factory=threading.Event)
    """A step's client has; set again for each."""
    _clock: SlurmClock = field(default_factory=SlurmClock)

    def __post_init__(self) -> None:
        self._first = self.plan.run(self.waiting[0])

    def bring_to_end(self) -> int:
        """Run everything that this start of the job can; return the job's exit code."""
        nodes = listed(self.allocation.nodes, 8)
        say(f"{job.START_MARK}{self.allocation.restart_count} of the job, on {nodes}")
        try:
            while self._running or (self.waiting and not self._is_ending):
                self._keep_watched()
                self._collect()
                self._start_those_that_can()
                self._tell_to_leave()
                self._has_ended.wait(_EVERY)
                self._has_ended.clear()
        except (HpcrunError, OSError):
            # The next start knows all that is on record.
            say(traceback.format_exc())
            self.unfinished.update(self._running)
        finally:
            self._dismiss_watchers()
        self.unfinished.update(self.waiting)
        if self.unfinished and self._requeue():
            return EXIT_SAVED
        return EXIT_FAILED if self.unfinished or any(self._codes.values()) else EXIT_OK

    def stop(self, number: int, _frame: FrameType | None = None) -> None:
        """Have the runs save and leave, and start no further one; a signal handler."""
        say(f"asked to stop ({signal.Signals(number).name})")
        self._is_ending = self._is_stopped = True

    def _start_those_that_can(self) -> None:
        held: list[int] = []
        while self.waiting and not self._is_ending and len(self._running) < self.at_once:
            number = self.waiting.pop(0)
            if not self._is_wanted(number):
                continue
            run = self.plan.run(number)
            if not self._leaves_time(run):
                self.unfinished.add(number)
                continue
            nodes = self._free_nodes(number)
            if nodes is None:
                if len(self._usable(number)) < run.nodes:
                    self.unfinished.add(number)
                    continue
                held.append(number)
                if self._free_nodes(None) is None:
                    break
                continue
            self._start(run, nodes)
        self.waiting[:0] = held

    def _is_wanted(self, number: int) -> bool:
        """Check whether a run is still this submission's to start; one that is not is over here."""
        paths = self.submission.experiment.run(number)
        newest = journal.newest_jobs(self.submission.experiment).get(number)
        if newest is None or newest.paths != self.submission or newest.ended:
            say(f"run {number} is not this job's any more")
            return False
        try:
            intent = ledger.intent(paths)
            # Its supervisor could not do without.
            ledger.read(paths)
        except BrokenFile as error:
            self._end(number, EXIT_FAILED, error.message)
            return False
        if intent is not None:
            say(f"run {number} is {intent}; not started")
            self._end(number, EXIT_OK)
            return False
        return True

    def _leaves_time(self, run: RunPlan) -> bool:
        """Check whether a run could do anything before the time limit."""
        ends = job.end_time(self.allocation.name)
        if ends is None:
            return True
        asked = run.recovery.stop_before
        limit = float(parse_duration(run.resources.time) or 0)
        lead = stop_lead_time.seconds(limit, asked=parse_duration(asked) if asked else None)
        return ends - self._clock.now() > lead + stop_lead_time.TO_START

    def _free_nodes(self, number: int | None) -> tuple[str, ...] | None:
        """Return the nodes with most free places that a run may use; None if they are too few."""
        taken = Counter(node for seat in self._running.values() for node in seat.nodes)
        usable = [node for node in self._usable(number) if taken[node] < self.per_node]
        usable.sort(key=lambda node: (self._strikes[node], taken[node]))
        chosen = usable[: self._first.nodes]
        if len(chosen) < self._first.nodes:
            return None
        return tuple(node for node in self.allocation.nodes if node in chosen)

    def _usable(self, number: int | None) -> list[str]:
        """Return the nodes on which a run can be started once there is room; None for any run."""
        avoided = frozenset() if number is None else self._avoided.get(number, frozenset())
        out = avoided | self._lost
        nodes = self.allocation.nodes
        return [one for one in nodes if self._strikes[one] < _TRIES and one not in out]

    def _start(self, run: RunPlan, nodes: tuple[str, ...]) -> None:
        paths, own = self.submission.experiment.run(run.number), run.resources
        command = [sys.executable, "-m", "hpcrun.run.supervisor", str(self.submission.directory)]
        number, name = str(run.number), steps.packed_name(run.number)
        log = slurm_path(self.submission.local_log(run.number))
        if len(nodes) > 1:
            command += ["--nodes", ",".join(nodes), "--run", number]
            argv = steps.agent_argv(nodes[:1], log, None, command, name=name)
        else:
            argv = steps.packed_argv(
                nodes[0],
                cpus=run.ranks_per_node * (own.cpus_per_task or 1),
                mem=own.mem,
                gpus=own.gpus_option,
                log=log,
                name=name,
                command=[*command, "--run", number],
                is_alone=self.per_node == 1,
            )
        say(f"run {run.number} starts on {listed(nodes, 8)}")
        before = max((one.number for one in ledger.read(paths)), default=0)
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True)
        threading.Thread(target=self._tell_of_end, args=[process], daemon=True).start()
        self._running[run.number] = _Seat(nodes, process, before)

    def _keep_watched(self) -> None:
        """Have other nodes look whether the first is lost, where the job would outlive that."""
        host, *others = self.allocation.nodes
        others = [node for node in others if node not in self._lost][:_WATCHERS]
        is_due = time.monotonic() >= self._watch_at
        if not (others and is_due and self._first.recovery.requeue):
            return
        self._watch_at = time.monotonic() + _WATCH_EVERY
        if self._watchers is not None and (code := self._watchers.poll()) is not None:
            say(f"those that watch over {host} ended with exit code {code}: they start again")
            self._dismiss_watchers()
        if self._watchers is None:
            words = ["--host", host, "--nodes", str(len(self.allocation.nodes))]
            command = [sys.executable, "-m", "hpcrun.run.pack_watch"]
            command += [str(self.submission.directory), *words]
            argv = steps.agent_argv(others, os.devnull, None, command, name=steps.WATCHERS)
            self._watchers = subprocess.Popen(argv, stdin=subprocess.PIPE, start_new_session=True)

    def _dismiss_watchers(self) -> None:
        if self._watchers is not None:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                self._watchers.communicate(pack_watch.OVER, timeout=5)
            self._watchers = None

    def _tell_of_end(self, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        self._has_ended.set()

    def _collect(self) -> None:
        for number, seat in list(self._running.items()):
            code = seat.process.poll()
            if code is not None:
                del self._running[number]
                say(f"run {number} ended on {listed(seat.nodes, 8)} with exit code {code}")
                self._note_end(number, seat, code)

    def _note_end(self, number: int, seat: _Seat, code: int) -> None:
        paths = self.submission.experiment.run(number)
        try:
            is_over = ledger.intent(paths) is not None
            attempts = ledger.read(paths)
        except BrokenFile as error:
            self._end(number, code or EXIT_FAILED, error.message)
            return
        last = attempts[-1] if attempts and attempts[-1].number > seat.before else None
        lost = self._note_lost(paths, seat, last)
        if last is not None:
            self._has_begun = True
            self._tries[number] = self._strikes[seat.nodes[0]] = 0
            if last.ended is None and len(seat.nodes) > 1:
                self._end_steps(number)
        # A killed supervisor left its attempt open, which the next one records.
        goes_on = last is not None and last.action in (None, *recovery.GOES_ON)
        # srun may end well where its node is lost.
        if is_over or (code == EXIT_OK and not lost if last is None else not goes_on):
            self._end(number, code)
        elif last is None:
            self._did_not_begin(number, seat.nodes[0], code, is_lost=lost)
        elif self._is_ending or last.kind in _JOB_ENDS:
            self._is_ending = True
            self.unfinished.add(number)
        else:
            self._avoided[number] = frozenset((last.decided or {}).get("exclude") or ())
            self.waiting.append(number)

    def _note_lost(self, paths: RunPaths, seat: _Seat, last: ledger.Attempt | None) -> bool:
        """Use nodes no more that a run has lost; return whether there are any.

        A supervisor that lived has seen which they are, else Slurm is asked about its own.
        """
        if last is not None and last.ended is not None:
            lost = [node for node in recovery.silent(last) if node in seat.nodes]
        else:
            lost = [node for node in seat.nodes[:1] if requeue_nodes.is_lost(node)]
            if last is not None:
                pack_watch.note_lost(paths, seat.nodes, lost, self.allocation.name)
        new = [node for node in lost if node not in self._lost]
        for node in new:
            say(f"node {node} is lost: it is not used any more")
        self._lost.update(new)
        if new and not self._is_ending and self.per_node > 1 and requeue_nodes.are_kept():
            say("this Slurm keeps the places of runs that end now: no further run is started")
            self._is_ending = True
        return bool(lost)

    def _end_steps(self, number: int) -> None:
        """End the steps of a run whose supervisor was killed; its agents do so, too."""
        deadline, name = time.monotonic() + _STEPS_END, steps.packed_name(number)
        while time.monotonic() < deadline:
            names = client.step_names(self.allocation.name)
            left = [step for step, one in names.items() if steps.name_alone(one, name)]
            if not left:
                return
            for step in left:
                client.signal_step(step, "KILL")
            time.sleep(_EVERY)

    def _did_not_begin(self, number: int, node: str, code: int, *, is_lost: bool) -> None:
        self._tries[number] += not is_lost
        self._strikes[node] += 1
        is_nodes_fault = self._strikes[node] == _TRIES
        if is_nodes_fault:
            say(f"node {node} starts no run: it is not used any more")
        are_left = len(self._usable(None)) >= self._first.nodes
        if self._is_ending:
            self.unfinished.add(number)
        elif self._tries[number] >= _TRIES and not (is_nodes_fault and are_left):
            log = self.submission.local_log(number).name
            self._end(number, code, f"its supervisor ended before an attempt began; see {log}")
        else:
            self.waiting.insert(0, number)

    def _end(self, number: int, code: int, message: str | None = None) -> None:
        """Record that a run is over, for this job."""
        self._codes[number] = code
        write = partial(journal.write_end, self.submission, number, code, message)
        files.patiently(write, say, "the journal")

    def _tell_to_leave(self) -> None:
        """Tell supervisors that the job is stopped, or that their run was cancelled elsewhere."""
        looks = time.monotonic() >= self._look_at
        if looks:
            self._look_at = time.monotonic() + _LOOK_EVERY
        for number, seat in self._running.items():
            if not seat.is_told and (self._is_stopped or (looks and self._is_cancelled(number))):
                seat.process.send_signal(_LEAVE)
                seat.is_told = True

    def _is_cancelled(self, number: int) -> bool:
        try:
            return ledger.intent(self.submission.experiment.run(number)) == ledger.CANCELLED
        except BrokenFile as error:
            say(error.message)
            return False

    def _requeue(self) -> bool:
        """Have the job requeued for the runs that are not finished; return whether it is."""
        first = self.plan.run(min(self.unfinished))
        told = f"{len(self.unfinished)} of its runs are not finished"
        if not first.recovery.requeue:
            for number in sorted(self.unfinished):
                self._end(number, EXIT_FAILED, "its job's time was over (recovery.requeue: false)")
            return False
        if not self._has_begun and self.allocation.restart_count >= _MOST_STARTS:
            say(f"{told}, and none begins: `hpcrun requeue` starts them again")
            return False
        out = {node for node in self.allocation.nodes if self._strikes[node] >= _TRIES}
        out |= self._lost
        for number in self.unfinished:
            out |= self._avoided.get(number, frozenset())
        say(f"the job is requeued: {told}")
        needed = len(self.allocation.nodes)
        place = self.plan.cluster, self.submission.experiment.root, first.resources, needed
        return job.requeue(
            self.allocation.name,
            suspect_exclusion.beside(sorted(out), *place),
            mark=JobMark(self.submission.directory),
            kept=first.resources.exclude,
            needed=needed,
            lost=sorted(self._lost),
            between=self._is_any_wanted,
            say=say,
        )

    def _is_any_wanted(self) -> bool:
        runs = (self.submission.experiment.run(number) for number in self.unfinished)
        return any(ledger.intent(paths) is None for paths in runs)


def main(words: Sequence[str] | None = None) -> None:
    """Entry point of ``python -m hpcrun.run.packed_job``."""
    parser = argparse.ArgumentParser(prog="hpcrun.run.packed_job")
    parser.add_argument("submission", type=Path)
    parser.add_argument("--runs", required=True, help="their numbers, as 1-3,7")
    parser.add_argument("--per-node", type=int, required=True)
    parser.add_argument("--at-once", type=int, required=True)
    given = parser.parse_args(words)
    submission = SubmissionPaths(given.submission)
    plan = plan_file.read(submission.plan)
    permissions.use_profile(plan.cluster)
    runs = list(write_out(parse_ranges(given.runs)))
    place = submission, plan, Allocation.current(), given.per_node, given.at_once, runs
    packed = PackedJob(*place)
    if plan.run(runs[0]).nodes == 1:
        os.environ[cgroup.HAS_STEP] = "1"
    for number in (*stop_flag.SIGNALS, signal.SIGINT):
        signal.signal(number, packed.stop)
    sys.exit(job.final_code(packed.bring_to_end(), say))


if __name__ == "__main__":
    main()
