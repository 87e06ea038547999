"""A job whose supervisor is gone: whoever is left has it requeued."""

from __future__ import annotations

import argparse
import time

from hpcrun import ledger, records, recovery
from hpcrun.cluster import own_job
from hpcrun.layout import SubmissionPaths
from hpcrun.plan import RunPlan
from hpcrun.recovery import Policy
from hpcrun.run.tell import say

# Agents act one after another, and the first that succeeds is the last.
_TURN = 3.0
_FOREVER = 86_400.0


class Orphan:
    """What an agent does about it.

    Parameters
    ----------
    arguments
        Those of the agent: ``job_id`` (None where whoever started the supervisor looks after it),
        ``restarts`` (SLURM_RESTART_COUNT of this start of the job), ``attempt``, ``node``,
        ``node_rank``, ``batch_node``.

    Attributes
    ----------
    attempt
        The newest attempt of this start of the job.
    """

    def __init__(
        self, arguments: argparse.Namespace, submission: SubmissionPaths, run: RunPlan
    ) -> None:
        self._arguments, self._run = arguments, run
        self.attempt: int = arguments.attempt
        self._paths = submission.experiment.run(run.number)
        self._began = time.time()

    def requeue(self, *, silent: bool) -> bool:
        """Have the job start again, unless its run is over or somebody was quicker.

        The next supervisor records how this attempt ended, and stops the run there if its budget
        is spent. A controller that does not answer is asked for as long as Slurm lets this step
        live.

        Parameters
        ----------
        silent
            The supervisor's node sent no last word either, and must not be used again.

        Returns
        -------
        bool
            Whether the job will start again.
        """
        mine = self._arguments
        if mine.job_id is None or not Policy.of(self._run.spec).requeue:
            return False
        time.sleep(mine.node_rank * _TURN)
        lost = [mine.batch_node] if silent and mine.batch_node != mine.node else []
        if self._is_ours():
            note = {"node": mine.node, "time": time.time(), "lost_nodes": lost}
            path = self._paths.attempt(self.attempt).orphaned
            records.patiently(lambda: records.write_json(path, note), say, path.name)
        return own_job.requeue(
            mine.job_id,
            [*dict.fromkeys([*recovery.suspects(ledger.read(self._paths)), *lost])],
            kept=self._run.spec["resources"].get("exclude"),
            lost=lost,
            between=self._is_ours,
            patience=_FOREVER,
            say=say,
        )

    def _is_settled(self) -> bool:
        """Whether the supervisor has decided before it went that the run does not go on."""
        return any(
            (attempt.decided or {}).get("action") not in (None, *recovery.GOES_ON)
            for attempt in ledger.read(self._paths)
            if attempt.number == self.attempt
        )

    def _is_ours(self) -> bool:
        """Whether nobody has ended, cancelled or restarted the job since."""
        mine = self._arguments
        if ledger.intent(self._paths) is not None or self._is_settled():
            return False
        if self._paths.attempt(self.attempt + 1).directory.exists():
            return False
        facts = own_job.facts(mine.job_id, self._began)
        return facts.state != "CANCELLED" and facts.restarts in (None, mine.restarts)
