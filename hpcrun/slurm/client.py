"""Every command of Slurm but srun and the submission itself.

A command gets an environment without what an outer job left in it, and a limit of time, which
readers have for all of their commands together (`hpcrun.slurm.patience`). It ends in its output or
in `CommandFailed`, and takes with it what it started. Ids of jobs and names of nodes, which files
of runs tell, are checked here, so that no other word reaches a command. Standard library only:
compute nodes import this too.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import signal
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpcrun import host
from hpcrun.errors import ClusterRefused, ClusterUnreachable
from hpcrun.slurm import patience
from hpcrun.slurm.hostlist import parse_ranges, write_out
from hpcrun.slurm.parse import parse_rows
from hpcrun.state.layout import is_slurm_id

if TYPE_CHECKING:
    from subprocess import Popen

# Seconds for a command, and for a question with all its retries.
TIMEOUT = 60.0
# The timeout inside a job, which must not wait for long and does without the answer.
SHORT = 8.0
_PAUSES = (1.0, 3.0)

_SCRUBBED = (
    *("SLURM_", "SBATCH_", "SALLOC_", "SBCAST_", "SRUN_"),
    *("SQUEUE_", "SACCT_", "SCANCEL_", "SINFO_"),
)
_KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER")
# sbatch's --clusters.
_CLUSTERS = ("SBATCH_CLUSTERS", "SLURM_CLUSTERS")
_PMI = re.compile(r"PMI\d?X?_")

_TRANSIENT = re.compile(r"timed out|temporarily un|try again|connection reset", re.IGNORECASE)
_UNREACHABLE = re.compile(
    r"unable to contact|connection refused|connect failure|unable to connect|no route to host"
    r"|communication connection failure|zero bytes were transmitted|could not establish a config"
    r"|unable to resolve|munge",
    re.IGNORECASE,
)
_NOT_CONFIGURED = re.compile(r"could not establish a configuration source", re.IGNORECASE)
# To how many each slurmd of sbcast's tree sends. Each part of 8 MB waits for all nodes: by
# arithmetic 60 MB/s to 1,000 nodes on 10 Gb/s, and 12 with 50, the default of Slurm 22.05.
_FANOUT = 4
# What `CommandTimedOut` says.
_TIMED_OUT = re.compile(r"gave no answer within|has not answered for")
# A host list begins with a name, and so never looks like an option.
_NODES = re.compile(r"[A-Za-z0-9][A-Za-z0-9._,\[\]-]*")
_TOO_FEW = re.compile(r"requested (node|topology) configuration is not available", re.IGNORECASE)
# The end of the id of a heterogeneous job's part after the first: ``123+1``.
FURTHER_PART = re.compile(r"\+(?!0$)\d+$")
_ENDED_ALREADY = re.compile(
    r"invalid job id|already completing or completed|job is pending", re.IGNORECASE
)


class CommandFailed(Exception):
    """A Slurm command did not answer; carries its message."""


class CommandTimedOut(CommandFailed):
    """A Slurm command was ended, or not begun, because its time was over."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


# Clients that were started and have not ended.
_running: set[Popen[str]] = set()


def available() -> bool:
    """Check whether this machine has Slurm's client commands."""
    return bool(location("sbatch"))


def location(program: str = "squeue") -> str:
    """Return the path of a command, which tells the clusters of a host apart; empty without one."""
    import shutil

    return shutil.which(program) or ""


def scrubbed_environment() -> dict[str, str]:
    """Return this process's environment without what an outer job or a habit of the user left.

    Drops ``SLURM_*``, ``SBATCH_*``, ``PMI*_*`` and the options of Slurm's clients; keeps
    ``SLURM_CONF``.
    """
    kept = [
        name
        for name in os.environ
        if name in _KEPT or not (name.startswith(_SCRUBBED) or _PMI.match(name))
    ]
    # Another thread may take one away meanwhile.
    return {name: value for name in kept if (value := os.environ.get(name)) is not None}


def is_transient(message: str) -> bool:
    """Check whether Slurm's message reports a pause, after which the same request may succeed.

    A request that ended so may have been carried out.
    """
    return bool(_TRANSIENT.search(message))


