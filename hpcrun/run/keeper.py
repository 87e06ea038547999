"""The batch script's process: runs the supervisor, requeues if it is killed.

The job lives as long as this process. If the supervisor itself were the batch script, Slurm would
end the whole job, agents included, within milliseconds of its death.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

from hpcrun.errors import EXIT_FAILED, EXIT_SAVED
from hpcrun.policy import recovery
from hpcrun.run.job.takeover import Takeover
from hpcrun.run.protocol import stop_flag
from hpcrun.run.protocol.output import say
from hpcrun.slurm import job
from hpcrun.slurm.allocation import Allocation
from hpcrun.slurm.queue import JobMark
from hpcrun.state import ledger, permissions, plan_file
from hpcrun.state.layout import SubmissionPaths
from hpcrun.state.plan import RunPlan
from hpcrun.text import signal_name

# Starts of a job after which one that is killed before its attempt stays so.
_MOST_STARTS = 10


def main() -> None:
    """Entry point of ``python -m hpcrun.run.keeper``, with the supervisor's arguments."""
    parser = argparse.ArgumentParser(prog="hpcrun.run.keeper")
    parser.add_argument("submission", type=Path)
    parser.add_argument("--run", type=int, required=True)
    arguments = parser.parse_args()
    supervisor = subprocess.Popen([sys.executable, "-m", "hpcrun.run.supervisor", *sys.argv[1:]])

    def forward(number: int, _frame: FrameType | None) -> None:
        supervisor.send_signal(number)

    for number in (*stop_flag.SIGNALS, signal.SIGINT):
        signal.signal(number, forward)
    code = supervisor.wait()
    if code:
        code = replace(SubmissionPaths(arguments.submission), arguments.run, code)
    sys.exit(job.final_code(code, say))


def replace(submission: SubmissionPaths, number: int, code: int) -> int:
    """Have the job requeued in place of a supervisor that could not; return the job's exit code.

    ``code`` is the supervisor's, negative for the signal that killed it. That may be the TERM of a
    requeue that it had asked for itself.
    """
    allocation = Allocation.current()
    plan = plan_file.read(submission.plan)
    permissions.use_profile(plan.cluster)
    run = plan.run(number)
    attempts = [
        attempt
        for attempt in ledger.read(submission.experiment.run(number))
        if attempt.job_id == allocation.name
        and attempt.started.get("restart_count") == allocation.restart_count
    ]
    if any(ledger.INSTEAD_OF in attempt.started for attempt in attempts):
        say("another node leads the job, which lives as long as this process")
        for stop in (*stop_flag.SIGNALS, signal.SIGINT):
            signal.signal(stop, signal.SIG_DFL)
        while True:
            signal.pause()
    # Only the supervisor could have carried a restart out.
    decided = bool(attempts) and attempts[-1].action not in (None, recovery.RESTART)
    if not decided:
        how = f"by {signal_name(-code)}" if code < 0 else f"with exit code {code}"
        say(f"the supervisor ended {how} and without a decision")
    if code > 0 and (decided or not attempts):
        return code
    if not attempts:
        return _again(allocation, submission, run) if code < 0 else EXIT_FAILED
    mine = argparse.Namespace(
        job_id=allocation.name,
        restarts=allocation.restart_count,
        attempt=attempts[-1].number,
        node=os.environ.get("SLURMD_NODENAME", allocation.nodes[0]),
        node_rank=0,
        batch_node=allocation.nodes[0],
        supervisor=None,
    )
    takeover = Takeover(mine, submission, run, plan.cluster, None)
    return EXIT_SAVED if takeover.requeue(silent=False) else EXIT_FAILED


def _again(allocation: Allocation, submission: SubmissionPaths, run: RunPlan) -> int:
    """Have a job requeued that was killed before its first attempt; return its exit code."""
    paths = submission.experiment.run(run.number)
    if not run.recovery.requeue or allocation.restart_count >= _MOST_STARTS:
        say("`hpcrun requeue` starts it again")
        return EXIT_FAILED

    def still_wanted() -> bool:
        return ledger.intent(paths) is None

    mark = JobMark(submission.directory)
    again = job.requeue(allocation.name, mark=mark, between=still_wanted, say=say)
    return EXIT_SAVED if again else EXIT_FAILED


if __name__ == "__main__":
    main()
