"""The one module that talks to Slurm from outside a job: what is it doing, and make it stop.

Standard library only, because it is also imported on compute nodes from the frozen ``hpcrun.zip``.
Answers are asked for in named fields with a separator (``--json`` changes its schema with every
release) and read by the pure functions of `hpcrun.slurm.parse`. Questions are batched: one
``squeue`` for all jobs and one ``sacct`` for those that ``squeue`` no longer tells the end of.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Collection, Iterable, Sequence

from hpcrun.errors import ClusterRefused, ClusterUnreachable
from hpcrun.slurm import parse
from hpcrun.slurm.parse import UNKNOWN, JobState

__all__ = [
    "UNKNOWN",
    "CommandFailed",
    "JobState",
    "JobStates",
    "available",
    "cancel",
    "command",
    "configuration",
    "is_transient",
    "is_unreachable",
    "jobs_by_script",
    "partitions",
    "query",
    "queued",
    "scrubbed_environment",
    "show",
]

TIMEOUT = 60.0
_PAUSES = (1.0, 3.0)

_SCRUBBED = ("SLURM_", "SBATCH_", "SALLOC_", "SRUN_", "SQUEUE_", "SACCT_", "SCANCEL_", "SINFO_")
_KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER")
_PMI = re.compile(r"PMI\d?X?_")

_TRANSIENT = re.compile(r"timed out|temporarily un|try again|connection reset", re.IGNORECASE)
_UNREACHABLE = re.compile(
    r"unable to contact|connection refused|connect failure|unable to connect|no route to host"
    r"|communication connection failure|zero bytes were transmitted|could not establish a config"
    r"|unable to resolve|munge",
    re.IGNORECASE,
)
_NO_ACCOUNTING = re.compile(r"accounting storage is disabled", re.IGNORECASE)
_NO_SUCH_JOB = re.compile(r"invalid job id", re.IGNORECASE)


class JobStates(dict[str, JobState]):
    """What Slurm says of jobs, by their ids; a job that nothing is known of is absent.

    Attributes
    ----------
    problems
        What kept the answer from being whole, such as a slurmdbd that does not answer.
    controller_is_down
        Whether slurmctld, which alone knows what lives now, did not answer.
    accounting
        Whether the cluster keeps accounts, as far as is known.
    """

    def __init__(
        self,
        states: dict[str, JobState],
        problems: Sequence[str] = (),
        *,
        controller_is_down: bool = False,
        accounting: bool = True,
    ) -> None:
        super().__init__(states)
        self.accounting = accounting
        self.problems = tuple(problems)
        self.controller_is_down = controller_is_down

    @property
    def partial(self) -> bool:
        """Whether a part of Slurm did not answer, so that absence proves nothing."""
        return bool(self.problems)


class CommandFailed(Exception):
    """A Slurm command did not answer; carries its words."""


def available() -> bool:
    """Whether this machine has Slurm's client commands."""
    return shutil.which("sbatch") is not None


def scrubbed_environment() -> dict[str, str]:
    """This process's environment without what an outer allocation or a habit of the user left.

    Drops ``SLURM_*``, ``SBATCH_*``, ``PMI*_*`` and the options of Slurm's clients; keeps
    ``SLURM_CONF``.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT or not (name.startswith(_SCRUBBED) or _PMI.match(name))
    }


def is_transient(message: str) -> bool:
    """Whether Slurm's words tell of a pause, after which the same question may be answered.

    A request that ended so may have been carried out.
    """
    return bool(_TRANSIENT.search(message))


def is_unreachable(message: str) -> bool:
    """Whether Slurm's words tell that nobody was there to ask."""
    return bool(_UNREACHABLE.search(message)) or is_transient(message)