def is_unreachable(message: str) -> bool:
    """Check whether Slurm's message reports that no daemon answered."""
    return bool(_UNREACHABLE.search(message)) or is_transient(message)


def is_unanswered(message: str) -> bool:
    """Check whether a command's message is that no daemon answered, or not in time."""
    return is_unreachable(message) or _TIMED_OUT.search(message) is not None


def refusal(
    message: str, *, hint: str | None = None, unreachable: str | None = None
) -> ClusterRefused | ClusterUnreachable:
    """Return the error for a message of Slurm's: refused, or unreachable.

    ``hint`` is for a refusal; ``unreachable`` replaces the message if no daemon answered.
    """
    if _NOT_CONFIGURED.search(message):
        hint = "is this a login node? SLURM_CONF names its slurm.conf; cluster=local needs no Slurm"
        return ClusterUnreachable(
            unreachable or "Slurm's commands find no configuration of a cluster here", hint=hint
        )
    if is_unanswered(message):
        return ClusterUnreachable(unreachable or message, hint="repeat the same command")
    return ClusterRefused(message, hint=hint)


def command(
    argv: Sequence[str],
    *,
    timeout: float | None = None,
    questions: str | None = None,
    with_messages: bool = False,
) -> str:
    """Run one of Slurm's commands and return what it prints; times in it are Unix times.

    ``questions`` is its input, such as lines for an interactive scontrol; ``with_messages`` returns
    after the output what it prints on stderr.

    Raises CommandFailed if it failed, CommandTimedOut if it did not end within ``timeout`` seconds
    (None: `TIMEOUT`) or the time that is left to a reader.
    """
    # `status` imports this module for the type of a job's state, and often asks nothing.
    import subprocess

    wanted = TIMEOUT if timeout is None else timeout
    # Seconds since the epoch need no time zone; without a limit a long `123_[1,3,5…]` is cut.
    environment = {**scrubbed_environment(), "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}
    limit, daemon = patience.current(), patience.daemon_of(argv[0])
    seconds = limit.left(daemon, wanted)
    if not seconds:
        waited = limit.waited(daemon)
        raise CommandTimedOut(f"{daemon} has not answered for {round(waited, 1):g} s", waited)
    with limit.waiting(argv[0], seconds):
        try:
            # Sites wrap the commands: all that is started ends together.
            piped = {} if questions is None else {"stdin": subprocess.PIPE}
            process = host.start_piped(argv, env=environment, **piped)
        except OSError as error:
            raise CommandFailed(f"{argv[0]}: {error.strerror}") from None
        _running.add(process)
        try:
            found = host.answer(process, seconds, questions)
        finally:
            _running.discard(process)
        if found is None:
            limit.unheard(daemon, seconds)
            message = f"{argv[0]} gave no answer within {round(seconds, 1):g} s"
            raise CommandTimedOut(message, seconds)
    output, words = found[0], found[1].strip()
    if process.returncode and is_unreachable(words):
        limit.unheard(daemon)
    else:
        limit.heard(daemon)
    if process.returncode:
        raise CommandFailed(words or f"{argv[0]} ended with exit code {process.returncode}")
    return f"{output}{words}\n" if with_messages else output


@atexit.register
def _end_all() -> None:
    """End the clients that other threads still wait for."""
    for process in list(_running):
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)


def ask(argv: Sequence[str]) -> str:
    """Run a command that only reads, again after a pause of Slurm's; `TIMEOUT` is for all of it.

    Raises CommandFailed as `command` does.
    """
    limit, daemon = patience.current(), patience.daemon_of(argv[0])
    until = time.monotonic() + TIMEOUT
    with limit.waiting(argv[0], limit.left(daemon, TIMEOUT)):
        for pause in _PAUSES:
            try:
                return command(argv, timeout=until - time.monotonic())
            except CommandFailed as error:
                left = limit.left(daemon, until - time.monotonic())
                if not is_transient(str(error)) or left <= pause:
                    raise
                time.sleep(pause)
        return command(argv, timeout=until - time.monotonic())


def answer(argv: Sequence[str], timeout: float = SHORT) -> str:
    """Run a command and return what it prints; empty if it fails."""
    try:
        return command(argv, timeout=timeout)
    except CommandFailed:
        return ""


