"""Hang detection for programs without a session, from what their nodes see of them.

Nobody knows the step of such a program. What is seen from outside is the output of its ranks, and
what the kernel counts for them: processor time, bytes read and written, and the state of their
processes. Three things are a hang:

- a rank whose processes were stopped (SIGSTOP), or one of them, as a child of torchrun's, where
  nothing is written from then on;
- no rank does anything for `recovery.hang_after`, as where all wait for a lock, a socket or a file
  system that is gone;
- several ranks keep their processors busy and nothing comes of it, as where NCCL waits: only after
  regular output, and for six times as long, because a computation looks alike.

One process that computes in silence is never one, nor are several that never wrote regularly.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from hpcrun.run.health.hang_detector import PATIENCE, STEPS, STOPPED, Hang, JobClock, since
from hpcrun.run.health.progress import GONE
from hpcrun.shared_dataclass import dataclass
from hpcrun.text import agreeing

# Share of a processor, and bytes a second, that a rank may use while it does nothing: it polls.
IDLE_SHARE = 0.02
IDLE_BYTES = 4096.0
# Bytes a second of a node that may be monitoring, keep-alive packets and hpcrun itself.
QUIET_TRAFFIC = 100_000.0
# A program writes regularly if it was seen to write so often, over `recovery.hang_after` at least.
RHYTHM = 6
TICKS = 100
STOPPED_STATE, PARTLY_STOPPED, STORAGE_STATE, SLEEPING = "T", "P", "D", "S"


@dataclass(frozen=True)
class RankActivity:
    """A rank's processes, seen from outside at one moment; counts are since its start."""

    output: int
    """Bytes of its log, and for rank 0 of the metrics file."""
    processor: int
    """Clock ticks (hundredths of a second) of processor time, of children that have ended too."""
    io: int
    """Bytes that its living processes have read and written, by whatever call."""
    state: str
    """``T`` if all that work are stopped, ``P`` if one is, ``D`` if one waits for storage, `GONE`
    if none is left, else ``S``."""


@dataclass(frozen=True)
class NodeTraffic:
    """The bytes that a node has moved and the work of its GPUs, since it started."""

    fabric: int
    """Bytes over the fast interface and its adapters; over all where none is apart."""
    storage: int
    """Bytes over all interfaces, and to and from disks."""
    gpu: int = 0
    """Percent of a GPU times seconds, by telemetry's samples of this attempt."""


@dataclass
class _Seen:
    newest: RankActivity
    base: RankActivity
    """The sample that the newest is compared with; at most `recovery.hang_after` old."""
    since: float
    moved: float
    stopped: float | None = None
    partly: float | None = None


