"""Which programs without a session hang, as a table over what nodes see; no clock, no process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hpcrun.run.health.hang_detector import PATIENCE, STOPPED, Hang
from hpcrun.run.health.program_hangs import (
    IDLE_BYTES,
    IDLE_SHARE,
    QUIET_TRAFFIC,
    RHYTHM,
    TICKS,
    NodeTraffic,
    ProgramHangDetector,
    RankActivity,
)
from hpcrun.run.health.progress import GONE

AFTER = 60
HOUR = 3600
Ranks = dict[int, RankActivity]


def seen(output: int = 0, seconds: float = 0.0, io: int = 0, state: str = "S") -> RankActivity:
    """What a node sees of a rank that has used so many seconds of a processor."""
    return RankActivity(output, int(seconds * TICKS), io, state)


def first_hang(
    ranks: Callable[[int], Ranks],
    until: int,
    traffic: Callable[[int], NodeTraffic] = lambda now: NodeTraffic(0, 0),
    after: float = AFTER,
) -> tuple[int, Hang] | None:
    """The second at which a hang is found, and which; None if none is."""
    detector = ProgramHangDetector(after, 0.0)
    for now in range(until):
        # Nodes look every two seconds; the supervisor every second.
        look = now // 2 * 2
        detector.update(ranks(look), {"n1": traffic(look)}, float(now))
        if (hang := detector.hang(float(now))) is not None:
            return now, hang
    return None


def writes(now: int, every: int, until: int = HOUR) -> int:
    """The bytes of a log with a line every so many seconds, until it falls silent."""
    return 80 * (min(now, until) // every)


def test_nothing_moves() -> None:
    found = first_hang(lambda now: {0: seen(100, 3.0), 1: seen(90, 2.0)}, HOUR)
    assert found is not None
    assert found[0] == AFTER + 1
    assert found[1] == Hang(
        "no rank has written or computed anything for 61 s", None, may_be_meant=True
    )


def test_a_lock_that_is_polled_ten_times_a_second() -> None:
    """torch's FileBaton, or a loop in a shell: one hundredth of a processor."""
    poll = lambda now: {rank: seen(100, now * 0.01, now * 1000) for rank in (0, 1)}  # noqa: E731
    found = first_hang(poll, HOUR)
    assert found is not None
    assert found[0] == AFTER + 1


def test_a_program_that_is_started_late() -> None:
    """Its worker waited for the storage, longer than a program may."""
    start = 2 * AFTER

    def ranks(now: int) -> Ranks:
        return {0: seen(state=GONE) if now < start else seen(0, 0.1)}

    assert first_hang(ranks, start + AFTER) is None
    found = first_hang(ranks, HOUR)
    assert found is not None
    assert found[0] == start + AFTER + 1


def test_it_is_found_whenever_it_begins() -> None:
    """After an hour of work, too."""
    training = lambda now: {0: seen(writes(now, 10), min(now, HOUR) + now * 0.01)}  # noqa: E731
    found = first_hang(training, 2 * HOUR)
    assert found is not None
    assert HOUR + AFTER <= found[0] <= HOUR + AFTER + 3


def test_a_dead_file_system_has_a_name() -> None:
    found = first_hang(lambda now: {0: seen(), 1: seen(state="D"), 2: seen()}, HOUR)
    assert found is not None
    assert (found[0], found[1].rank) == (AFTER + 1, 1)


@pytest.mark.parametrize("state", ["S", "D"])
def test_a_rank_that_is_stopped_is_named_while_others_are_busy(state: str) -> None:
    def ranks(now: int) -> Ranks:
        stopped = seen(500, 20.0, state="T" if now >= 20 else "S")
        return {0: seen(writes(now, 5), float(now), state=state), 3: stopped}

    found = first_hang(ranks, HOUR)
    assert found is not None
    assert 20 + STOPPED <= found[0] <= 20 + STOPPED + 2
    assert found[1].rank == 3
    assert found[1].message == "rank 3 has been stopped (SIGSTOP) for 11 s"