def query(
    job_ids: Iterable[str],
    *,
    settled: Collection[str] = (),
    accounting: bool = True,
    patience: float | None = None,
) -> JobStates:
    """Ask for the states of jobs, with at most one ``squeue`` and one ``sacct``.

    Parameters
    ----------
    job_ids
        ``123`` (a whole array too: its elements are returned) or ``123_4``.
    settled
        Those whose end is known: accounting is not asked about them.
    accounting
        Whether it is asked at all.
    patience
        Seconds for each command, which is not repeated then; None for as long as Slurm may need.

    Raises
    ------
    ClusterUnreachable
        Neither slurmctld nor slurmdbd answers.
    """
    wanted = {job_id for job_id in job_ids if job_id and job_id[0].isdigit()}
    if not wanted:
        return JobStates({})
    problems: list[str] = []
    found: dict[str, JobState] = {}
    controller = True
    try:
        found = _ask_squeue(wanted, patience)
    except CommandFailed as error:
        controller = False
        problems.append(f"slurmctld does not answer: {error}")
    unsettled = {job_id for job_id in wanted if not _settled(job_id, found)}
    unsettled.difference_update(settled)
    if unsettled and (accounting or not controller):
        try:
            past = _ask_sacct(unsettled, patience)
        except CommandFailed as error:
            if not controller:
                raise ClusterUnreachable(
                    f"Slurm does not answer: {'; '.join([*problems, f'sacct: {error}'])}",
                    hint="repeat the same command when the cluster is back",
                ) from None
            accounting = not _NO_ACCOUNTING.search(str(error))
            if accounting:
                problems.append(f"slurmdbd does not answer: {error}")
        else:
            found = parse.merge(found, past, controller_answered=controller)
    return JobStates(
        _select(found, wanted),
        problems,
        controller_is_down=not controller,
        accounting=accounting,
    )


def cancel(job_ids: Sequence[str]) -> None:
    """Cancel jobs or array elements; those that have ended already are passed over.

    Raises
    ------
    ClusterRefused
        Slurm says no, such as for another user's job.
    ClusterUnreachable
        Slurm does not answer.
    """
    if not job_ids:
        return
    for first in range(0, len(job_ids), 500):
        batch = job_ids[first : first + 500]
        try:
            command(["scancel", *batch])
        except CommandFailed as error:
            words = [line for line in str(error).splitlines() if not _over(line)]
            if not words:
                continue
            message = f"scancel {' '.join(batch[:5])}: {' '.join(words)}"
            if is_unreachable(message):
                raise ClusterUnreachable(message, hint="repeat the same command") from None
            raise ClusterRefused(message) from None


def partitions() -> list[str]:
    """Names of the partitions that this user can see; empty when Slurm does not say."""
    try:
        answer = _ask(["sinfo", "--noheader", "--format=%R"])
    except CommandFailed:
        return []
    return sorted({line.strip() for line in answer.splitlines() if line.strip()})


def jobs_by_script() -> dict[str, list[str]]:
    """Path of the script -> ids of my jobs that were submitted from it, oldest first.

    Raises
    ------
    ClusterUnreachable
        Slurm does not answer, so that nothing can be said.
    """
    try:
        answer = _ask(["squeue", "--me", "--noheader", "--states=all", "--format=%F|%o"])
    except CommandFailed as error:
        raise ClusterUnreachable(f"squeue: {error}", hint="repeat the same command") from None
    found: dict[str, set[str]] = {}
    for line in answer.splitlines():
        job, _, script = line.partition("|")
        found.setdefault(script.strip(), set()).add(job.strip())
    return {script: sorted(jobs, key=int) for script, jobs in found.items()}


def queued() -> int:
    """How many of my jobs wait or run, each task of an array for itself.

    Raises
    ------
    ClusterUnreachable
        Slurm does not answer.
    """
    try:
        answer = _ask(["squeue", "--me", "--noheader", "--array", "--format=%i"])
    except CommandFailed as error:
        raise ClusterUnreachable(f"squeue: {error}", hint="repeat the same command") from None
    return len(answer.split())