class ProgramHangDetector:
    """The ranks of one attempt, from the time ``now`` of any monotonic clock.

    ``hang_after`` is in seconds; 0 for never.
    """

    def __init__(self, hang_after: float, now: float) -> None:
        self._hang_after = hang_after
        self._seen: dict[int, _Seen] = {}
        # Node -> what it had moved when, which the newest is compared with.
        self._traffic: dict[str, tuple[NodeTraffic, float]] = {}
        # The job's time of the last output, and of the last bytes of any kind.
        self._clock = JobClock(now)
        self._wrote = self._active = now
        self._first: float | None = None
        self._outputs = 0
        self._longest = 0.0

    def update(
        self, ranks: Mapping[int, RankActivity], traffic: Mapping[str, NodeTraffic], now: float
    ) -> None:
        """Add what nodes have seen; to be called every second."""
        now = self._clock.update(now)
        wrote = False
        for rank, found in ranks.items():
            if rank not in self._seen:
                self._seen[rank] = _Seen(found, found, now, now)
                self._active = now
            seen = self._seen[rank]
            wrote |= found.output != seen.newest.output
            if (found.state == GONE) != (seen.newest.state == GONE):
                # One ended, or was started: a worker may prepare it for long.
                self._all_move(now)
            # What an orphan that ended has used is in no count any more.
            bytes_move = found.output != seen.base.output or (
                abs(found.io - seen.base.io) > IDLE_BYTES * self._hang_after
            )
            used = abs(found.processor - seen.base.processor) / TICKS
            moves = bytes_move or used > IDLE_SHARE * self._hang_after
            if bytes_move:
                self._active = now
            if moves:
                seen.moved = now
            if moves or now - seen.since >= self._hang_after:
                seen.base, seen.since = found, now
            seen.stopped = since(seen.stopped, found.state == STOPPED_STATE, now)
            seen.partly = since(seen.partly, found.state == PARTLY_STOPPED, now)
            seen.newest = found
        if wrote:
            self._note_output(now)
        self._note_traffic(traffic, now)

    def hang(self, now: float) -> Hang | None:
        """Return the hang, if there is one."""
        if not self._hang_after:
            return None
        now = self._clock.time(now)
        living = {rank: seen for rank, seen in self._seen.items() if seen.newest.state != GONE}
        for rank, seen in sorted(living.items()):
            if seen.stopped is not None and now - seen.stopped > min(STOPPED, self._hang_after):
                seconds = now - seen.stopped
                return Hang(f"rank {rank} has been stopped (SIGSTOP) for {seconds:.0f} s", rank)
            if seen.partly is not None:
                seconds = now - max(seen.partly, self._wrote)
                if seconds > self._hang_after:
                    what = f"a process of rank {rank} is stopped (SIGSTOP)"
                    return Hang(f"{what}, and no rank has written for {seconds:.0f} s", rank)
        still = {
            rank: now - seen.moved
            for rank, seen in living.items()
            if now - seen.moved > self._hang_after
        }
        if living and len(still) == len(living):
            seconds = min(still.values())
            ended = len(self._seen) - len(living)
            have = agreeing(ended, "has", "have")
            rest = f"; {ended} of {len(self._seen)} ranks {have} ended" if ended else ""
            return Hang(
                f"no rank has written or computed anything for {seconds:.0f} s{rest}",
                _only(rank for rank in still if living[rank].newest.state == STORAGE_STATE),
                may_be_meant=True,
            )
        return self._hang_of_busy_ranks(living, still, now)

    def _hang_of_busy_ranks(
        self, living: Mapping[int, _Seen], still: Collection[int], now: float
    ) -> Hang | None:
        if len(living) < 2 or self._first is None or self._outputs < RHYTHM:
            return None
        if self._wrote - self._first < self._hang_after:
            return None
        limit = max(PATIENCE * self._hang_after, STEPS * self._longest)
        silent = now - max(self._wrote, self._active)
        if silent <= limit:
            return None
        return Hang(
            f"no rank has written anything for {silent:.0f} s, though processors are busy and "
            f"no pause was longer than {self._longest:.0f} s before",
            _only(still),
            may_be_meant=True,
        )

    def _note_output(self, now: float) -> None:
        if self._first is None:
            self._first = now
        elif self._outputs:
            self._longest = max(self._longest, now - self._wrote)
        self._outputs += 1
        self._wrote = now

    def _note_traffic(self, traffic: Mapping[str, NodeTraffic], now: float) -> None:
        """Take traffic as movement: of the fabric, and of storage where a rank waits for that.

        So is the work of a GPU, for which a rank may sleep. (NCCL's waiting looks like it.)
        """
        most = QUIET_TRAFFIC * self._hang_after
        most_gpu = 100 * IDLE_SHARE * self._hang_after
        for node, found in traffic.items():
            base, began = self._traffic.setdefault(node, (found, now))
            fabric = abs(found.fabric - base.fabric) > most
            storage = abs(found.storage - base.storage) > most
            gpu = abs(found.gpu - base.gpu) > most_gpu
            if gpu:
                self._all_move(now)
            if fabric or storage or gpu or now - began >= self._hang_after:
                self._traffic[node] = found, now
            waiting = [one for one in self._seen.values() if one.newest.state == STORAGE_STATE]
            if fabric or (storage and waiting):
                self._active = now
            for seen in waiting if storage else ():
                seen.moved = now

    def _all_move(self, now: float) -> None:
        for seen in self._seen.values():
            seen.moved = now


def _only(ranks: Iterable[int]) -> int | None:
    """Return the one rank, if there is one alone."""
    found = list(ranks)
    return found[0] if len(found) == 1 else None