def test_a_rank_that_is_stopped_for_a_moment() -> None:
    blinks = lambda now: {0: seen(now, now, state="T" if now % 12 < 8 else "S")}  # noqa: E731
    assert first_hang(blinks, HOUR) is None


def test_one_of_torchruns_children_is_stopped_and_the_others_spin() -> None:
    def ranks(now: int) -> Ranks:
        return {0: seen(writes(now, 5, 20), now, state="P" if now >= 10 else "S")}

    found = first_hang(ranks, HOUR)
    assert found is not None
    assert 20 + AFTER <= found[0] <= 20 + AFTER + 2
    assert (
        found[1].message
        == "a process of rank 0 is stopped (SIGSTOP), and no rank has written for 61 s"
    )
    writes_on = lambda now: {0: seen(writes(now, 5), now, state="P")}  # noqa: E731
    assert first_hang(writes_on, HOUR) is None


def test_ranks_that_spin_while_one_waits() -> None:
    """NCCL spins, and rank 1 waits for a lock; they had logged a line every 10 s."""

    def ranks(now: int) -> Ranks:
        spins = {rank: seen(writes(now, 10, 600), float(now)) for rank in (0, 2)}
        return {**spins, 1: seen(writes(now, 10, 600), float(min(now, 600)))}

    found = first_hang(ranks, HOUR)
    assert found is not None
    when, hang = found
    assert 600 + PATIENCE * AFTER <= when <= 600 + PATIENCE * AFTER + 4
    assert hang.rank == 1
    assert "though processors are busy and no pause was longer than 10 s before" in hang.message


def test_ten_of_the_longest_pauses_fit_in() -> None:
    ranks = lambda now: {rank: seen(writes(now, 90, HOUR), float(now)) for rank in (0, 1)}  # noqa: E731
    found = first_hang(ranks, 2 * HOUR)
    assert found is not None
    assert found[0] >= HOUR + 10 * 90


# What looks like a hang and is none: what the node sees of it at each second.
FALSE_ALARMS: dict[str, Callable[[int], Ranks]] = {
    "one process that computes for an hour in silence": lambda now: {0: seen(0, now)},
    "the same after an hour of lines": lambda now: {0: seen(writes(now, 10, 1800), now)},
    "ranks that compute in silence from the start": lambda now: {
        rank: seen(50, now) for rank in (0, 1)
    },
    "a few lines at the start, then an epoch": lambda now: {
        rank: seen(writes(now, 2, AFTER - 10), now) for rank in (0, 1)
    },
    "a line each epoch": lambda now: {rank: seen(writes(now, 900), now) for rank in (0, 1)},
    "one rank prepares data, the others wait": lambda now: {0: seen(0, now), 1: seen(0, 2.0)},
    "a compiler takes turns with its pipe": lambda now: {0: seen(0, now * 0.3), 1: seen(0, 2.0)},
    "a download": lambda now: {0: seen(0, now * 0.01, now * 200_000), 1: seen(0, 2.0)},
    "a save to slow storage": lambda now: {
        rank: seen(0, 2.0, now * 50_000, state="D") for rank in (0, 1)
    },
    "a line a minute, and sleep between": lambda now: {
        rank: seen(writes(now, AFTER - 5)) for rank in (0, 1)
    },
    "each rank has its own work, some have ended": lambda now: {
        0: seen(0, now),
        1: seen(10, 5.0),
        2: seen(0, 5.0, state=GONE),
    },
    "nobody is left": lambda now: {rank: seen(state=GONE) for rank in (0, 1)},
    "nobody is there": lambda now: {},
}


@pytest.mark.parametrize("ranks", FALSE_ALARMS.values(), ids=FALSE_ALARMS)
def test_what_is_no_hang(ranks: Callable[[int], Ranks]) -> None:
    assert first_hang(ranks, HOUR) is None


def test_a_program_that_waits_by_design() -> None:
    """It polls a queue: `recovery.hang_after` is null for it."""
    sleeps = lambda now: {0: seen(100, now * 0.001)}  # noqa: E731
    assert first_hang(sleeps, HOUR) is not None
    assert first_hang(sleeps, 24 * HOUR, after=0.0) is None
    assert first_hang(lambda now: {0: seen(state="T")}, HOUR, after=0.0) is None


