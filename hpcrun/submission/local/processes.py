"""Processes of this machine that belong to a local submission, found through /proc.

A process is identified by its id together with its start time, so that a reused id is never
mistaken for it. Everything that a submission starts inherits two variables that name the submission
and the run; by these its descendants are found even when they left their process group or parent.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcrun.host import process_directories, start_ticks
from hpcrun.state.layout import is_job_id

SUBMISSION = "HPCRUN_LOCAL_SUBMISSION"
RUN = "HPCRUN_LOCAL_RUN"

_PASSED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR"),
    *("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "SLURM_CONF", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    "XDG_CACHE_HOME",
)


def forbid_cores() -> None:
    """Set the soft limit of cores to 0, for this process and those that it starts."""
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, most))


def clean_environment() -> dict[str, str]:
    """Return the part of the user's environment that a job on this machine gets: who and where.

    Whatever else a run needs belongs to its spec or to the cluster profile, as under Slurm.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if name in _PASSED or name.startswith("LC_")
    }


@dataclass(frozen=True)
class LocalProcess:
    """A process that works for a run of a local submission."""

    # Together they name one process of this machine.
    pid: int
    start_ticks: int
    run: int | None
    """The run's number; None for the process that starts the runs."""

    def signal(self, number: int) -> bool:
        """Send a signal, unless this process is gone (its id may be another's by now)."""
        if start_ticks(self.pid) != self.start_ticks:
            return False
        try:
            os.kill(self.pid, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    @property
    def alive(self) -> bool:
        return start_ticks(self.pid) == self.start_ticks


def this_process() -> dict[str, Any]:
    """Return ``host`` and ``start_ticks`` of this process, for the journal."""
    return {"host": os.uname().nodename, "start_ticks": start_ticks(os.getpid())}


def alive(entry: dict[str, Any]) -> bool | None:
    """Check whether the process of a journal entry lives; None if it is on another host."""
    if entry.get("host") != os.uname().nodename:
        return None
    job_id, ticks = entry.get("job_id"), entry.get("start_ticks")
    if not isinstance(ticks, int) or not is_job_id(job_id):
        return False
    pid = str(job_id).partition(":")[2]
    return bool(pid) and start_ticks(int(pid)) == ticks


def runs(*words: str) -> bool:
    """Check whether a process of this user has all of these words in its command line."""
    wanted = {os.fsencode(word) for word in words}
    for path in process_directories():
        try:
            mine = path.stat().st_uid == os.geteuid()
            if mine and wanted <= {*(path / "cmdline").read_bytes().split(b"\0")}:
                return True
        except OSError:
            continue
    return False


def of_submission(submission: Path, runs: Collection[int] | None = None) -> Iterator[LocalProcess]:
    """Yield this user's processes that work for a submission, or for some of its runs, by id.

    Root could read and end those of others, which anybody may start with such variables.
    """
    marks = {f"{SUBMISSION}={path}".encode() for path in (submission, os.path.realpath(submission))}
    for process in sorted(process_directories(), key=lambda path: int(path.name)):
        pid = int(process.name)
        try:
            mine = process.stat().st_uid == os.geteuid()
            variables = (process / "environ").read_bytes().split(b"\0") if mine else []
        except OSError:
            continue
        if marks.isdisjoint(variables):
            continue
        started = start_ticks(pid)
        run = _run_of(variables)
        if started is not None and (runs is None or run in runs):
            yield LocalProcess(pid, started, run)


def kill_all(submission: Path, runs: Collection[int] | None = None) -> int:
    """Kill what is left of a submission or some of its runs; return how many processes it was."""
    count = 0
    # A process may start another one between the look and the kill.
    for _ in range(50):
        left = list(of_submission(submission, runs))
        if not left:
            break
        count += sum(process.signal(signal.SIGKILL) for process in left)
        wait_all(left, 1.0)
    return count


def wait_all(waited: Collection[LocalProcess], timeout: float) -> bool:
    """Wait until all are gone; return False after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while any(process.alive for process in waited):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _run_of(variables: Collection[bytes]) -> int | None:
    pairs = (variable.partition(b"=") for variable in variables)
    values = (value for name, _, value in pairs if name == RUN.encode())
    return next((int(value) for value in values if value.isdigit()), None)