def problem_of(argv: Sequence[str], timeout: float = 20) -> str | None:
    """Run a command and return Slurm's message if it fails."""
    try:
        command(argv, timeout=timeout)
    except CommandFailed as error:
        return str(error)
    return None


def show(what: str, name: str) -> dict[str, str]:
    """Return the fields of ``scontrol show job`` or ``node``; empty if Slurm does not answer.

    Of a pending array's many records, the first one's.
    """
    known = _NODES.fullmatch(name) if what == "node" else is_slurm_id(name)
    text = answer(["scontrol", "--oneliner", "show", what, name]) if known else ""
    return dict(re.findall(r"(?:^|\s)(\w+)=(\S*)", text.splitlines()[0] if text else ""))


def configuration() -> dict[str, str]:
    """Return the first word of each setting of ``scontrol show config``: ``300`` of ``300 sec``.

    Empty if Slurm does not answer.
    """
    text = answer(["scontrol", "show", "config"])
    return dict(re.findall(r"^(\w+)\s*=\s*(\S+)", text, re.MULTILINE))


def check_cluster() -> None:
    """Raise ClusterRefused if a variable has sbatch go to another cluster than this host's."""
    for name in _CLUSTERS:
        wanted = os.environ.get(name)
        if wanted and wanted != (own := configuration().get("ClusterName", "unknown")):
            raise ClusterRefused(
                f"{name} is {wanted} in this shell, and hpcrun submits to the cluster of this host "
                f"alone, {own}, without that variable",
                hint=f"`unset {name}` to submit here, or submit on a login node of {wanted}",
            )


def job_problem(job: str) -> str | None:
    """Return why ``scontrol show job`` fails; None if slurmctld knows the job."""
    return _no_job(job) or problem_of(["scontrol", "show", "job", job])


def partitions() -> list[str]:
    """Return the partitions that this user can see; empty if Slurm does not answer."""
    text = answer(["sinfo", "--noheader", "--format=%R"])
    return sorted({line.strip() for line in text.splitlines() if line.strip()})


def default_partition() -> str:
    """Return the partition of jobs that name none; empty without one, or without an answer."""
    text = answer(["sinfo", "--noheader", "--format=%P"])
    return next((line.strip()[:-1] for line in text.splitlines() if line.strip()[-1:] == "*"), "")


def nodes(partition: str) -> list[dict[str, str]]:
    """Return ``name``, ``state`` and ``build`` of a partition's nodes; empty without an answer.

    Nodes of one ``build`` have the same CPUs, memory, GPUs and features.
    """
    argv = ["sinfo", "--noheader", "--Node", f"--partition={partition}"]
    text = answer([*argv, "--format=%N|%t|%c|%m|%G|%f"])
    return parse_rows(text, ("name", "state", "build"))


def jobs_by_script() -> dict[str, list[str]]:
    """Return path of the script -> ids of my jobs that were submitted from it, oldest first.

    Raises ClusterUnreachable if Slurm does not answer.
    """
    found: dict[str, set[str]] = {}
    for line in _my_jobs("--states=all", "--format=%i|%F|%o").splitlines():
        full, _, rest = line.partition("|")
        job, _, script = rest.partition("|")
        if not FURTHER_PART.search(full.strip()):
            found.setdefault(script.strip(), set()).add(job.strip())
    return {script: sorted(jobs, key=int) for script, jobs in found.items()}


def queued() -> int:
    """Count my jobs that wait or run, each task of an array for itself.

    Raises ClusterUnreachable if Slurm does not answer.
    """
    return len(_my_jobs("--array", "--format=%i").split())


def _my_jobs(*options: str) -> str:
    try:
        return ask(["squeue", "--me", "--noheader", *options])
    except CommandFailed as error:
        raise ClusterUnreachable(f"squeue: {error}", hint="repeat the same command") from None


def accounting(job: str, fields: Sequence[str]) -> list[dict[str, str]]:
    """Return sacct's rows on all starts of a job and their steps, oldest first; empty on error."""
    if _no_job(job):
        return []
    argv = ["sacct", "--noheader", "--parsable2", "--duplicates", f"--jobs={job}"]
    return parse_rows(answer([*argv, f"--format={','.join(fields)}"]), fields)