def test_bytes_of_the_fabric_are_a_sign_of_life_of_busy_ranks() -> None:
    busy = lambda now: {rank: seen(writes(now, 10, 600), now) for rank in (0, 1)}  # noqa: E731
    fabric = lambda now: NodeTraffic(int(now * 5 * QUIET_TRAFFIC), 0)  # noqa: E731
    keep_alive = lambda now: NodeTraffic(int(now * 0.5 * QUIET_TRAFFIC), 0)  # noqa: E731
    assert first_hang(busy, HOUR, fabric) is None
    assert first_hang(busy, HOUR, keep_alive) is not None


def test_a_gpu_that_works_is_a_sign_of_life_of_ranks_that_sleep() -> None:
    """A program that hands one long computation to it, such as XLA's."""
    works = lambda now: NodeTraffic(0, 0, now * 60)  # noqa: E731
    idles = lambda now: NodeTraffic(0, 0, now * 1)  # noqa: E731
    assert first_hang(lambda now: {0: seen(), 1: seen()}, HOUR, works) is None
    assert first_hang(lambda now: {0: seen(), 1: seen()}, HOUR, idles) is not None


def test_bytes_to_storage_are_a_sign_of_life_of_a_rank_that_waits_for_it() -> None:
    """One long fsync: the rank's own counts stand still."""
    flows = lambda now: NodeTraffic(0, int(now * 5 * QUIET_TRAFFIC))  # noqa: E731
    assert first_hang(lambda now: {0: seen(state="D"), 1: seen()}, HOUR, flows) is None
    assert first_hang(lambda now: {0: seen(), 1: seen()}, HOUR, flows) is not None


@pytest.mark.parametrize(
    ("share", "bytes_a_second", "hangs"),
    [
        (0.9 * IDLE_SHARE, 0.0, True),
        (1.5 * IDLE_SHARE, 0.0, False),
        (0.0, 0.9 * IDLE_BYTES, True),
        (0.0, 1.5 * IDLE_BYTES, False),
    ],
)
def test_what_counts_as_nothing(share: float, bytes_a_second: float, hangs: bool) -> None:
    """It does not add up over the hours, either."""
    found = first_hang(
        lambda now: {
            0: seen(0, now * share, int(now * bytes_a_second)),
            1: seen(0, float(min(now, 1000))),
        },
        HOUR,
    )
    assert (found is not None) == hangs
    assert found is None or found[0] <= 1000 + AFTER + 3


def test_ranks_that_ended_leave_the_others_waiting() -> None:
    ended = lambda now: {0: seen(10, 5.0), 1: seen(10, 5.0, state=GONE if now > 9 else "S")}  # noqa: E731
    found = first_hang(ended, HOUR)
    assert found is not None
    assert 10 + AFTER <= found[0] <= 10 + AFTER + 2
    assert found[1].message.endswith("; 1 of 2 ranks has ended")


def test_a_rhythm_takes_as_long_as_the_patience() -> None:
    """As many lines, in less time, are none."""
    for every, hangs in ((2, False), (AFTER // RHYTHM + 5, True)):
        silent = every * (RHYTHM + 1)
        ranks = lambda now, e=every, s=silent: {r: seen(writes(now, e, s), now) for r in (0, 1)}  # noqa: E731
        assert (first_hang(ranks, HOUR) is not None) == hangs, every


def test_time_in_which_nobody_looked_does_not_count() -> None:
    """The job was suspended, the supervisor with it."""
    detector = ProgramHangDetector(AFTER, 0.0)
    for now in range(5):
        detector.update({0: seen(), 1: seen(state="T")}, {}, float(now))
    later = 10_000.0
    detector.update({0: seen(), 1: seen(state="T")}, {}, later)
    assert detector.hang(later) is None
    detector.update({0: seen(), 1: seen(state="S")}, {}, later + 3)
    assert detector.hang(later + 3) is None
    for more in range(4, AFTER + 2):
        detector.update({0: seen(), 1: seen()}, {}, later + more)
    assert detector.hang(later + AFTER + 1) is not None
