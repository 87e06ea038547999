"""The local executor: run a submission on this machine, under supervisors.

``python -m hpcrun.submission.local.executor SUBMISSION`` is started detached from the terminal. It
starts one supervisor a run, as many at once as the plan's ``max_parallel`` (one by default).
Standard library only, because it runs from the frozen ``hpcrun.zip``.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from hpcrun.errors import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_SAVED,
    EXIT_USAGE,
    HpcrunError,
)
from hpcrun.host import start_logged, start_ticks
from hpcrun.policy import recovery
from hpcrun.state import files, journal, ledger, plan_file
from hpcrun.state.layout import SubmissionPaths
from hpcrun.state.plan import Plan, RunPlan
from hpcrun.state.spec.blocks import early
from hpcrun.submission import dependencies
from hpcrun.submission.local import processes
from hpcrun.submission.local.processes import LocalProcess
from hpcrun.text import Say, entry

# Seconds that supervisors have to record the end of their runs.
GRACE = 30.0
# Seconds between checks of dependencies.
LOOK_EVERY = 0.5
_SUPERVISOR_GRACE = 20.0
# So many times Ctrl-C or another signal, and supervisors are killed.
_KILLS = 3

_PR_SET_PDEATHSIG = 1


def start(submission: SubmissionPaths) -> dict[str, Any]:
    """Start a submission's runs in the background.

    Returns ``job_id`` (``local:PID``), ``host`` and ``start_ticks``, for the journal; raises
    HpcrunError if the process ended at once.
    """
    log = submission.local_log()
    process = start_logged(
        [sys.executable, "-m", "hpcrun.submission.local.executor", str(submission.directory)],
        log,
        # `python -m` looks for modules in the current directory before all others.
        cwd=submission.directory,
        env={**processes.clean_environment(), **_base_environment(submission)},
    )
    started = start_ticks(process.pid)
    pid = process.pid
    # Detached: suppress the warning that nobody waits for it.
    process.returncode = 0
    if started is None:
        raise HpcrunError(f"the local executor ended at once; see {log}")
    return {"job_id": f"local:{pid}", "host": os.uname().nodename, "start_ticks": started}


def cancel(submission: SubmissionPaths, runs: Collection[int] | None = None) -> None:
    """End processes of all runs, or of some: TERM, then KILL for what is left after a grace period.

    The intent of the runs has to be on disk before; a run that waits for its turn reads it then.
    The end of such a run is recorded at once, so that it can be submitted again.
    """
    found = list(processes.of_submission(submission.directory, runs))
    leaders = [process for process in found if process.run is None] or _supervisors(found)
    for process in leaders:
        process.signal(signal.SIGTERM)
    processes.wait_all(found, GRACE)
    processes.kill_all(submission.directory, runs)
    if runs is not None:
        begun = {process.run for process in found}
        _wait_for_record(submission, begun)
        jobs = journal.jobs(submission)
        for run in runs:
            if run not in begun and run in jobs and not jobs[run].ended:
                journal.write_end(submission, run, EXIT_INTERRUPTED)


def _wait_for_record(submission: SubmissionPaths, runs: Collection[int | None]) -> None:
    """Wait until the executor, which goes on with other runs, has recorded the end of these."""
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline:
        jobs = journal.jobs(submission)
        executor = [one for one in processes.of_submission(submission.directory) if one.run is None]
        if not executor or all(jobs[run].ended for run in runs if run in jobs):
            return
        time.sleep(0.05)


@dataclass
class Runner:
    """Starts supervisors, a bounded number at once, and leaves no process behind."""

    submission: SubmissionPaths
    runs: tuple[int, ...]
    """Numbers of the runs, in the order in which they start."""
    max_parallel: int = 1
    """Most runs at once."""
    passed: dict[str, str] | None = None
    """The environment that supervisors begin with; None for the clean one."""
    before: Callable[[int], bool] | None = None
    """Called with a run's number before it starts; returns False to leave the run out."""
    say: Say | None = None
    """Called with a message when the runs are interrupted."""
    heard: int | None = None
    """The last signal that interrupted the runs."""
    _running: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    _again: list[int] = field(default_factory=list)
    _attempts: dict[int, int] = field(default_factory=dict)
    _codes: dict[int, int] = field(default_factory=dict)
    _stop: bool = False
    _interrupts: int = 0
    _asks: bool = False
    _look_again: float = 0.0

    def bring_to_end(self) -> int:
        """Run everything; 0 when all runs completed, 130 when it was stopped, else 1."""
        plan = plan_file.read(self.submission.plan)
        waiting = list(self.runs)
        try:
            while ((waiting or self._again) and not self._stop) or self._running:
                waiting[:0] = self._again
                self._again.clear()
                while waiting and not self._stop and len(self._running) < self.max_parallel:
                    number = self._next(plan, waiting)
                    if number is None:
                        break
                    self._start(plan, plan.run(number))
                self._collect()
                if self._stop and self._running:
                    self.end_running()
                time.sleep(0.05)
        except BaseException:
            self.end_running()
            raise
        finally:
            if self._interrupts:
                self._record_interrupt()
        if self._stop:
            return EXIT_INTERRUPTED
        return EXIT_FAILED if any(self._codes.values()) else EXIT_OK

    def stop(self, _number: int | None = None, _frame: FrameType | None = None) -> None:
        """Start no further run and end those that run; usable as a signal handler."""
        self._stop = True

    def interrupt(self, number: int, _frame: FrameType | None = None) -> None:
        """Act on Ctrl-C or another signal as its handler: runs save and end, at the second at once.

        The third kills them. Runs that have not ended by themselves are cancelled. A terminal that
        is closed may send HUP several times."""
        if self._interrupts and number == signal.SIGHUP:
            return
        self._stop = True
        self._interrupts += 1
        self.heard = number
        if self._asks:
            raise KeyboardInterrupt

    def end_running(self) -> None:
        """Send the supervisors TERM, or the signal of `interrupt`, by which they end their ranks.

        After a grace period, or the third interrupt, KILL.
        """
        deadline = time.monotonic() + _SUPERVISOR_GRACE
        told = -1
        try:
            while self._running and time.monotonic() < deadline and self._interrupts < _KILLS:
                if told < self._interrupts:
                    self._ask_to_end(first=told < 0)
                    told = self._interrupts
                self._collect()
                time.sleep(0.05)
        finally:
            for process in self._running.values():
                process.kill()
            while self._running:
                self._collect()
                time.sleep(0.01)

    def _ask_to_end(self, *, first: bool) -> None:
        if self._interrupts and self.say:
            again = "Ctrl-C again ends it at once" if first else "it is ended at once"
            self.say(f"interrupted: what runs may save first; {again}" if first else again)
        for process in self._running.values():
            process.send_signal(self.heard or signal.SIGTERM)

    def _record_interrupt(self) -> None:
        """Cancel the runs that have not come to an end of their own."""
        jobs = journal.jobs(self.submission)
        for number in self.runs:
            paths = self.submission.experiment.run(number)
            if number not in jobs or ledger.intent(paths) is not None:
                continue
            if number in self._attempts:
                last = ledger.read(paths)[self._attempts[number] :][-1:]
                if last and last[0].action == recovery.STOP:
                    continue
            ledger.set_intent(paths, ledger.CANCELLED)
            if not jobs[number].ended:
                journal.write_end(self.submission, number, EXIT_INTERRUPTED)

    def _next(self, plan: Plan, waiting: list[int]) -> int | None:
        """Remove and return the first run that may start; None if all wait."""
        if not plan.depends_on:
            return waiting.pop(0)
        if time.monotonic() < self._look_again:
            return None
        for number in list(waiting):
            found = dependencies.standing(plan, self.submission.experiment, number)
            if found == dependencies.READY:
                waiting.remove(number)
                return number
            if found != dependencies.WAITING:
                waiting.remove(number)
                self._say(f"run {number} is not started: {found}")
                self._note_end(number, EXIT_FAILED, found)
        self._look_again = time.monotonic() + LOOK_EVERY
        return None

    def _start(self, plan: Plan, run: RunPlan) -> None:
        intent = ledger.intent(self.submission.experiment.run(run.number))
        job = journal.jobs(self.submission).get(run.number)
        over = job is not None and job.ended
        if intent is not None or over:
            # A run that was cancelled and submitted again belongs to that submission.
            self._say(f"run {run.number} is {intent or 'cancelled'}; not started")
            if not over:
                journal.write_end(self.submission, run.number, EXIT_INTERRUPTED)
            return
        if self.before and not self._is_to_start(self.before, run.number):
            return
        paths = self.submission.experiment.run(run.number)
        self._attempts[run.number] = len(paths.attempts())
        environment = job_environment(self.submission, plan, run, self.passed)
        environment["HPCRUN_JOB_ID"] = f"local:{os.getpid()}"
        argv = supervisor_argv(self.submission, plan, run)
        log = self.submission.local_log(run.number)
        self._say(f"run {run.number} starts")
        try:
            self._running[run.number] = start_logged(
                argv,
                log,
                cwd=self.submission.directory,
                env=environment,
                preexec_fn=_end_with_parent,
            )
        except OSError as error:
            with open(log, "ab") as stream:
                stream.write(entry(f"error: {argv[0]}: {error.strerror}").encode() + b"\n")
            self._note_end(run.number, EXIT_USAGE)

    def _is_to_start(self, before: Callable[[int], bool], run: int) -> bool:
        """Ask whether a run is to start, which may wait for a lock: Ctrl-C ends that."""
        self._asks = True
        try:
            return before(run)
        finally:
            self._asks = False

    def _collect(self) -> None:
        for number, process in list(self._running.items()):
            code = process.poll()
            if code is not None:
                del self._running[number]
                processes.kill_all(self.submission.directory, {number})
                self._note_end(number, code)

    def _note_end(self, number: int, code: int, message: str | None = None) -> None:
        if self._goes_on(number, code):
            self._again.append(number)
            self._say(f"run {number} ended with exit code {code}; it is started again")
            return
        self._codes[number] = code
        self._say(f"run {number} ended with exit code {code}")
        files.patiently(
            lambda: journal.write_end(self.submission, number, code, message),
            self._say,
            "the journal",
        )

    def _goes_on(self, number: int, code: int) -> bool:
        """Check whether the supervisor is started again: it asked for it, or it was killed.

        A killed one is started again once an attempt; its successor decides what follows.
        """
        attempts = len(self.submission.experiment.run(number).attempts())
        begun = attempts > self._attempts.get(number, 0)
        return not self._stop and begun and (code == EXIT_SAVED or code < 0)

    def _say(self, message: str) -> None:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S")
        with contextlib.suppress(OSError), open(self.submission.local_log(), "a") as log:
            log.write(f"{stamp} hpcrun: {entry(message)}\n")