def step_ids(job: str) -> dict[str, str]:
    """Return the name of each running step of a job -> ``123.4``; empty without an answer.

    Of steps of one name, one.
    """
    return {name: step for step, name in step_names(job).items()}


def step_names(job: str) -> dict[str, str]:
    """Return ``123.4``, each running step of a job -> its name; empty without an answer."""
    argv = ["squeue", "--noheader", "--steps", f"--jobs={job}", "--format=%i|%j"]
    rows = parse_rows(answer(argv, timeout=20), ("id", "name"))
    return {row["id"].strip(): row["name"].strip() for row in rows}


def signal_step(step: str, name: str) -> bool:
    """Send every task of a step a signal at once; False if Slurm did not do it."""
    return (_no_job(step) or problem_of(["scancel", f"--signal={name}", step])) is None


def cancel(job_ids: Sequence[str]) -> None:
    """Cancel jobs or array elements; those that have ended already are passed over.

    Raises ClusterRefused if Slurm refuses, such as for another user's job, or a job id is none;
    ClusterUnreachable if Slurm does not answer.
    """
    if wrong := next(filter(None, map(_no_job, job_ids)), None):
        raise ClusterRefused(wrong)
    for first in range(0, len(job_ids), 500):
        batch = job_ids[first : first + 500]
        try:
            command(["scancel", *batch])
        except CommandFailed as error:
            lines = str(error).splitlines()
            words = [line for line in lines if line.strip() and not _ENDED_ALREADY.search(line)]
            if words:
                raise refusal(f"scancel {' '.join(batch[:5])}: {' '.join(words)}") from None


def requeue(job: str, timeout: float = 20) -> str | None:
    """Have Slurm put a running job back into the queue; return its message if it does not."""
    return _no_job(job) or problem_of(["scontrol", "requeue", job], timeout)


def broadcast(job: str, source: str, target: str, timeout: float) -> str | None:
    """Send a file to all nodes of a running job, all parts of a heterogeneous one included.

    It is read once, here, and goes down a tree of slurmds. Nothing that is at ``target`` is
    replaced. Returns why it is not on all nodes; on some of them it may be, or a part of it.
    """
    argv = ["sbcast", f"--fanout={_FANOUT}", f"--jobid={job}", source, target]
    problem = _no_job(job) or problem_of(argv, timeout)
    if problem is None:
        return None
    # Each node that fails has a line.
    lines = problem.splitlines()
    more = f" (the first of {len(lines)} lines)" if len(lines) > 1 else ""
    return lines[0].removeprefix("sbcast: error: ") + more


def further_parts(job: str) -> list[str]:
    """Return the raw ids of a heterogeneous job's parts after the first; empty of any other job."""
    ids = show("job", job).get("HetJobIdSet", "")
    try:
        return [str(number) for number in write_out(parse_ranges(ids))][1:] if ids else []
    except ValueError:
        return []


def exclude_nodes(job: str, nodes: str) -> str | None:
    """Have a waiting job not use some nodes; return Slurm's message if it does not."""
    if not _NODES.fullmatch(nodes):
        return f"{nodes!r} is not a list of nodes"
    return update(job, f"ExcNodeList={nodes}")


def update(job: str, change: str) -> str | None:
    """Change a waiting job, as in ``TimeLimit=60``; return Slurm's message if it does not."""
    return _no_job(job) or problem_of(["scontrol", "update", f"jobid={job}", change])


def leaves_too_few(script: str, partition: str, nodes: int, exclude: str) -> bool:
    """Check whether a script is left with too few nodes of its kind, by ``sbatch --test-only``."""
    argv = ["sbatch", "--test-only", f"--partition={partition}", f"--nodes={nodes}"]
    problem = problem_of([*argv, f"--exclude={exclude}", script], SHORT)
    return problem is not None and bool(_TOO_FEW.search(problem))


def _no_job(job: str) -> str | None:
    """Return what is wrong with the id of a job or a step; None if it is one."""
    return None if is_slurm_id(job) else f"{job!r} is not the id of a job"
