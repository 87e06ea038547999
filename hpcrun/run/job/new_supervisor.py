"""A new supervisor in the same allocation, where the batch host fell silent with the old one.

Slurm lets a job live whose batch host is lost (sbatch's ``--no-kill``), and starts steps in it from
any of its nodes; but only the end of the batch script ends it. So the node that has the new
supervisor ends the job after the run: it has a finished one requeued, whose next start finds that
and completes (its nodes are those of the job: it cannot be told to ask for fewer before the last of
its processes is gone), and cancels any other.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from hpcrun.errors import EXIT_SAVED, HpcrunError
from hpcrun.host import start_logged
from hpcrun.policy import frameworks, recovery
from hpcrun.run.job import fewer_nodes
from hpcrun.run.node.rank_processes import FORMER_VARIABLE, START_VARIABLE
from hpcrun.run.protocol import stop_flag
from hpcrun.run.protocol.output import say
from hpcrun.slurm import client, job
from hpcrun.slurm.queue import JobMark
from hpcrun.state import ledger
from hpcrun.state.layout import RunPaths, SubmissionPaths
from hpcrun.state.ledger import Attempt
from hpcrun.state.plan import RunPlan

# Of Slurm's variables, those of the job; others are the step's that the agent is in.
_OF_JOB = (
    *("SLURM_JOB_", "SLURM_JOBID", "SLURM_ARRAY_", "SLURM_SUBMIT_", "SLURM_RESTART_COUNT"),
    *("SLURM_CONF", "SLURM_CLUSTER_NAME", "SLURMD_NODENAME"),
)
# Seconds within which a new supervisor begins its first attempt.
_BEGINS = 60.0
_LOOK_EVERY = 2.0


def can_lead(run: RunPlan, paths: RunPaths, attempt: int, lost: str) -> bool:
    """Check whether the run may go on in its allocation without the batch host ``lost``.

    What starts processes on the batch host itself may not, nor a run with roles.
    """
    one_per_run = frameworks.of(run.entry.framework).one_per_run
    if not run.outlives_nodes or run.role_plans or one_per_run or run.spec.get("batch_script"):
        return False
    if not run.recovery.in_place:
        return False
    attempts = ledger.read(paths)
    if any(one.action == recovery.REQUEUE for one in attempts if one.number == attempt):
        return False
    left = nodes_left(attempts, lost)
    return len(left) >= run.nodes or fewer_nodes.to_fit(run, paths, len(left)) is not None


def nodes_left(attempts: Sequence[Attempt], lost: str) -> list[str]:
    """Return the nodes that the newest attempt could use, but for ``lost``."""
    started = next((one.started for one in attempts[::-1] if one.started), None)
    if started is None:
        return []
    known = {*started["nodes"], *started.get("spare_nodes", ())}
    return sorted(known - {lost})


def claim(paths: RunPaths, attempt: int) -> Path | None:
    """Take the place of the supervisor that began an attempt; None if another node has it.

    Returns a directory, whose removal gives it back.
    """
    attempts = ledger.read(paths)
    mine = next((one for one in attempts if one.number == attempt), Attempt(attempt))
    same = (one.number for one in attempts if ledger.same_supervisor(one, mine))
    place = paths.attempt(min(same, default=attempt)).new_supervisor
    try:
        place.mkdir()
    except FileExistsError:
        return None
    return place


def has_begun(paths: RunPaths, attempt: int, lost: str, within: float | None = None) -> bool:
    """Wait some seconds for a later attempt, of a new supervisor in place of that on ``lost``."""
    deadline = time.monotonic() + (_BEGINS if within is None else within)
    while time.monotonic() < deadline:
        later = (one.started for one in ledger.read(paths) if one.number > attempt)
        if any(started.get(ledger.INSTEAD_OF) == lost for started in later):
            return True
        time.sleep(_LOOK_EVERY)
    return False


def lead(submission: SubmissionPaths, run: RunPlan, job_id: str, lost: str) -> None:
    """Run the new supervisor on this node until it ends, and end the job.

    Where it was killed, its own agents have the job requeued.
    """
    log = submission.batch_log(job_id)
    argv = [sys.executable, "-m", "hpcrun.run.supervisor", str(submission.directory)]
    argv += ["--run", str(run.number), "--instead-of", lost]
    supervisor = start_logged(argv, log, env=_variables(os.environ))

    def forward(number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            supervisor.send_signal(number)

    for number in stop_flag.SIGNALS:
        signal.signal(number, forward)
    code = supervisor.wait()
    say(f"the new supervisor ended with exit code {code}")
    if code >= 0 and code != EXIT_SAVED:
        _end_job(submission, run, job_id, lost)


def _variables(environment: Mapping[str, str]) -> dict[str, str]:
    kept = {
        name: value
        for name, value in environment.items()
        if not name.startswith("SLURM") or name.startswith(_OF_JOB)
    }
    return {**kept, FORMER_VARIABLE: environment.get(START_VARIABLE, "")}


def _end_job(submission: SubmissionPaths, run: RunPlan, job_id: str, lost: str) -> None:
    paths = submission.experiment.run(run.number)
    if ledger.intent(paths) in ledger.GOOD_ENDS:
        mark = JobMark(submission.directory)
        if job.requeue(job_id, mark=mark, lost=[lost], say=say):
            return
    try:
        client.cancel([job_id])
    except HpcrunError as error:
        say(f"the job is not ended: {error}; `scancel {job_id}` does")
