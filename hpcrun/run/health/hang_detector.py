"""Hang detection: decides from the ranks' progress whether they are stuck.

A hang is silent: a collective that never ends, a rank that was stopped, a data loader that starves.
A slow save, a compilation or a long evaluation looks alike, but differs in the main threads. In a
hang none of them moves or computes; in an evaluation at least one does; and a run that starts,
saves, restores or ends may wait for one long call. (A rank that waits for its GPU may spin, which
looks like computing.)
"""

from __future__ import annotations

from collections.abc import Mapping

from hpcrun.run.health.progress import ENDING, GONE, PHASES, SAVING, STEPPING, RankProgress
from hpcrun.run.protocol.heartbeat import INTERVAL
from hpcrun.shared_dataclass import dataclass

# Multiple of `recovery.hang_after` in which ranks may move, or wait in a phase that may be long,
# without a finished step.
PATIENCE = 6.0
# The longest step so far, times this, is never a hang.
STEPS = 10.0
# Seconds for which a rank has to be stopped; a debugger or a person may do so for a moment.
STOPPED = 10.0
# Seconds within which the launcher reports a rank that ended badly.
VANISHED = 5.0
# Clock ticks that the main thread uses between two reports if it computes: ten each second.
BUSY = 10 * INTERVAL
# More seconds between two updates mean that the job or this process was suspended.
GAP = 5.0
_STOPPED_STATE = "T"


@dataclass(frozen=True)
class Hang:
    """A hang; ``rank`` is the one to blame, None where only the stacks can show it."""

    message: str
    rank: int | None = None
    may_be_meant: bool = False
    """It may be how a program works."""


class JobClock:
    """The time in which a job ran: a gap between two updates, when it was suspended, is left out.

    ``now`` is a time of any monotonic clock.
    """

    def __init__(self, now: float) -> None:
        self._updated, self._suspended = now, 0.0

    def update(self, now: float) -> float:
        """Return the job's time at an update."""
        gap, self._updated = now - self._updated, now
        self._suspended += gap if gap > GAP else 0.0
        return self.time(now)

    def time(self, now: float) -> float:
        return now - self._suspended


@dataclass
class _Seen:
    pulse: RankProgress
    stopped: float | None = None
    gone: float | None = None


class HangDetector:
    """The ranks of one attempt, from their start at the time ``now`` of any monotonic clock.

    ``hang_after`` is in seconds without progress; 0 for never.
    """

    def __init__(self, hang_after: float, now: float) -> None:
        self._hang_after = hang_after
        self._seen: dict[int, _Seen] = {}
        self._clock = JobClock(now)
        self._moved = self._progressed = now
        self._longest = 0.0
        self._step = 0

    def update(self, pulses: Mapping[int, RankProgress], now: float) -> None:
        """Add the ranks' newest progress; to be called every second."""
        now = self._clock.update(now)
        for rank, pulse in pulses.items():
            if rank not in self._seen:
                self._moved = self._progressed = now
            seen = self._seen.setdefault(rank, _Seen(pulse))
            if _moved(seen.pulse, pulse):
                self._moved = now
            if (pulse.step, pulse.phase) != (seen.pulse.step, seen.pulse.phase):
                if pulse.step > self._step > 0 and pulse.phase == STEPPING:
                    self._longest = max(self._longest, now - self._progressed)
                self._progressed = now
            self._step = max(self._step, pulse.step)
            seen.stopped = since(seen.stopped, pulse.state == _STOPPED_STATE, now)
            seen.gone = since(seen.gone, pulse.state == GONE and pulse.phase != ENDING, now)
            seen.pulse = pulse

    def vanished(self, now: float) -> bool:
        """Check whether a rank has ended in mid-work some time ago."""
        gone = [seen.gone for seen in self._seen.values() if seen.gone is not None]
        return any(self._clock.time(now) - since > VANISHED for since in gone)

    def hang(self, now: float) -> Hang | None:
        """Return the hang, if there is one."""
        if not self._hang_after or all(seen.pulse.state == GONE for seen in self._seen.values()):
            # What a shell does after the program with the session is watched as other programs are.
            return None
        now = self._clock.time(now)
        for rank, seen in sorted(self._seen.items()):
            if seen.stopped is not None and now - seen.stopped > STOPPED:
                seconds = now - seen.stopped
                return Hang(f"rank {rank} has been stopped (SIGSTOP) for {seconds:.0f} s", rank)
        limit = max(self._hang_after, STEPS * self._longest)
        still = now - self._moved
        stepping = all(seen.pulse.phase == STEPPING for seen in self._seen.values())
        if stepping and still > limit:
            return Hang(f"no rank has moved for {still:.0f} s")
        if still > limit and (left := self._left_early()) is not None:
            step = self._seen[left].pulse.step
            return Hang(f"rank {left} has left after step {step}; the others wait for it", left)
        phases = {seen.pulse.phase for seen in self._seen.values()}
        if still > PATIENCE * limit:
            return Hang(f"no rank has moved for {still:.0f} s ({PHASES[min(phases)]})")
        # The time that a program may take is unknown before its first step and after its last.
        behind = now - self._progressed
        if self._step and ENDING not in phases and behind > PATIENCE * limit:
            phase = PHASES[min(phases)]
            return Hang(f"no rank has finished a step for {behind:.0f} s ({phase})")
        return None

    def _left_early(self) -> int | None:
        """Return the one rank that has come to its end, where no other has.

        A rank that still saves may be the first, which removes old checkpoints after the others.
        """
        phases = {rank: seen.pulse.phase for rank, seen in self._seen.items()}
        ended = [rank for rank, phase in phases.items() if phase == ENDING]
        alone = len(ended) == 1 < len(phases) and SAVING not in phases.values()
        return ended[0] if alone else None


def since(before: float | None, holds: bool, now: float) -> float | None:
    """Return since when a condition holds; None while it does not."""
    if not holds:
        return None
    return now if before is None else before


def _moved(before: RankProgress, now: RankProgress) -> bool:
    if (before.step, before.phase, before.moves) != (now.step, now.phase, now.moves):
        return True
    # It computes, in one long call or in a short one again and again.
    return now.processor - before.processor >= BUSY
