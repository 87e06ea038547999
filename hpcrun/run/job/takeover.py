"""What becomes of a job whose supervisor is gone, by its agents or keeper."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hpcrun import slurm_state
from hpcrun.policy import recovery
from hpcrun.policy.causes import JobFacts
from hpcrun.run.job import new_supervisor
from hpcrun.run.protocol.channel import Channel, RefusedError
from hpcrun.run.protocol.job_secret import JobSecret
from hpcrun.run.protocol.output import say
from hpcrun.slurm import job, suspect_exclusion
from hpcrun.slurm.queue import JobMark
from hpcrun.state import files, ledger
from hpcrun.state.layout import AttemptPaths, SubmissionPaths
from hpcrun.state.plan import RunPlan

# Seconds between agents, which act one after another until one succeeds.
_TURN = 3.0
_FOREVER = 86_400.0
# Seconds for which a living supervisor may be busy with Slurm.
_PATIENCE = 20.0
# And to connect: TCP asks twice.
_REACH = 1.5


def note_orphaned(attempt: AttemptPaths, node: str, lost: Sequence[str]) -> None:
    """Record that an attempt's supervisor is gone, with the ``lost`` nodes, as ``node`` sees it."""
    note = {"node": node, "time": time.time(), "lost_nodes": [*lost]}
    path = attempt.orphaned
    files.patiently(lambda: files.write_json(path, note), say, path.name)


class Takeover:
    """One node's part in what becomes of an orphaned job.

    ``arguments`` are the agent's: ``job_id`` (None where the process that started the supervisor
    looks after it), ``restarts`` (SLURM_RESTART_COUNT), ``attempt`` (the newest of this start of
    the job), ``node``, ``node_rank``, ``batch_node``, ``supervisor`` (``HOST:PORT``; None if gone).
    ``cluster`` is the profile of the plan; ``secret`` is the job's, None where the supervisor is
    gone; ``began`` is a time in this start of the job, else now.
    """

    def __init__(
        self,
        arguments: argparse.Namespace,
        submission: SubmissionPaths,
        run: RunPlan,
        cluster: Mapping[str, Any],
        secret: JobSecret | None,
        began: float | None = None,
    ) -> None:
        self._arguments, self._run, self._secret = arguments, run, secret
        self._cluster = cluster
        self._submission, self._mark = submission, JobMark(submission.directory)
        self.attempt: int = arguments.attempt
        self._paths = submission.experiment.run(run.number)
        self._began = began or time.time()

    def go_on(self, release: Callable[[], None], *, silent: bool) -> bool:
        """Have the job go on without its supervisor: under a new one, or by a requeue.

        ``silent`` is that of `requeue`; ``release`` frees what this agent has of the node. Returns
        whether a new supervisor of another node has begun.
        """
        mine, lost = self._arguments, self._arguments.batch_node
        may_lead = silent and mine.job_id is not None and mine.node != lost
        if may_lead and new_supervisor.can_lead(self._run, self._paths, self.attempt, lost):
            # The batch host is the first of the nodes.
            turn = max(0, mine.node_rank - 1) * _TURN
            place = self._paths, self.attempt, lost
            if new_supervisor.has_begun(*place, turn):
                release()
                return True
            claim = new_supervisor.claim(self._paths, self.attempt)
            if claim is None:
                release()
                if new_supervisor.has_begun(*place):
                    return True
            elif self._is_ours():
                self._note([lost])
                say(f"node {mine.node} leads the job in place of {lost}")
                release()
                new_supervisor.lead(self._submission, self._run, mine.job_id, lost)
                return False
            else:
                claim.rmdir()
        self.requeue(silent=silent)
        return False

    def requeue(self, *, silent: bool) -> bool:
        """Have the job start again, unless its run is over or another agent was quicker.

        The next supervisor records how this attempt ended, and stops the run if its budget is
        spent. A controller that is down is asked for as long as Slurm lets this step live.

        With ``silent``, the supervisor's node fell silent and must not be used again. Returns
        whether the job will start again.
        """
        mine = self._arguments
        if mine.job_id is None or not self._run.recovery.requeue:
            return False
        time.sleep(mine.node_rank * _TURN)
        lost = [mine.batch_node] if silent and mine.batch_node != mine.node else []
        if self._is_ours():
            self._note(lost)
        blamed = [*dict.fromkeys([*recovery.suspects(ledger.read(self._paths)), *lost])]
        place = self._cluster, self._submission.experiment.root
        wanted = self._run.resources, self._run.shared_nodes
        return job.requeue(
            mine.job_id,
            suspect_exclusion.beside(blamed, *place, *wanted),
            mark=self._mark,
            kept=self._run.resources.exclude,
            needed=self._run.shared_nodes,
            lost=lost,
            between=self._is_ours,
            patience=_FOREVER,
            say=say,
        )

    def _note(self, lost: Sequence[str]) -> None:
        note_orphaned(self._paths.attempt(self.attempt), self._arguments.node, lost)

    def _is_settled(self) -> bool:
        """Check whether the supervisor had decided that the run does not go on."""
        actions = [one.action for one in ledger.read(self._paths) if one.number == self.attempt]
        return any(action not in (None, *recovery.GOES_ON) for action in actions)

    def _is_ours(self) -> bool:
        """Check that nobody has ended, cancelled or restarted the job, and that nobody leads it.

        While Slurm does not answer, it may be this node that is cut off from the supervisor too;
        so the supervisor is asked last.
        """
        mine = self._arguments
        facts = JobFacts()
        while not facts.state:
            if ledger.intent(self._paths) or self._has_successor() or self._is_settled():
                return False
            facts = job.facts(mine.job_id, self._began, restarts=mine.restarts)
            if not facts.state:
                time.sleep(_TURN)
        if facts.state == slurm_state.CANCELLED or facts.restarts not in (None, mine.restarts):
            return False
        answers = self._supervisor_answers()
        if answers:
            say("the supervisor lives and does without this node")
        return not answers

    def _has_successor(self) -> bool:
        """Check whether a later attempt is that of another start, of this job or another.

        A later attempt of this start, which the agents had not heard of yet, is taken over.
        """
        mine = self._arguments
        for attempt in ledger.read(self._paths):
            if attempt.number <= self.attempt or not attempt.started:
                continue
            if attempt.started.get(ledger.INSTEAD_OF) == mine.batch_node:
                return True
            started = attempt.job_id, attempt.started.get("restart_count")
            if started != (mine.job_id, mine.restarts):
                return True
            self.attempt = attempt.number
        return False

    def _supervisor_answers(self) -> bool:
        """Check whether the supervisor lives, and gave up this node while it was cut off.

        Somebody else may listen on its port by now, who cannot prove to be it.
        """
        where, node = self._arguments.supervisor, self._arguments.node
        if where is None or self._secret is None:
            return False
        deadline = time.monotonic() + _PATIENCE
        while (left := deadline - time.monotonic()) > 0:
            try:
                Channel.open(where, node, self._secret, reach=_REACH, patience=left).close()
            except RefusedError:
                return True
            except ConnectionResetError:
                # It may have had too many connections for a moment.
                time.sleep(min(1.0, left))
            except OSError:
                return False
            else:
                return True
        return False
