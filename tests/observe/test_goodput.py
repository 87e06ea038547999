"""Where a run's time went, from what its attempts left."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hpcrun.ledger import Attempt
from hpcrun.observe import goodput
from hpcrun.observe.goodput import Goodput, Traces

Pair = tuple[Attempt, Any]


def attempt(number: int, began: float, ended: float | None, traces: Traces) -> Pair:
    found = Attempt(number)
    found.started = {"time": began}
    found.workers_started = began + 1
    found.ended = None if ended is None else {"time": ended}
    return found, lambda furthest: traces


def session(restored: float, seconds: float, *saves: tuple[float, float]) -> list[dict[str, Any]]:
    lines = [{"event": "restored", "time": restored, "seconds": seconds}]
    return lines + [{"event": "saved", "time": at, "blocked": blocked} for at, blocked in saves]


def test_a_run_that_lost_an_attempt() -> None:
    first = attempt(
        1, 110.0, 200.0, Traces(session(130.0, 2.0, (150.0, 3.0)), 131.0, 180.0, None, 9)
    )
    second = attempt(
        2, 205.0, 300.0, Traces(session(220.0, 5.0, (260.0, 4.0)), 221.0, 295.0, 240.0, 20)
    )
    found = goodput.of_run(100.0, [first, second], 999.0, over=True)
    assert found == Goodput(
        useful=(180 - 130 - 3) + (295 - 240 - 4),
        replayed=240 - 220,
        startup=(130 - 110 - 2) + (220 - 205 - 5),
        restore=2 + 5,
        save=3 + 4,
        waiting=(110 - 100) + (200 - 180) + (205 - 200) + (300 - 295),
    )
    assert found.wall == 200.0
    assert found.to_data()["share"] == round(98 / 200, 4)


def test_an_attempt_that_goes_on_is_at_work_until_now() -> None:
    running = attempt(1, 100.0, None, Traces(session(110.0, 0.0), 111.0, 120.0))
    found = goodput.of_run(100.0, [running], 150.0, over=False)
    assert found == Goodput(useful=40.0, startup=10.0)


def test_a_run_that_waits_to_be_started_again() -> None:
    ended = attempt(1, 100.0, 130.0, Traces(session(110.0, 0.0), 111.0, 120.0))
    found = goodput.of_run(90.0, [ended], 200.0, over=False)
    assert found == Goodput(useful=10.0, startup=10.0, waiting=10.0 + 10.0 + 70.0)


def test_a_program_that_says_nothing() -> None:
    assert goodput.of_run(90.0, [attempt(1, 100.0, 130.0, Traces())], 200.0, over=True) is None
    assert goodput.of_run(None, [], 200.0, over=True) is None


def test_an_attempt_that_ended_before_its_ranks_said_a_word() -> None:
    """It is all start-up, where the program tells of other attempts."""
    told = attempt(2, 140.0, 200.0, Traces(session(150.0, 0.0), 151.0, 190.0, None, 9))
    found = goodput.of_run(90.0, [attempt(1, 100.0, 130.0, Traces()), told], 200.0, over=True)
    assert found is not None
    assert found.startup == 30.0 + 10.0
    assert found.wall == 110.0


def test_a_script_that_logs_but_has_no_session() -> None:
    found = goodput.of_run(
        100.0, [attempt(1, 100.0, 150.0, Traces((), 120.0, 150.0, None, 5))], 200.0, over=True
    )
    assert found == Goodput(useful=30.0, startup=20.0)


moments = st.floats(0, 1000, allow_nan=False)


@given(
    st.lists(
        st.tuples(
            *(moments, st.none() | moments, moments, moments),
            st.lists(st.tuples(moments, moments), max_size=3),
            *(st.none() | moments, st.none() | moments, st.none() | moments),
        ),
        max_size=4,
    ),
    st.none() | moments,
    st.booleans(),
)
def test_nothing_is_counted_twice_or_below_zero(
    drawn: list[Any], submitted: float | None, over: bool
) -> None:
    """Clocks of several nodes may be at odds."""
    told = [
        attempt(
            number, began, ended, Traces(session(restored, seconds, *saves), first, last, again)
        )
        for number, (began, ended, restored, seconds, saves, first, last, again) in enumerate(drawn)
    ]
    found = goodput.of_run(submitted, told, 1000.0, over=over)
    if found is None:
        return
    assert min(vars(found).values()) >= -1e-9
    starts = [began for began, *_ in drawn] + ([] if submitted is None else [submitted])
    assert found.wall <= 1000.0 - min(starts) + 1e-6
