"""What counts as a hang, as a table over what agents report; no clock and no process here."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hpcrun.run.health.hang_detector import PATIENCE, STOPPED, VANISHED, HangDetector
from hpcrun.run.health.progress import (
    ENDING,
    GONE,
    RESTORING,
    SAVING,
    STARTING,
    STEPPING,
    RankProgress,
)

AFTER = 60.0
Ranks = dict[int, RankProgress]


def pulse(step: int = 5, phase: int = STEPPING, moves: int = 0, **more: object) -> RankProgress:
    """A rank's, of which the watching thread runs and the program sleeps."""
    return RankProgress(1, step, phase, moves, **{"looks": 0, "state": "S", "processor": 0, **more})  # type: ignore[arg-type]


def first_alarm(pulses: Callable[[int], Ranks], until: int, after: float = AFTER) -> int | None:
    """The second at which a hang is told of; None if none is."""
    liveness = HangDetector(after, 0.0)
    for now in range(until):
        liveness.update(pulses(now), float(now))
        if liveness.hang(float(now)) is not None:
            return now
    return None


def test_ranks_that_all_stand_still_in_a_step() -> None:
    found = first_alarm(lambda now: {rank: pulse(looks=now) for rank in (0, 1)}, 1000)
    assert found == AFTER + 1


@pytest.mark.parametrize("phase", [STARTING, SAVING, RESTORING, ENDING])
def test_a_long_save_start_or_restore_has_more_time(phase: int) -> None:
    """Three minutes of a save, two of a first compilation."""
    assert first_alarm(lambda now: {0: pulse(phase=phase, looks=now)}, 181) is None
    assert first_alarm(lambda now: {0: pulse(phase=phase)}, 2000) == PATIENCE * AFTER + 1


def test_one_rank_in_another_phase_is_enough() -> None:
    """Rank 0 writes what the others wait for."""
    assert first_alarm(lambda now: {0: pulse(phase=SAVING), 1: pulse()}, 181) is None


def test_a_long_evaluation_moves() -> None:
    """On one rank alone, while the others wait in a collective."""
    ranks = lambda now: {0: pulse(moves=now), 1: pulse()}  # noqa: E731
    assert first_alarm(ranks, int(PATIENCE * AFTER)) is None
    assert first_alarm(ranks, 2000) == PATIENCE * AFTER + 1


def test_a_rank_that_computes_at_one_place_is_no_hang() -> None:
    """In a call that keeps the interpreter, so that nobody can look, too."""
    busy = lambda now: {0: pulse(looks=7, processor=now * 50), 1: pulse(looks=now)}  # noqa: E731
    assert first_alarm(busy, 181) is None
    assert first_alarm(busy, 2000) == PATIENCE * AFTER + 1
    stuck = lambda now: {0: pulse(looks=7, processor=now), 1: pulse(looks=now)}  # noqa: E731
    assert first_alarm(stuck, 181) == AFTER + 1


