"""The program beside the supervisor that talks to the object store.

    python -m hpcrun.features.object_storage.process {follow,fetch,once} SUBMISSION --run N

``follow`` copies checkpoints until its input is closed, and what is missing once more: the last
line of its input is how many seconds it may take for that. ``fetch`` brings back what the root has
lost. Both report in lines of JSON, which the supervisor (`hpcrun.features.object_storage.copies`)
puts into the ledger. ``once``, by hand, copies what is left of a run that has ended.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from hpcrun.errors import EXIT_FAILED, EXIT_OK, HpcrunError
from hpcrun.features.object_storage import block as blocks
from hpcrun.features.object_storage import copy_records, fetcher
from hpcrun.features.object_storage.copier import Copier
from hpcrun.features.object_storage.copy_records import TROUBLE
from hpcrun.features.object_storage.store import LibraryMissing, Store, is_lasting, words
from hpcrun.run.protocol import stop_flag
from hpcrun.run.tracking.interface import identity
from hpcrun.state import ledger, permissions, plan_file
from hpcrun.state.environment import secrets_file
from hpcrun.state.layout import SubmissionPaths

# Seconds between looks for a new checkpoint, and at most between tries while the store is down.
EVERY, LONGEST_PAUSE = 5.0, 300.0
# Exit code of a process that need not be started again.
EXIT_USELESS = 3
FAILED = "failed"


class RunCopies:
    """The copies of one run, as this process makes and fetches them.

    ``start`` is the first attempt of this start of the job.
    """

    def __init__(self, submission: SubmissionPaths, number: int, start: int) -> None:
        plan = plan_file.read(submission.plan)
        permissions.use_profile(plan.cluster)
        run = plan.run(number)
        block = blocks.asked_copies(run.spec)
        assert block is not None
        self._block, self._start = block, start
        self._run = submission.experiment.run(number)
        self._place = "/".join(
            [str(block.to).rstrip("/"), plan.name, f"{number}-{identity(self._run)}"]
        )
        os.environ.update(secrets_file.read(run.environment.secrets_file))
        self._over = threading.Event()
        self._leave_by = float("inf")
        self._reported: str | None = None

    def fetch(self) -> int:
        """Bring back what the root has lost; return the exit code."""
        checkpoints = self._run.checkpoints
        wanted = fetcher.newer_copies(checkpoints, copy_records.read_records(self._run))
        try:
            fetcher.fetch_newest(wanted, checkpoints, self._store_at, report)
        except HpcrunError as error:
            report(FAILED, message=error.message, hint=error.hint)
            return EXIT_FAILED
        return EXIT_OK

    def follow(self) -> int:
        """Copy until the input is closed, and what is then missing; return the exit code."""
        threading.Thread(target=self._listen, daemon=True).start()
        copier: Copier | None = None
        pause = EVERY
        while True:
            is_last = self._over.is_set()
            try:
                if not self._is_current():
                    return EXIT_USELESS
                copier = copier or self._copier()
                copier.copy_missing()
                self._reported, pause = None, EVERY
                if is_last:
                    return EXIT_OK
            except LibraryMissing as error:
                self._tell(error)
                return EXIT_USELESS
            except Exception as error:
                self._tell(error)
                if is_last and (is_lasting(error) or time.monotonic() > self._leave_by):
                    return EXIT_FAILED
                pause = min(2 * pause, LONGEST_PAUSE)
            if is_last:
                time.sleep(EVERY)
            else:
                self._over.wait(pause)

    def once(self) -> int:
        """Copy what is missing; return the exit code. Errors of the store are raised."""
        self._copier().copy_missing()
        return EXIT_OK

    def _copier(self) -> Copier:
        return Copier(
            self._store_at(self._place),
            self._run.checkpoints,
            report,
            keep=self._block.keep,
            refused=copy_records.passed_over(copy_records.read_records(self._run)),
            may_remove=self._is_current,
        )

    def _store_at(self, place: str) -> Store:
        return Store(place, self._block.options)

    def _is_current(self) -> bool:
        """Check that no later start of the job has taken over."""
        attempts = ledger.read(self._run)
        newest = attempts[-1].number if attempts else 0
        return not self._start or ledger.first_of_start(attempts, newest) <= self._start

    def _tell(self, error: Exception) -> None:
        """Report an error once, until one of another kind or a success; each names its object."""
        kind = type(error).__name__
        if kind != self._reported:
            report(TROUBLE, message=words(error), place=self._place)
        self._reported = kind

    def _listen(self) -> None:
        given = sys.stdin.buffer.read().split()
        seconds = float(given[-1]) if given and given[-1].isdigit() else 0.0
        self._leave_by = time.monotonic() + seconds
        self._over.set()
        # Whatever it is in the middle of, also where the supervisor was killed.
        time.sleep(seconds + 1.0)
        os._exit(EXIT_FAILED)


def report(what: str | None, **fields: Any) -> None:
    """Print a report; with ``what=None`` it is for the log alone."""
    with contextlib.suppress(OSError):
        print(json.dumps({"what": what, **fields}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="hpcrun.features.object_storage.process")
    parser.add_argument("task", choices=("follow", "fetch", "once"))
    parser.add_argument("submission", type=Path)
    parser.add_argument("--run", type=int, required=True)
    parser.add_argument("--start", type=int, default=0, help="the job's first attempt")
    arguments = parser.parse_args()
    if arguments.task != "once":
        # Slurm signals every process of the batch step.
        for number in (*stop_flag.SIGNALS, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
    if arguments.task == "follow":
        os.nice(19)
    submission = SubmissionPaths(arguments.submission)
    try:
        copies = RunCopies(submission, arguments.run, arguments.start)
        code = getattr(copies, arguments.task)()
    except HpcrunError as error:
        is_fetch = arguments.task == "fetch"
        report(FAILED if is_fetch else TROUBLE, message=error.message, hint=error.hint)
        code = EXIT_FAILED if is_fetch else EXIT_USELESS
    # Threads of a library that hangs would keep this process.
    os._exit(code)


if __name__ == "__main__":
    main()
