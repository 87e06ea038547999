"""Stop requests: from a signal or the time limit, with the time to save."""

from __future__ import annotations

import signal
from functools import partial

from hpcrun import shared_look, slurm_state
from hpcrun.policy import causes, stop_lead_time
from hpcrun.policy.causes import Evidence
from hpcrun.run.job import evidence
from hpcrun.run.job.agents import Agents
from hpcrun.run.job.attempt_end import AttemptEnd
from hpcrun.run.job.launchers import Launcher
from hpcrun.run.protocol.output import say
from hpcrun.slurm import job
from hpcrun.slurm.parse import parse_duration
from hpcrun.state import files, ledger, session_log
from hpcrun.state.layout import AttemptPaths, RunPaths
from hpcrun.state.plan import RunPlan

_LOOK_EVERY = 2.0
# Seconds between queries for a time limit that is unknown.
_ASK_EVERY = 60.0
# Seconds between Slurm's TERM and its KILL that are kept for the record and the requeue.
_KEPT = 3.0
_LOCAL_GRACE = 15.0
# Seconds in which a run that has done enough saves.
_SAVES_WITHIN = 600.0


class EndNow(Exception):
    """End the ranks at once: there is nothing to save, or no time left for it."""


class StopRequest:
    """The request that the ranks of an attempt save and leave, once there is a reason."""

    def __init__(
        self,
        run: RunPlan,
        paths: RunPaths,
        attempt: AttemptPaths,
        launcher: Launcher,
        attempt_end: AttemptEnd,
    ) -> None:
        self._run, self._paths, self._attempt = run, paths, attempt
        self._launcher, self._attempt_end = launcher, attempt_end
        self._agents: Agents | None = None
        self._signals: tuple[list[str], ...] = ()
        self._began = launcher.now()
        self._end_time = launcher.end_time()
        self._deadline = float("inf")
        self._look_at = 0.0
        self.reason: str | None = None
        """``time_limit``, ``preempted``, ``requeued``, ``node_failure``, ``signal``,
        ``interrupted``, ``pruned`` or None."""
        self.signal: str | None = None
        """The name of the signal that began it."""
        self.enough = ""
        """Why a run is pruned."""

    def attach(self, agents: Agents, signals: list[str]) -> None:
        """Take the supervisor's signals out of this list, and pass the request on to the agents."""
        self._agents, self._signals = agents, (signals, agents.signals)

    def hear(self, name: str) -> None:
        """Act on a signal in the next turn, as if the supervisor had received it."""
        self._signals[0].append(name)

    def turn(self) -> None:
        """Act on signals and on the clock.

        Raises EndNow if the run was cancelled, there is nothing to save, or no time left.
        """
        before = self.reason
        heard: dict[str, bool] = {}
        for index, names in enumerate(self._signals):
            for _ in range(len(names)):
                heard.setdefault(names.pop(0), index == 0)
        for name, is_own in heard.items():
            self._on_signal(name, is_own=is_own)
        if self.reason is None and self._limit_is_near():
            self._begin(causes.TIME_LIMIT, (self._end_time or 0.0) - _KEPT)
        if self.reason is not None and self._launcher.now() > self._deadline:
            raise EndNow("no time is left to save")
        if self.reason is not None and before is None and self._agents is not None:
            self._agents.ask_to_stop()

    def end_early(self, why: str) -> None:
        """Have the ranks save and leave, as the run has done enough; raise EndNow as `turn`."""
        self.enough = why
        self._begin(causes.PRUNED, self._launcher.now() + _SAVES_WITHIN)
        if self._agents is not None:
            self._agents.ask_to_stop()

    def seconds_left(self) -> float:
        """Return how long the attempt may still take to end, at least a second."""
        ends = float("inf") if self._end_time is None else self._end_time - _KEPT
        return max(1.0, min(self._deadline, ends) - self._launcher.now())

    def leaves_time(self) -> bool:
        """Check whether the time limit allows another attempt in the same allocation."""
        end = self._end_time
        return end is None or end - self._launcher.now() > self._lead(end) + stop_lead_time.TO_START

    def _on_signal(self, name: str, *, is_own: bool) -> None:
        """Act on a signal that the supervisor received itself, or else an agent of its."""
        if ledger.intent(self._paths) == ledger.CANCELLED:
            self._deadline = min(self._deadline, self._launcher.now() + _LOCAL_GRACE)
            raise EndNow("cancelled")
        if not self._launcher.requeues:
            interrupted = name == signal.SIGINT.name or (is_own and self._launcher.is_foreground)
            if interrupted and self.reason == causes.INTERRUPTED:
                raise EndNow("interrupted again")
            self.signal = self.signal or name
            reason = causes.INTERRUPTED if interrupted else causes.SIGNAL
            self._begin(reason, self._launcher.now() + _LOCAL_GRACE)
            return
        facts = self._attempt_end.facts(self._attempt.number)
        end = causes.decide(Evidence(supervisor_lost=True, job=facts))
        if end.outcome == causes.CANCELLED:
            ledger.set_intent(self._paths, ledger.CANCELLED)
            self._deadline = min(self._deadline, self._launcher.now() + _LOCAL_GRACE)
            raise EndNow(end.message)
        deadline = (facts.ends or float("inf")) - _KEPT
        if facts.words is not None or facts.state not in ("", slurm_state.RUNNING):
            # Slurm has begun to end the job: KILL follows.
            deadline = self._launcher.now() + job.kill_wait() - _KEPT
        self.signal = self.signal or name
        self._begin(end.kind if end.kind != causes.SUPERVISOR_LOST else causes.SIGNAL, deadline)

    def _begin(self, reason: str | None, deadline: float) -> None:
        self._deadline = min(self._deadline, deadline)
        if self.reason is not None:
            return
        self.reason = reason
        say(f"asked to stop: {reason}" + (f" ({self.signal})" if self.signal else ""))
        number, event = self._attempt.number, {"reason": reason, "signal": self.signal}
        write = partial(ledger.write, self._paths, ledger.STOPPING, number, **event)
        files.patiently(write, say, "the ledger")
        if not self._can_save():
            mute = self._run.entry.kind != "function" and not self._run.recovery.stop_signal
            why = ", and recovery.stop_signal names no signal for the program" if mute else ""
            raise EndNow(f"there is nothing to save{why}")

    def _can_save(self) -> bool:
        """Check whether the ranks would react to a request."""
        if self._run.recovery.stop_signal:
            return shared_look.is_there(self._attempt.launch)
        return any(evidence.session(self._attempt).of(session_log.RESTORED))

    def _limit_is_near(self) -> bool:
        if self._launcher.now() < self._look_at:
            return False
        if self._end_time is None:
            # Without a limit, or Slurm did not answer as the job began.
            self._look_at = self._launcher.now() + _ASK_EVERY
            self._end_time = self._launcher.end_time(fresh=True)
            return False
        before = self._lead(self._end_time)
        left = self._end_time - before - self._launcher.now()
        if left > 0:
            self._look_at = self._launcher.now() + max(_LOOK_EVERY, left / 2)
            return False
        # Somebody may have changed the limit since.
        self._end_time = self._launcher.end_time(fresh=True) or self._end_time
        return self._launcher.now() >= self._end_time - before

    def _lead(self, end_time: float) -> float:
        """Return how many seconds before the limit the ranks are asked to stop."""
        wanted = self._run.recovery.stop_before
        save, step = stop_lead_time.measure(self._paths)
        asked, limit = parse_duration(wanted) if wanted else None, end_time - self._began
        return stop_lead_time.seconds(limit, asked=asked, save=save, step=step)
