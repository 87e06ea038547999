"""Forwards what a run logs to a tracker: a process of its own, so that none can hurt the training.

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
from hpcrun.run.protocol import stop_flag
from hpcrun.run.protocol.log import say
from hpcrun.run.rank import secrets
from hpcrun.run.tracking.metrics_feed import News, Place, Sink, news
from hpcrun.run.tracking.sinks import SINKS, About
from hpcrun.run.tracking.tracker_processes import EXIT_USELESS
from hpcrun.state import files, permissions, plan_file
from hpcrun.state.layout import SubmissionPaths
from hpcrun.state.plan import RunPlan

EVERY = 5.0
# Each try of wandb leaves a directory.
LONGEST_PAUSE = 1800.0
# A call into a tracker's library that takes longer will not return.
HANGS = 300.0
# Seconds to send what is left; less than `hpcrun.run.tracking.tracker_processes` waits.
LEAVE = 15.0


class Stale(Exception):
    """A tracker of a later start of the job has taken over."""


class Tracker:
    """Forwards one run's lines to one tracker.

    Parameters
    ----------
    start
        The first attempt of this start of the job; 0 for the newest attempt.
    """

    def __init__(self, name: str, submission: SubmissionPaths, number: int, start: int) -> None:
        self._name = name
        self._paths = submission.experiment.run(number)
        plan = plan_file.read(submission.plan)
        permissions.use_umask(plan.cluster)
        self._run = plan.run(number)
        self._experiment = plan.name
        attempts = self._paths.attempts()
        self._start = start or (attempts[-1].number if attempts else 0)
        self._state = self._paths.tracker_state(name)
        self._sink: Sink | None = None
        self._place = Place()
        self._told: str | None = None
        self._busy_since: float | None = None
        self._over, self._done = threading.Event(), threading.Event()

    def follow(self) -> int:
        """Forward until the input is closed, and once more; the exit code."""
        threading.Thread(target=self._listen, daemon=True).start()
        threading.Thread(target=self._watch, daemon=True).start()
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
            except Stale:
                return EXIT_USELESS
            except ImportError as error:
                say(f"{self._name}: {error}; nothing is forwarded")
                return EXIT_USELESS
            except Exception as error:
                self._fail(error)
                pause = min(2 * pause, LONGEST_PAUSE)
            if is_last:
                return self._close()
            self._over.wait(pause)

    def once(self) -> int:
        """Forward what is there; the exit code.

        Raises
        ------
        Exception
            Whatever the tracker's library raises.
        """
        self.forward()
        return self._close()

    def forward(self) -> None:
        """Forward what was logged and not forwarded yet."""
        self._busy_since = time.monotonic()
        try:
            state = self._read()
            if int(state.get("start", 0)) > self._start:
                raise Stale
            if self._sink is None:
                self._place = Place(**state.get("place", {}))
                if next(news(self._paths, self._place), None) is None:
                    return
                self._open(state.get("sink", {}))
            for part in news(self._paths, self._place):
                self._busy_since = time.monotonic()
                self._send(part)
            self._told = None
        finally:
            self._busy_since = None

    def _open(self, state: dict[str, Any]) -> None:
        about = About.of(self._experiment, self._run, self._paths)
        directory = self._paths.tracking / self._name
        take_secrets(self._run)
        self._sink = SINKS[self._name](about, directory, state, self._place.step)
        if self._sink.starts_over:
            self._place = Place()

    def _send(self, part: News) -> None:
        assert self._sink is not None
        self._sink.send(part.lines, part.kept)
        self._place = part.place
        self._save(part.place, self._sink.state)

    def _read(self) -> dict[str, Any]:
        try:
            found = files.read_json(self._state)
        except (FileNotFoundError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _save(self, place: Place, state: dict[str, Any]) -> None:
        self._state.parent.mkdir(parents=True, exist_ok=True)
        kept = {"start": self._start, "place": asdict(place), "sink": state}
        files.write_json(self._state, kept)

    def _fail(self, error: Exception) -> None:
        """Say once what went wrong, and begin anew the next time."""
        reason = f"{type(error).__name__}: {error}"
        if reason != self._told:
            say(f"{self._name}: {reason}; tried again")
        self._told = reason
        sink, self._sink = self._sink, None
        if sink is not None:
            with contextlib.suppress(Exception):
                sink.close()

    def _close(self) -> int:
        if self._sink is not None:
            try:
                self._sink.close()
            except Exception as error:
                say(f"{self._name}: {type(error).__name__}: {error}")
                return EXIT_FAILED
        return EXIT_OK

    def _listen(self) -> None:
        sys.stdin.buffer.read()
        self._over.set()

    def _watch(self) -> None:
        """End this process where a call does not return: another one may have more luck."""
        leave_by = float("inf")
        while not self._done.wait(0.5):
            now, since = time.monotonic(), self._busy_since
            if self._over.is_set():
                leave_by = min(leave_by, now + LEAVE)
            hangs = since is not None and now - since > HANGS
            if hangs or now > leave_by:
                how = "does not return" if hangs else "does not return in time"
                say(f"{self._name} {how}; what is left waits for the next start, or for --once")
                os._exit(EXIT_FAILED)


def take_secrets(run: RunPlan) -> None:
    """Set the user's secrets in this process, which is where libraries look for keys."""
    try:
        os.environ.update(secrets.read((run.spec.get("environment") or {}).get("secrets_file")))
    except HpcrunError as error:
        say(error.message)


def main() -> None:
    """Entry point of ``python -m hpcrun.run.tracker``."""
    parser = argparse.ArgumentParser(prog="hpcrun.run.tracker")
    parser.add_argument("name", choices=list(SINKS))
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
    tracker = Tracker(arguments.name, submission, arguments.run, arguments.start)
    code = tracker.once() if arguments.once else tracker.follow()
    # Threads of a library that hangs would keep this process.
    os._exit(code)


if __name__ == "__main__":
    main()
