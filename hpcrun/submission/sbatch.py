"""Submit one script with sbatch, through submitit, which nothing else imports."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hpcrun.compile.freeze import Compiled
from hpcrun.errors import ClusterRefused, ClusterUnreachable
from hpcrun.slurm import client, parse, patience, refusals
from hpcrun.submission.local import processes
from hpcrun.text import Say, one_line

TIMEOUT = 120
# A job whose dependency can never be satisfied ends instead of waiting for ever.
KILL = "--kill-on-invalid-dep=yes"

_TIMED_OUT = 124

# The submit limits of associations and QOS by their names; MaxJobCount, at which sbatch retries.
_FULL = re.compile(
    r"\w+Submit\w*Limit\w*|Slurm job queue full|Slurm temporarily unable to accept job"
    r"|Batch job submission failed: Resource temporarily unavailable"
)

# What sbatch itself prints of a job; sites' wrappers print more, and numbers in it.
_ANSWER = re.compile(r"Submitted batch job (\d+)(?: on cluster (\S+))?\s*")


class NoAnswer(ClusterUnreachable):
    """sbatch was cut off, and it is unknown whether Slurm took the job."""


class QueueFull(ClusterRefused):
    """Slurm has no room for as many jobs now, but may have later.

    ``reason`` is Slurm's name of the limit, ``is_own`` is True for a limit on this user's jobs
    alone, ``is_retried`` if sbatch itself waits for room, for two minutes: at MaxJobCount.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        found = _FULL.search(message)
        self.reason = found.group() if found else message
        self.is_own = "MaxSubmitJob" in self.reason
        self.is_retried = "Submit" not in self.reason


def submit(
    script: Path,
    dependency: str | None = None,
    exclude: str | None = None,
    *,
    timeout: int = TIMEOUT,
) -> str:
    """Submit a script and return the job's id; sbatch is ended after ``timeout`` seconds.

    ``dependency`` and ``exclude`` are sbatch's options; None leaves them to the script. Raise
    QueueFull if Slurm has no room for the job now, ClusterRefused if it refuses for another reason,
    ClusterUnreachable if it did not take the job, NoAnswer if that is unknown, as the queue could
    not be read either.
    """
    if not client.available():
        raise ClusterUnreachable(
            "Slurm was asked for, and there is no sbatch on PATH",
            hint="run this on a login node of the cluster, or choose `cluster=local`",
        )
    # Slow to import.
    from submitit.core.utils import FailedJobError, FailedSubmissionError
    from submitit.slurm.slurm import SlurmExecutor

    class Rendered(SlurmExecutor):  # type: ignore[misc]
        """Submits our own script; submitit's part of a job never runs."""

        def _make_submission_file_text(self, command: str, uid: str) -> str:
            return script.read_text()

        def _make_submission_command(self, submission_file_path: Path) -> list[str]:
            # By its path the job is found in the queue when the answer gets lost.
            options = [f"--dependency={dependency}", KILL] if dependency else []
            options += [f"--exclude={exclude}"] if exclude else []
            return ["timeout", "--kill-after=5", str(timeout), "sbatch", *options, str(script)]

        @staticmethod
        def _get_job_id_from_submission_command(string: bytes | str) -> str:
            text = string if isinstance(string, str) else string.decode(errors="replace")
            number = _number(text)
            if number is None:
                raise FailedSubmissionError(text)
            return number

    words = io.StringIO()
    try:
        with (
            tempfile.TemporaryDirectory(prefix="hpcrun-") as directory,
            patience.current().waiting("sbatch", timeout),
            _environment(client.scrubbed_environment()),
            contextlib.redirect_stderr(words),
        ):
            return str(Rendered(directory).submit(print, "stub").job_id)
    except FailedJobError as error:
        status = getattr(error.__cause__, "returncode", None)
        message = str(error).strip() or words.getvalue().strip()
        lost = status == _TIMED_OUT or client.is_transient(message)
        message = message or f"sbatch ended with exit code {status}"
    except FailedSubmissionError as error:
        return _look_for(script, str(error), is_taken=True)
    except RuntimeError as error:
        raise ClusterUnreachable(str(error)) from None
    if lost:
        return _look_for(script, message)
    raise _refusal(message)


