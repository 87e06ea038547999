"""The supervisor's part of copies: it starts their process, and records what that reports."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from hpcrun.bounded_json import parse_line
from hpcrun.errors import HpcrunError
from hpcrun.features.object_storage import copy_records, fetcher
from hpcrun.features.object_storage.block import ObjectStorage
from hpcrun.features.object_storage.copy_records import COPIED, FETCHED, NOT_COPIED, TROUBLE
from hpcrun.features.object_storage.process import EXIT_USELESS, FAILED
from hpcrun.fields import wrong
from hpcrun.run.protocol.output import say
from hpcrun.slurm.parse import parse_duration
from hpcrun.state import ledger, manifest, session_log
from hpcrun.state.layout import AttemptPaths, RunPaths, SubmissionPaths
from hpcrun.text import size

PROGRAM = "hpcrun.features.object_storage.process"
# Seconds between starts of a process that died.
PAUSE, LONGEST_PAUSE = 30.0, 960.0
# Seconds that the end of a job whose run goes on waits for copies: its next start makes the rest.
SHORT_WAIT = 20.0
# Seconds after its time in which the process may leave by itself.
_GRACE = 3.0

Record = Callable[..., object]


class CheckpointCopies:
    """The copies of one run's checkpoints, during one start of its job.

    ``record(event, **fields)`` writes to the ledger.
    """

    def __init__(
        self,
        attempt: AttemptPaths,
        submission: SubmissionPaths,
        block: ObjectStorage,
        record: Record,
    ) -> None:
        self._attempt, self._submission, self._block = attempt, submission, block
        self._run: RunPaths = attempt.run
        self._record = record
        self._reports: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._over, self._lock = threading.Event(), threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._keeper: threading.Thread | None = None
        self._fetching: subprocess.Popen[bytes] | None = None
        self._useless = False

    def begin(self) -> None:
        """Fetch what the root has lost, then copy in the background.

        Raises HpcrunError if the run would have nothing to begin from though there was a copy.
        """
        if wanted := fetcher.newer_copies(
            self._run.checkpoints, copy_records.read_records(self._run)
        ):
            name, place = wanted[0]["checkpoint"], wanted[0]["place"]
            say(f"the root has lost {name}: its copy is fetched from {place}")
            self._fetch()
        first = ledger.first_of_start(ledger.read(self._run), self._attempt.number)
        arguments = [*self._command("follow"), "--start", str(first)]
        self._keeper = threading.Thread(target=self._keep, args=(arguments,), daemon=True)
        self._keeper.start()

    def turn(self) -> None:
        """Put into the ledger what was reported since; waits for nothing."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._take(self._reports.get_nowait())

    def end(self, seconds: float) -> None:
        """Wait for the last copies, as the spec and ``seconds`` allow; record the rest."""
        if self._fetching is not None and self._fetching.poll() is None:
            _kill(self._fetching)  # the attempt was told to end meanwhile
        if self._keeper is None:
            return
        goes_on = not session_log.read_any(self._attempt).finished
        most = SHORT_WAIT if goes_on else float(parse_duration(self._block.wait) or SHORT_WAIT)
        most = max(1.0, min(most, seconds - 2 * _GRACE))
        with self._lock:
            self._over.set()
            if self._process is not None:
                _close_input(self._process, most)
        if not self._useless and self._missing():
            say(f"the job waits for copies of checkpoints, {most:.0f} s at most")
        deadline = time.monotonic() + most + _GRACE
        while self._keeper.is_alive() and time.monotonic() < deadline:
            self._keeper.join(0.2)
            self.turn()
        if self._process is not None and self._process.poll() is None:
            _kill(self._process)
        self._keeper.join(_GRACE)
        self.turn()
        self._tell_missing(goes_on)

    def _tell_missing(self, goes_on: bool) -> None:
        missing = self._missing()
        # A run that has none and is over never had a session that saves.
        if missing or not (goes_on or self._copies()):
            message = copy_records.not_copied_message(missing, goes_on)
            say(message)
            self._record(NOT_COPIED, names=missing[:100], message=message)

    def _missing(self) -> list[str]:
        """Return the names of complete checkpoints of which no copy is on record, newest first."""
        made = {one["checkpoint"] for one in self._copies()}
        found = [path.name for path, _ in manifest.complete(self._run.checkpoints)]
        return [name for name in found[: self._block.keep] if name not in made]

    def _command(self, task: str) -> list[str]:
        # In the supervisor's Python, not in a container: there the place may not be mounted.
        command = [sys.executable, "-m", PROGRAM, task, str(self._submission.directory)]
        return [*command, "--run", str(self._run.number)]

    def _fetch(self) -> None:
        process = self._fetching = _start(self._command("fetch"))
        failure: dict[str, Any] = {}
        for found in _reports_of(process):
            if found.get("what") == FAILED:
                failure = found
            self._take(found)
        code = process.wait()
        if code == 0:
            return
        message = str(failure.get("message") or f"its process ended with {code}; see this log")
        if (newest := fetcher.newest_whole(self._run.checkpoints)) is not None:
            say(f"{message}; the run goes on from step {newest[0]:,}, which the root has")
            self._record(TROUBLE, message=message)
            return
        raise HpcrunError(message, hint=failure.get("hint") or "hpcrun requeue tries it again")

    def _keep(self, command: list[str]) -> None:
        """Start the process, and start it again where it dies."""
        pause = PAUSE
        while True:
            with self._lock:
                if self._over.is_set():
                    return
                try:
                    process = self._process = _start(command)
                except OSError as error:
                    self._reports.put({"what": TROUBLE, "message": f"no process starts: {error}"})
                    return
            for found in _reports_of(process):
                self._reports.put(found)
            code = process.wait()
            _close_input(process)
            self._useless = code == EXIT_USELESS
            if code in (0, EXIT_USELESS) or self._over.is_set():
                return
            message = f"the process that copies ended with {code}, and is started again"
            self._reports.put({"what": None, "message": message})
            if self._over.wait(pause):
                return
            pause = min(2 * pause, LONGEST_PAUSE)

    def _take(self, report: dict[str, Any]) -> None:
        what, message = report.get("what"), str(report.get("message") or "")
        fields = {name: report[name] for name in copy_records.FIELDS if name in report}
        known = copy_records.EVENTS.get(str(what))
        if known is None or wrong(fields, known.fields, known.needed):
            if message and what != FAILED:
                say(f"object storage: {message}")
            return
        name = fields.get("checkpoint")
        if what == COPIED:
            made = {one["checkpoint"]: one for one in self._copies()}
            mine = made.get(str(name), {})
            if (mine.get("place"), mine.get("digest")) == (fields["place"], fields["digest"]):
                return
            # The newest is copied first, so that the last record may be of an older one.
            fields["newest"] = max([fields["step"], *(one["step"] for one in made.values())])
            say(f"{name} is copied to {fields['place']} ({size(fields['bytes'])})")
        elif what == TROUBLE:
            say(f"checkpoints are not copied, and the run goes on: {message}")
        elif what == FETCHED:
            say(f"{name} is fetched from {fields['place']}")
        else:
            say(f"the copy of {name} is passed over: {message}")
        self._record(str(what), **fields)

    def _copies(self) -> list[copy_records.Record]:
        return copy_records.copies(copy_records.read_records(self._run))


def of_attempt(
    attempt: AttemptPaths, block: ObjectStorage, record: Record
) -> CheckpointCopies | None:
    """Return the part in an attempt's supervisor; None for one that is not on record."""
    found = {one.number: one.submission for one in ledger.read(attempt.run)}
    number = found.get(attempt.number)
    if number is None:
        return None
    return CheckpointCopies(attempt, attempt.run.experiment.submission(number), block, record)


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    """Start a process whose end of input is this one's end; its errors go to the job's log."""
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )


def _reports_of(process: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
    """Yield what a process reports until it ends."""
    assert process.stdout is not None
    for line in process.stdout:
        found = parse_line(line)
        if type(found) is dict:
            yield found


def _close_input(process: subprocess.Popen[bytes], seconds: float | None = None) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError, ValueError):
        if seconds is not None:
            process.stdin.write(f"{int(seconds)}\n".encode())
        process.stdin.close()


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
