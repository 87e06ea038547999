"""Warned stops: what a signal means, when the time limit is near, and until when ranks may save."""

from __future__ import annotations

import time
from collections.abc import Sequence

from hpcrun.policy import causes, stop_lead_time
from hpcrun.policy.causes import Evidence
from hpcrun.run.job.attempt_end import AttemptEnd
from hpcrun.run.job.launchers import Launcher
from hpcrun.slurm import job
from hpcrun.slurm.duration import seconds
from hpcrun.state import files, ledger, session_log
from hpcrun.state.layout import AttemptPaths, RunPaths
from hpcrun.state.plan import RunPlan
from hpcrun.text import Say

_LOOK_EVERY = 2.0
# Seconds between questions after a limit that is not known.
_ASK_EVERY = 60.0
# Of the time between Slurm's TERM and its KILL, for the record and the requeue.
_KEPT = 3.0
_LOCAL_GRACE = 15.0
# An attempt that does not get further than to its first steps is not worth beginning.
_START = 30.0


class EndNow(Exception):
    """The ranks are to be ended now: there is nothing to save, or no time left for it."""


class StopRequest:
    """Whether and why the ranks of an attempt are asked to save and leave.

    Attributes
    ----------
    reason
        ``time_limit``, ``preempted``, ``requeued``, ``node_failure`` or ``signal``; None while
        nothing asks for a stop.
    signal
        The signal that began it, by its name.
    """

    def __init__(
        self,
        run: RunPlan,
        paths: RunPaths,
        attempt: AttemptPaths,
        launcher: Launcher,
        attempt_end: AttemptEnd,
        say: Say,
    ) -> None:
        self._run, self._paths, self._attempt = run, paths, attempt
        self._launcher, self._attempt_end, self._say = launcher, attempt_end, say
        self._began = time.time()
        self._end_time = launcher.end_time()
        self._deadline = float("inf")
        self._look_at = 0.0
        self.reason: str | None = None
        self.signal: str | None = None

    def heed(self, signals: Sequence[str]) -> bool:
        """Act on signals and on the clock.

        Parameters
        ----------
        signals
            Names of what the supervisor and the agents have heard since the last call.

        Returns
        -------
        bool
            The ranks are to be asked to save and leave; true once.

        Raises
        ------
        EndNow
            The run was cancelled, there is nothing to save, or no time left.
        """
        before = self.reason
        for name in dict.fromkeys(signals):
            self._heard(name)
        if self.reason is None and self._limit_is_near():
            self._begin(causes.TIME_LIMIT, (self._end_time or 0.0) - _KEPT)
        if self.reason is not None and time.time() > self._deadline:
            raise EndNow("no time is left to save")
        return self.reason is not None and before is None

    def leaves_time(self) -> bool:
        """Whether the time limit leaves something for another attempt in the same allocation."""
        end = self._end_time
        return end is None or end - time.time() > self._lead(end) + _START

    def _heard(self, name: str) -> None:
        if ledger.intent(self._paths) == ledger.CANCELLED:
            raise EndNow("cancelled")
        if not self._launcher.requeues:
            self.signal = self.signal or name
            self._begin(causes.SIGNAL, time.time() + _LOCAL_GRACE)
            return
        facts = self._attempt_end.facts(self._attempt.number)
        end = causes.decide(Evidence(supervisor_lost=True, job=facts))
        if end.outcome == causes.CANCELLED:
            ledger.set_intent(self._paths, ledger.CANCELLED)
            raise EndNow(end.message)
        over = facts.words is not None or facts.state not in ("", "RUNNING")
        deadline = (facts.ends or float("inf")) - _KEPT
        if over:
            # Slurm has begun to end the job: KILL follows.
            deadline = time.time() + job.kill_wait() - _KEPT
        self.signal = self.signal or name
        self._begin(end.kind if end.kind != causes.SUPERVISOR_LOST else causes.SIGNAL, deadline)

    def _begin(self, reason: str | None, deadline: float) -> None:
        self._deadline = min(self._deadline, deadline)
        if self.reason is not None:
            return
        self.reason = reason
        self._say(f"asked to stop: {reason}" + (f" ({self.signal})" if self.signal else ""))
        details = {"reason": reason, "signal": self.signal}
        files.patiently(
            lambda: ledger.write(self._paths, ledger.STOPPING, self._attempt.number, **details),
            self._say,
            "the ledger",
        )
        if not self._can_save():
            raise EndNow("there is nothing to save")

    def _can_save(self) -> bool:
        """Whether the ranks would do anything about it."""
        if self._run.recovery.stop_signal:
            return self._attempt.launch.exists()
        return any(session_log.read(self._attempt).of(session_log.RESTORED))

    def _limit_is_near(self) -> bool:
        if time.time() < self._look_at:
            return False
        if self._end_time is None:
            # Without a limit, or Slurm did not answer as the job began.
            self._look_at = time.time() + _ASK_EVERY
            self._end_time = self._launcher.end_time(fresh=True)
            return False
        before = self._lead(self._end_time)
        left = self._end_time - before - time.time()
        if left > 0:
            self._look_at = time.time() + max(_LOOK_EVERY, left / 2)
            return False
        # Somebody may have changed the limit since.
        self._end_time = self._launcher.end_time(fresh=True) or self._end_time
        return time.time() >= self._end_time - before

    def _lead(self, end_time: float) -> float:
        """How long before the limit the ranks are asked to stop, in seconds."""
        wanted = self._run.recovery.stop_before
        save, step = stop_lead_time.measured(self._paths)
        limit = end_time - self._began
        return stop_lead_time.seconds(
            limit, asked=seconds(wanted) if wanted else None, save=save, step=step
        )