def supervisor_argv(submission: SubmissionPaths, plan: Plan, run: RunPlan) -> list[str]:
    """Return the command of one run's supervisor, after the setup lines if there are any."""
    settings = run.environment
    program = "-m", "hpcrun.run.supervisor", str(submission.directory), "--run", str(run.number)
    argv = [str(settings.python or sys.executable), *program]
    setup = [*(plan.cluster.get("setup") or ()), *settings.setup]
    if not setup:
        return argv
    # The same order as in the template of the sbatch script.
    lines = [
        *setup,
        *(f"export {name}={shlex.quote(value)}" for name, value in _variables(plan, run).items()),
        f"export PYTHONPATH={shlex.quote(str(submission.package))}${{PYTHONPATH:+:$PYTHONPATH}}",
        'exec "$@"',
    ]
    return ["bash", "-lc", "\n".join(lines), "bash", *argv]


def job_environment(
    submission: SubmissionPaths, plan: Plan, run: RunPlan, passed: dict[str, str] | None = None
) -> dict[str, str]:
    """Return the environment of one run's supervisor and of the setup lines before it."""
    variables = _variables(plan, run)
    environment = {
        **(processes.clean_environment() if passed is None else passed),
        **variables,
        **_base_environment(submission),
        processes.RUN: str(run.number),
    }
    if plan.cluster.get("setup") or run.environment.setup:
        # `supervisor_argv` sets it after the setup lines, which may change it.
        del environment["PYTHONPATH"]
    elif variables.get("PYTHONPATH"):
        environment["PYTHONPATH"] += os.pathsep + variables["PYTHONPATH"]
    return environment