def test_steps_that_are_long_by_nature() -> None:
    """Ten of the longest always fit in."""
    slow = lambda now: {0: pulse(step=1 + min(now // 30, 5), looks=now)}  # noqa: E731
    assert first_alarm(slow, 2000) == 150 + 10 * 30 + 1


def test_a_rank_that_is_stopped_is_named_in_any_phase() -> None:
    def ranks(now: int) -> Ranks:
        state = "T" if now >= 20 else "S"
        return {0: pulse(phase=SAVING, moves=now), 3: pulse(phase=SAVING, state=state)}

    assert first_alarm(ranks, 1000) == 20 + STOPPED + 1
    liveness = HangDetector(AFTER, 0.0)
    for now in range(40):
        liveness.update(ranks(now), float(now))
    found = liveness.hang(40.0)
    assert found is not None
    assert found.rank == 3
    assert found.message == "rank 3 has been stopped (SIGSTOP) for 20 s"


def test_a_rank_that_is_stopped_for_a_moment() -> None:
    states = lambda now: {0: pulse(step=now, state="T" if now % 12 < 9 else "S")}  # noqa: E731
    assert first_alarm(states, 500) is None


def test_never() -> None:
    assert first_alarm(lambda now: {0: pulse(state="T")}, 5000, after=0.0) is None


def test_nobody_reports() -> None:
    """A program of the user's own that knows no session."""
    assert first_alarm(lambda now: {}, 5000) is None


def test_a_program_that_never_says_that_it_steps_has_all_the_time_it_moves() -> None:
    """Somebody else's trainer, an evaluation, a long export after the last step."""
    ranks = lambda now: {0: pulse(step=0, phase=STARTING, moves=now), 1: pulse(step=0)}  # noqa: E731
    assert first_alarm(ranks, 5000) is None
    ranks = lambda now: {0: pulse(phase=ENDING, moves=now), 1: pulse(phase=ENDING)}  # noqa: E731
    assert first_alarm(ranks, 5000) is None


def test_a_session_that_is_made_late() -> None:
    late = 3000
    ranks = lambda now: {0: pulse(step=0, phase=STARTING)} if now > late else {}  # noqa: E731
    assert first_alarm(ranks, 5000) == late + 1 + PATIENCE * AFTER + 1


def test_time_in_which_nobody_looked_does_not_count() -> None:
    """The job was suspended, the supervisor with it."""
    liveness = HangDetector(AFTER, 0.0)
    for now in range(10):
        liveness.update({0: pulse(moves=now), 1: pulse(state="T")}, float(now))
    later = 10_000.0
    liveness.update({0: pulse(moves=9), 1: pulse(state="T")}, later)
    assert liveness.hang(later) is None
    liveness.update({0: pulse(moves=9), 1: pulse(state="T")}, later + 2)
    found = liveness.hang(later + 2)
    assert found is not None
    assert found.rank == 1


def test_a_rank_that_has_left_while_the_others_wait_for_it() -> None:
    liveness = HangDetector(AFTER, 0.0)
    for now in range(int(AFTER) + 2):
        liveness.update({0: pulse(), 1: pulse(phase=ENDING), 2: pulse()}, float(now))
    found = liveness.hang(AFTER + 1)
    assert found is not None
    assert found.rank == 1
    assert found.message == "rank 1 has left after step 5; the others wait for it"
    for now in range(int(AFTER) + 2, int(3 * AFTER)):
        liveness.update({0: pulse(phase=ENDING), 1: pulse(phase=ENDING)}, float(now))
    assert liveness.hang(3 * AFTER) is None


@pytest.mark.parametrize(("phase", "seen"), [(STEPPING, True), (STARTING, True), (ENDING, False)])
def test_a_rank_that_is_gone(phase: int, seen: bool) -> None:
    """It may do so at its end; the launcher tells of it, if it was bad, within some seconds."""
    liveness = HangDetector(AFTER, 0.0)
    told = []
    for now in range(60):
        gone = pulse(phase=phase, state=GONE if now >= 10 else "S")
        liveness.update({0: pulse(moves=now), 1: gone}, float(now))
        told += [now] * liveness.vanished(float(now))
    assert told == (list(range(10 + int(VANISHED) + 1, 60)) if seen else [])


def test_what_a_shell_does_after_the_session_is_no_concern_of_its() -> None:
    """Its node watches it as it does programs without a session."""
    over = lambda now: {rank: pulse(phase=ENDING, state=GONE) for rank in (0, 1)}  # noqa: E731
    assert first_alarm(over, 5000) is None


def test_the_first_rank_that_still_removes_what_is_old_is_waited_for() -> None:
    ranks = lambda now: {0: pulse(phase=SAVING), 1: pulse(phase=ENDING)}  # noqa: E731
    assert first_alarm(ranks, int(PATIENCE * AFTER)) is None
