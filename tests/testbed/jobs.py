"""What Slurm says about jobs and nodes, for tests to wait on."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from subprocess import CompletedProcess
from typing import Protocol

FINISHED = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "TIMEOUT",
    }
)
SACCT_FIELDS = (
    "JobID,JobIDRaw,JobName,User,Partition,State,ExitCode,NodeList,NNodes,"
    "Submit,Eligible,Start,End,ElapsedRaw,MaxRSS,Reason"
)


class Runner(Protocol):
    """What these functions need of a cluster."""

    def run(
        self, argv: Sequence[str], *, user: bool = True, check: bool = True
    ) -> CompletedProcess[str]:
        """Run a command on the login node."""


def state(cluster: Runner, job_id: str | int) -> str | None:
    """Return a job's state, or None if neither the controller nor accounting knows it."""
    shown = cluster.run(["scontrol", "-o", "show", "job", str(job_id)], user=False, check=False)
    for word in shown.stdout.split():
        if word.startswith("JobState="):
            return word.partition("=")[2]
    argv = ["sacct", "-nXP", "-j", str(job_id), "-o", "State"]
    rows = cluster.run(argv, user=False, check=False).stdout.split()
    return rows[0] if rows else None


def wait(cluster: Runner, job_id: str | int, states: str | Collection[str], timeout: float) -> str:
    """Wait until a job is in one of `states`; TimeoutError says which one it is in."""
    wanted = {states} if isinstance(states, str) else set(states)
    deadline = time.monotonic() + timeout
    while True:
        current = state(cluster, job_id)
        if current in wanted:
            return str(current)
        if time.monotonic() > deadline:
            shown = cluster.run(["scontrol", "show", "job", str(job_id)], user=False, check=False)
            raise TimeoutError(
                f"job {job_id} is {current}, not {'/'.join(sorted(wanted))},"
                f" after {timeout:g} s\n{shown.stdout}"
            )
        time.sleep(0.2)


def sacct(cluster: Runner, job_id: str | int, *, duplicates: bool) -> list[dict[str, str]]:
    """Return accounting's records of a job and its steps, oldest first, by field name.

    Accounting hears of an end a moment after the controller knows it.
    """
    argv = ["sacct", "-P", "-j", str(job_id), "-o", SACCT_FIELDS]
    if duplicates:
        argv.append("-D")
    text = cluster.run(argv, user=False).stdout
    header, *rows = text.splitlines() or [""]
    return [dict(zip(header.split("|"), row.split("|"), strict=True)) for row in rows]


def node_states(cluster: Runner) -> dict[str, str]:
    """Return {node: state} as sinfo prints it, flags (``down*``) included."""
    rows = cluster.run(["sinfo", "-hN", "-p", "main", "-o", "%N %T"], user=False).stdout
    return dict(row.split() for row in rows.splitlines())


def cancel_all(cluster: Runner, timeout: float = 90) -> None:
    """End every job at once, without its grace time, and wait until the last is gone."""
    deadline = time.monotonic() + timeout
    while True:
        jobs = cluster.run(["squeue", "-h", "-o", "%A"], user=False).stdout.split()
        if not jobs:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"jobs {' '.join(jobs)} did not end within {timeout:g} s")
        ids = sorted(set(jobs))
        cluster.run(["scancel", *ids], user=False, check=False)
        cluster.run(["scancel", "--full", "--signal=KILL", *ids], user=False, check=False)
        time.sleep(0.3)