def is_running(script: Path) -> bool:
    """Check whether an sbatch of this script runs on this machine."""
    return processes.runs("sbatch", str(script))


def with_array_size(compiled: Compiled, say: Say) -> Compiled:
    """Return an experiment of several runs with arrays as long as Slurm takes them, which is asked.

    A profile that names a length has at most that. Slurm's default is said where it is a guess.
    """
    cluster = compiled.cluster
    if compiled.executor.is_here:
        return compiled
    named = cluster["limits"]["max_array_size"]
    size = parse.array_size(client.configuration())
    if size is None:
        if not compiled.names_array_size and len(compiled.runs) >= named:
            say(
                f"MaxArraySize is not known, as `scontrol show config` gave no answer: arrays of "
                f"at most {named:,} runs are made, Slurm's default; the cluster profile can say "
                "limits.max_array_size"
            )
        return compiled
    size = min(size, named) if compiled.names_array_size else size
    limits = {**cluster["limits"], "max_array_size": size}
    return dataclasses.replace(compiled, cluster={**cluster, "limits": limits})


def _number(text: str) -> str | None:
    """Return the number of the one job that sbatch told of; None without one, or of several.

    Raises ClusterRefused if the job went to another cluster.
    """
    told = [found for line in text.splitlines() if (found := _ANSWER.fullmatch(line))]
    if len({found.groups() for found in told}) != 1:
        return None
    number, cluster = told[0].groups()
    if cluster is not None:
        raise ClusterRefused(
            f"sbatch sent the job to another cluster: job {number} is on {cluster}, and hpcrun "
            "asks the one of this host alone",
            hint=f"`scancel --clusters={cluster} {number}`, then submit on a login node of "
            f"{cluster}, or find what sets --clusters (a wrapper around sbatch, job_submit)",
        )
    return str(number)


def _look_for(script: Path, message: str, *, is_taken: bool = False) -> str:
    """Return the job that Slurm made although its answer got lost, or cannot be read.

    In the second case (``is_taken``) sbatch ended well, so there is a job, or was.
    """
    lost = f"sbatch's answer got lost ({message})"
    if is_taken:
        lost = f"sbatch's answer names no job, or several ({one_line(message)[:200] or 'nothing'})"
    try:
        jobs = client.jobs_by_script().get(str(script))
    except ClusterUnreachable as error:
        raise NoAnswer(
            f"{lost}, and {error.message}: the job may be queued",
            hint="when the cluster is back, `hpcrun status` and `squeue --me` tell",
        ) from None
    if jobs:
        return jobs[-1]
    if is_taken:
        raise NoAnswer(
            f"{lost}, and no job of this script is in the queue: it may be there by another name",
            hint="`squeue --me` lists your jobs; a wrapper around sbatch should print what it "
            "prints: `Submitted batch job N`",
        )
    if _FULL.search(message):
        raise _refusal(message)
    raise ClusterUnreachable(
        f"Slurm did not take the job: {message}", hint="repeat the same command"
    )


def _refusal(message: str) -> ClusterRefused | ClusterUnreachable:
    words = re.sub(r"^sbatch: (?:error: )?", "", message, flags=re.MULTILINE)
    if _FULL.search(words):
        return QueueFull(f"Slurm refused the job: {words}", hint=f"look at {refusals.LIMITS}")
    if re.search("configuration source", words):
        # Slurm's packages are there, and no slurm.conf.
        return ClusterUnreachable(
            f"Slurm cannot be reached: {words}",
            hint="this machine belongs to no cluster: submit from a login node of one, or add "
            "`cluster=local` for runs on this machine",
        )
    advice = refusals.where_to_look(words)
    if advice == refusals.PARTITION and (names := client.partitions()):
        advice += f"; accepted are {', '.join(names)}"
    return client.refusal(
        f"Slurm refused the job: {words}",
        hint=f"look at {advice}" if advice else None,
        unreachable=f"Slurm cannot be reached: {words}",
    )


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Make ``variables`` the whole environment; submitit leaves no other way."""
    saved = dict(os.environ)
    os.environ.clear()
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(saved)