def _variables(plan: Plan, run: RunPlan) -> dict[str, str]:
    variables = {**(plan.cluster.get("variables") or {}), **early(run.environment.variables)}
    return {name: str(value) for name, value in variables.items()}


def _base_environment(submission: SubmissionPaths) -> dict[str, str]:
    return {
        "PYTHONPATH": str(submission.package),
        "PYTHONUNBUFFERED": "1",
        processes.SUBMISSION: str(submission.directory),
    }


def _supervisors(found: Sequence[LocalProcess]) -> list[LocalProcess]:
    """Return each run's oldest process, which the runner started as the leader of a session."""
    oldest: dict[int | None, LocalProcess] = {}
    for process in sorted(found, key=lambda one: one.start_ticks):
        oldest.setdefault(process.run, process)
    return list(oldest.values())


def _end_with_parent() -> None:
    """Have the kernel send TERM to this process when its parent dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def main() -> None:
    # As in the template of the sbatch script: environment.setup may ask for cores.
    processes.forbid_cores()
    submission = SubmissionPaths(Path(sys.argv[1]))
    os.chdir(submission.directory)
    plan = plan_file.read(submission.plan)
    runs = tuple(number for array in plan.arrays for number in array.runs)
    runner = Runner(submission, runs, max_parallel=plan.max_parallel or 1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, runner.stop)
    sys.exit(runner.bring_to_end())


if __name__ == "__main__":
    main()
