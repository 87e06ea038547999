"""The tracker program, which forwards a run's metrics to one tracker.

    python -m hpcrun.run.tracker NAME SUBMISSION --run N [--once]

The supervisor starts it (`hpcrun.run.tracking.tracker_processes`) and ends it by closing its input.
With ``--once``, by hand, it forwards what is left of a run that has ended.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hpcrun.errors import EXIT_FAILED, EXIT_OK, HpcrunError
from hpcrun.extensions import TRACKERS
from hpcrun.policy import causes, recovery
from hpcrun.run.protocol import stop_flag
from hpcrun.run.protocol.output import say
from hpcrun.run.tracking.interface import RunDescription, Tracker
from hpcrun.run.tracking.metrics_feed import FeedPosition, NewLines, read_after
from hpcrun.run.tracking.tracker_processes import EXIT_USELESS
from hpcrun.state import files, ledger, permissions, plan_file
from hpcrun.state.environment import secrets_file
from hpcrun.state.layout import SubmissionPaths
from hpcrun.state.plan import RunPlan

EVERY = 5.0
# Each try of wandb leaves a directory.
LONGEST_PAUSE = 1800.0
# Seconds after which a call into a tracker's library counts as hung.
HANGS = 300.0
# Seconds to send what is left; less than `hpcrun.run.tracking.tracker_processes` waits.
LEAVE = 15.0
# Characters of a problem that are kept for `hpcrun why`.
_LONGEST = 2000


class SupersededError(Exception):
    """A tracker of a later start of the job has taken over."""


class MetricsForwarder:
    """Forwards one run's metrics to one tracker.

    ``start`` is the first attempt of this start of the job; 0 stands for the newest attempt.
    """

    def __init__(self, name: str, submission: SubmissionPaths, number: int, start: int) -> None:
        plan = plan_file.read(submission.plan)
        permissions.use_profile(plan.cluster)
        self._name, self._experiment, self._run = name, plan.name, plan.run(number)
        self._paths = submission.experiment.run(number)
        self._state_file = self._paths.tracker_state(name)
        self._problem_file = self._paths.tracker_problem(name)
        # Of this process, or of one before it.
        self._may_have_problem = True
        attempts = self._paths.attempts()
        self._start = start or (attempts[-1].number if attempts else 0)
        self._tracker: Tracker | None = None
        self._position = FeedPosition()
        self._reported: str | None = None
        self._busy_since: float | None = None
        self._over, self._done = threading.Event(), threading.Event()

    def follow(self) -> int:
        """Forward until the input is closed, and once more; return the exit code."""
        for target in (self._listen, self._watch):
            threading.Thread(target=target, daemon=True).start()
        try:
            return self._follow()
        finally:
            self._done.set()

    def _follow(self) -> int:
        pause = EVERY
        while True:
            is_last = self._over.is_set()
            try:
                self.forward()
                pause = EVERY
            except SupersededError:
                return EXIT_USELESS
            except (ImportError, HpcrunError) as error:
                self._note(f"{error}; nothing is forwarded")
                return EXIT_USELESS
            except Exception as error:
                self._fail(error)
                pause = min(2 * pause, LONGEST_PAUSE)
            if is_last:
                return self._close()
            self._over.wait(pause)

    def once(self) -> int:
        """Forward what is there; return the exit code. Errors of the library are raised."""
        self.forward()
        return self._close()

    def forward(self) -> None:
        """Forward what was logged and not forwarded yet."""
        self._busy_since = time.monotonic()
        try:
            state = self._read_state()
            if int(state.get("start", 0)) > self._start:
                raise SupersededError
            if self._tracker is None:
                self._position = FeedPosition(**state.get("place", {}))
                if next(read_after(self._paths, self._position), None) is not None:
                    self._open(state.get("sink", {}))
            if self._tracker is not None:
                for part in read_after(self._paths, self._position):
                    self._busy_since = time.monotonic()
                    self._send(part)
            if self._may_have_problem:
                self._problem_file.unlink(missing_ok=True)
            self._may_have_problem, self._reported = False, None
        finally:
            self._busy_since = None

    def _open(self, state: dict[str, Any]) -> None:
        described = RunDescription.of(self._experiment, self._run, self._paths)
        directory = self._paths.tracking / self._name
        export_secrets(self._run)
        opened = TRACKERS.load(self._name)
        self._tracker = opened(described, directory, state, self._position.step)
        if self._tracker.starts_over:
            self._position = FeedPosition()

    def _send(self, part: NewLines) -> None:
        assert self._tracker is not None
        self._tracker.send(part.lines, part.kept)
        self._position = part.position
        self._state_file.parent.mkdir(parents=True, exist_ok=True)
        state = {"start": self._start, "place": asdict(part.position), "sink": self._tracker.state}
        files.write_json(self._state_file, state)

    def _read_state(self) -> dict[str, Any]:
        try:
            found = files.read_json(self._state_file)
        except (FileNotFoundError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _fail(self, error: Exception) -> None:
        """Report an error once, and open the tracker anew at the next try."""
        reason = f"{type(error).__name__}: {error}"
        if reason != self._reported:
            self._note(f"{reason}; tried again")
        self._reported = reason
        tracker, self._tracker = self._tracker, None
        if tracker is not None:
            with contextlib.suppress(Exception):
                tracker.close(None)

    def _note(self, problem: str) -> None:
        """Say why nothing is sent, and leave it where `hpcrun why` looks until something is."""
        say(f"{self._name}: {problem}")
        self._may_have_problem = True
        with contextlib.suppress(OSError):
            self._problem_file.parent.mkdir(parents=True, exist_ok=True)
            files.write_bytes(self._problem_file, problem[:_LONGEST].encode(errors="replace"))

    def _close(self) -> int:
        if self._tracker is not None:
            try:
                self._tracker.close(self._outcome())
            except Exception as error:
                self._note(f"{type(error).__name__}: {error}")
                return EXIT_FAILED
        return EXIT_OK

    def _outcome(self) -> str | None:
        """Return how the run ended; None if it goes on."""
        if ledger.intent(self._paths) == ledger.CANCELLED:
            return "cancelled"
        last = ledger.read(self._paths)[-1:]
        if last and last[0].outcome in causes.GOOD_ENDS:
            return "completed"
        return "failed" if last and last[0].action == recovery.STOP else None

    def _listen(self) -> None:
        sys.stdin.buffer.read()
        self._over.set()

    def _watch(self) -> None:
        """End this process when a call hangs: a new process may have more luck."""
        leave_by = float("inf")
        while not self._done.wait(0.5):
            now, since = time.monotonic(), self._busy_since
            if self._over.is_set():
                leave_by = min(leave_by, now + LEAVE)
            hangs = since is not None and now - since > HANGS
            if hangs or now > leave_by:
                how = "does not return" if hangs else "does not return in time"
                self._note(f"{how}; what is left waits for the next start, or for --once")
                os._exit(EXIT_FAILED)


def export_secrets(run: RunPlan) -> None:
    """Set the user's secrets in this process's environment, where libraries look for keys."""
    try:
        os.environ.update(secrets_file.read(run.environment.secrets_file))
    except HpcrunError as error:
        say(error.message)


def main() -> None:
    parser = argparse.ArgumentParser(prog="hpcrun.run.tracker")
    parser.add_argument("name", help=f"one of {', '.join(TRACKERS.own)}, or of a package")
    parser.add_argument("submission", type=Path)
    parser.add_argument("--run", type=int, required=True)
    parser.add_argument("--start", type=int, default=0, help="the job's first attempt")
    parser.add_argument("--once", action="store_true", help="forward what is there, and leave")
    arguments = parser.parse_args()
    submission = SubmissionPaths(arguments.submission)
    if not arguments.once:
        # Slurm signals every process of the batch step.
        for number in (*stop_flag.SIGNALS, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        os.nice(19)
    forwarder = MetricsForwarder(arguments.name, submission, arguments.run, arguments.start)
    # Threads of a library that hangs would keep this process.
    os._exit(forwarder.once() if arguments.once else forwarder.follow())


if __name__ == "__main__":
    main()
