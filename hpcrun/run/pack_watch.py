"""A process on another node of a job that runs share, for the case that the job's first is lost.

The job outlives lost nodes (sbatch's ``--no-kill``), so nobody would be in charge without
`hpcrun.run.packed_job`, which the batch host has. Whoever watches has the job requeued then. That
the batch host is lost, Slurm says: it is no node of the job any more.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from hpcrun import slurm_state
from hpcrun.errors import HpcrunError
from hpcrun.run.job.takeover import note_orphaned
from hpcrun.run.protocol.output import say
from hpcrun.slurm import client, job, suspect_exclusion
from hpcrun.slurm.allocation import Allocation
from hpcrun.slurm.hostlist import expand
from hpcrun.slurm.queue import JobMark
from hpcrun.state import journal, ledger, permissions, plan_file
from hpcrun.state.layout import RunPaths, SubmissionPaths
from hpcrun.text import whole_number

# Seconds between two questions to Slurm, and between the turns of several that watch.
_LOOK_EVERY, _TURN = 30.0, 5.0
_FOREVER = 86_400.0
# What `hpcrun.run.packed_job` writes to those that watch as it ends.
OVER = b"over\n"


def note_lost(paths: RunPaths, nodes: Sequence[str], lost: Sequence[str], job_id: str) -> None:
    """Record the lost nodes as the end of a run's attempt, if it is open and was on one of them.

    ``nodes`` are those of the run; the next supervisor concludes the attempt from that.
    """
    attempts, own = ledger.read(paths), [node for node in nodes if node in lost]
    if own and attempts and attempts[-1].ended is None and attempts[-1].job_id == job_id:
        note_orphaned(paths.attempt(attempts[-1].number), os.uname().nodename, own)


class PackWatch:
    """One process that watches over a job of several ``nodes``."""

    def __init__(self, submission: SubmissionPaths, host: str, nodes: int) -> None:
        self._submission, self._host, self._nodes = submission, host, nodes
        self._allocation = Allocation.current()
        self._turn = whole_number(os.environ.get("SLURM_NODEID", "")) or 0

    def watch(self) -> None:
        """Wait until the job is over, or requeue it without its batch host."""
        while not _is_over(_LOOK_EVERY):
            if self.is_orphaned():
                # Slurm ends this process with the others as it requeues the job.
                for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
                    signal.signal(number, signal.SIG_IGN)
                time.sleep(self._turn * _TURN)
                self._requeue()
                return

    def is_orphaned(self) -> bool:
        """Check whether this start of the job goes on without its batch host."""
        shown = client.show("job", self._allocation.name)
        if shown.get("JobState") != slurm_state.RUNNING:
            return False
        if whole_number(shown.get("Restarts", "")) != self._allocation.restart_count:
            return False
        try:
            return self._host not in expand(shown["NodeList"])
        except (KeyError, HpcrunError):
            return False

    def _requeue(self) -> None:
        if not self.is_orphaned():
            return
        # srun, which was on the batch host, takes in no more words.
        with self._submission.batch_log(self._allocation.name).open("ab", buffering=0) as log:
            os.dup2(log.fileno(), sys.stdout.fileno())
            os.dup2(log.fileno(), sys.stderr.fileno())
        say(f"the batch host {self._host} is lost, and with it the process that led the job")
        job_id, experiment = self._allocation.name, self._submission.experiment
        plan = plan_file.read(self._submission.plan)
        permissions.use_profile(plan.cluster)
        jobs = journal.read(self._submission)
        mine = sorted(number for number, one in jobs.items() if one.job_id == job_id)
        for number in mine:
            paths = experiment.run(number)
            try:
                attempts = ledger.read(paths)
                nodes = attempts[-1].started.get("nodes") or () if attempts else ()
                note_lost(paths, nodes, [self._host], job_id)
            except HpcrunError as error:
                say(error.message)
        first = plan.run(mine[0])
        place = plan.cluster, experiment.root, first.resources, self._nodes
        job.requeue(
            job_id,
            suspect_exclusion.beside([self._host], *place),
            mark=JobMark(self._submission.directory),
            kept=first.resources.exclude,
            needed=self._nodes,
            lost=[self._host],
            between=self.is_orphaned,
            patience=_FOREVER,
            say=say,
        )


def _is_over(seconds: float) -> bool:
    """Wait some seconds, and check whether `hpcrun.run.packed_job` said that the job is over.

    It says nothing where it was lost, even if its end of the connection is closed.
    """
    began, said = time.monotonic(), b""
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    if ready:
        said = os.read(sys.stdin.fileno(), len(OVER))
    if said.startswith(OVER):
        return True
    if ready:
        time.sleep(max(0.0, seconds - (time.monotonic() - began)))
    return False


def main(words: Sequence[str] | None = None) -> None:
    """Entry point of ``python -m hpcrun.run.pack_watch``."""
    parser = argparse.ArgumentParser(prog="hpcrun.run.pack_watch")
    parser.add_argument("submission", type=Path)
    parser.add_argument("--host", required=True, help="the job's first node")
    parser.add_argument("--nodes", type=int, required=True, help="how many the job has")
    given = parser.parse_args(words)
    PackWatch(SubmissionPaths(given.submission), given.host, given.nodes).watch()


if __name__ == "__main__":
    main()