def _ask_squeue(wanted: set[str], patience: float | None = None) -> dict[str, JobState]:
    jobs = ",".join(sorted({job_id.partition("_")[0] for job_id in wanted}, key=int))
    try:
        answer = _ask(
            [
                *("squeue", "--noheader", "--states=all", f"--jobs={jobs}"),
                f"--format={parse.SQUEUE_FORMAT}",
            ],
            patience,
        )
    except CommandFailed as error:
        if _NO_SUCH_JOB.search(str(error)):
            return {}
        raise
    return parse.parse_squeue(answer)


def _ask_sacct(wanted: set[str], patience: float | None = None) -> dict[str, JobState]:
    jobs = ",".join(sorted({job_id.partition("_")[0] for job_id in wanted}, key=int))
    return parse.parse_sacct(
        _ask(
            [
                *("sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={jobs}"),
                f"--format={','.join(parse.SACCT_FIELDS)}",
            ],
            patience,
        )
    )


def _settled(job_id: str, found: dict[str, JobState]) -> bool:
    """Whether squeue alone tells enough: the job is there and has not ended."""
    if "_" in job_id:
        return job_id in found and not found[job_id].ended
    mine = [state for key, state in found.items() if key.partition("_")[0] == job_id]
    return bool(mine) and not any(state.ended for state in mine)


def _select(found: dict[str, JobState], wanted: set[str]) -> dict[str, JobState]:
    return {
        key: state
        for key, state in found.items()
        if key in wanted or key.partition("_")[0] in wanted
    }


def _over(line: str) -> bool:
    return not line.strip() or bool(
        re.search(r"invalid job id|already completing or completed|job is pending", line, re.I)
    )


def _ask(argv: Sequence[str], patience: float | None = None) -> str:
    """Run a command that only reads; a pause of Slurm's is waited out, without ``patience``."""
    if patience is not None:
        return command(argv, timeout=patience)
    for pause in _PAUSES:
        try:
            return command(argv)
        except CommandFailed as error:
            if not is_transient(str(error)):
                raise
            time.sleep(pause)
    return command(argv)


def command(argv: Sequence[str], *, timeout: float | None = None) -> str:
    """What one of Slurm's commands prints; times in it are seconds since the epoch.

    Raises
    ------
    CommandFailed
        It ended badly, or not within ``timeout`` seconds (None: `TIMEOUT`).
    """
    timeout = TIMEOUT if timeout is None else timeout
    # Seconds since the epoch need no time zone; without a limit a long `123_[1,3,5…]` is cut.
    environment = {**scrubbed_environment(), "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}
    try:
        answer = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CommandFailed(f"{argv[0]} gave no answer within {timeout:g} s") from None
    except OSError as error:
        raise CommandFailed(f"{argv[0]}: {error.strerror}") from None
    if answer.returncode:
        words = answer.stderr.strip() or f"{argv[0]} ended with exit code {answer.returncode}"
        raise CommandFailed(words)
    return answer.stdout


def show(what: str, name: str, *, timeout: float | None = None) -> dict[str, str]:
    """The fields of ``scontrol show job`` or ``node``; none when Slurm does not answer.

    Of a pending array's many records, the first one's.
    """
    try:
        text = command(["scontrol", "--oneliner", "show", what, name], timeout=timeout)
    except CommandFailed:
        return {}
    return dict(re.findall(r"(?:^|\s)(\w+)=(\S*)", text.splitlines()[0] if text else ""))


def configuration(*, timeout: float | None = None) -> dict[str, str]:
    """The first word of each setting of ``scontrol show config``; none when Slurm does not answer.

    Of ``300 sec``, ``300``.
    """
    try:
        text = command(["scontrol", "show", "config"], timeout=timeout)
    except CommandFailed:
        return {}
    return dict(re.findall(r"^(\w+)\s*=\s*(\S+)", text, re.MULTILINE))
