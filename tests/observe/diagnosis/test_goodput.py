"""Where a run's time went, from what its attempts left."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrun.observe.diagnosis import cost, goodput
from hpcrun.observe.diagnosis.goodput import Goodput, Span, Traces
from hpcrun.state import session_log
from hpcrun.state.ledger import Attempt
from hpcrun.state.plan import Entry, RunPlan
from hpcrun.state.session_log import SessionLog

Pair = tuple[Attempt, Any]


def attempt(number: int, began: float, ended: float | None, traces: Traces, **started: Any) -> Pair:
    found = Attempt(number)
    found.started = {"time": began, "submission": 1, **started}
    found.workers_started = began + 1
    found.ended = None if ended is None else {"time": ended, "outcome": "completed"}
    return found, lambda furthest: traces


def of_run(
    submitted: float | None, attempts: list[Pair], until: float, *, over: bool
) -> Goodput | None:
    dates = {} if submitted is None else {1: submitted}
    found = goodput.spans(dates, attempts, until, over=over)
    assert all(one.end == other.start for one, other in itertools.pairwise(found))
    return goodput.summed(found) if found else None


def session(restored: float, seconds: float, *saves: tuple[float, float]) -> SessionLog:
    lines = [{"event": "restored", "time": restored, "seconds": seconds}]
    lines += [{"event": "saved", "time": at, "blocked": blocked} for at, blocked in saves]
    return session_log.parse(lines)


def test_a_run_that_lost_an_attempt() -> None:
    first = attempt(
        1, 110.0, 200.0, Traces(session(130.0, 2.0, (150.0, 3.0)), 131.0, 180.0, None, 9)
    )
    second = attempt(
        2, 205.0, 300.0, Traces(session(220.0, 5.0, (260.0, 4.0)), 221.0, 295.0, 240.0, 20)
    )
    found = of_run(100.0, [first, second], 999.0, over=True)
    assert found == Goodput(
        useful=(180 - 130 - 3) + (295 - 240 - 4),
        replayed=240 - 220,
        startup=(130 - 110 - 2) + (220 - 205 - 5),
        restore=2 + 5,
        save=3 + 4,
        idle=(200 - 180) + (205 - 200) + (300 - 295),
        queued=110 - 100,
    )
    assert found.wall == 200.0
    assert found.to_data()["share"] == round(98 / 200, 4)


def test_an_attempt_that_goes_on_is_at_work_until_now() -> None:
    running = attempt(1, 100.0, None, Traces(session(110.0, 0.0), 111.0, 120.0))
    found = of_run(100.0, [running], 150.0, over=False)
    assert found == Goodput(useful=40.0, startup=10.0)


def test_a_run_that_waits_to_be_started_again() -> None:
    ended = attempt(1, 100.0, 130.0, Traces(session(110.0, 0.0), 111.0, 120.0))
    found = of_run(90.0, [ended], 200.0, over=False)
    assert found == Goodput(useful=10.0, startup=10.0, idle=10.0, queued=10.0 + 70.0)


def test_a_program_that_says_nothing() -> None:
    assert of_run(90.0, [attempt(1, 100.0, 130.0, Traces())], 200.0, over=True) is None
    assert of_run(None, [], 200.0, over=True) is None


def of_program(began: float, ended: float | None, **known: Any) -> Pair:
    return attempt(1, began, ended, Traces(is_program=True, **known))


def test_a_program_whose_steps_have_times() -> None:
    """It starts until its first step, and is of use until its end, where that is a good one."""
    found = of_program(100.0, 192.0, first=130.0, begun=121.0, last=180.0, alive=190.0)
    assert of_run(90.0, [found], 999.0, over=True) == Goodput(
        useful=190 - 121, startup=121 - 100, idle=192 - 190, queued=10
    )


def test_a_program_that_crashed_was_of_use_until_its_last_sign_of_life() -> None:
    found = of_program(100.0, 192.0, first=130.0, begun=121.0, last=150.0, alive=170.0)
    spent = of_run(90.0, [found], 999.0, over=True)
    assert spent == Goodput(useful=170 - 121, startup=21, idle=192 - 170, queued=10)


def test_a_program_whose_lines_came_all_at_once() -> None:
    found = of_program(100.0, 192.0, first=180.0, last=180.0)
    spent = of_run(90.0, [found], 999.0, over=True)
    assert spent == Goodput(startup=1, running=180 - 101, idle=12, queued=10)


def test_a_program_that_shows_no_steps_is_running() -> None:
    for ended in (None, 200.0):
        found = of_program(100.0, ended)
        assert of_run(90.0, [found], 200.0, over=False) == Goodput(
            startup=1.0, running=99.0, queued=10.0
        )
    hung = of_program(100.0, 200.0, alive=150.0)
    spent = of_run(100.0, [hung], 200.0, over=True)
    assert spent == Goodput(startup=1.0, running=49.0, idle=50.0)
    assert spent.share is None
    data = spent.to_data()
    assert (data["running"], data["share"]) == (49.0, None)
    total = cost.of_run("study", lambda number: plan(), goodput.spans({}, [hung], 200.0, over=True))
    assert "how many of them were useful is not known" in cost.sentences(total)[0]


@pytest.mark.parametrize(
    ("points", "until"),
    [
        ([], None),
        ([(80, 10.0)], None),
        ([(30, 10.0), (60, 20.0)], 20.0),
        ([(30, 10.0), (60, 20.0), (70, 30.0)], 20.0),
        # It logs every twenty steps.
        ([(40, 10.0), (60, 20.0), (80, 30.0)], 20.0),
        ([(45, 10.0), (65, 20.0)], 17.5),
    ],
)
def test_until_when_steps_were_repeated(
    points: list[tuple[int, float]], until: float | None
) -> None:
    assert goodput.repeated_until(points, 60) == until


@pytest.mark.parametrize(
    ("finished", "seen", "saved", "until"),
    [
        (None, None, None, None),
        (None, 150.0, None, 150.0),
        (200.0, None, None, 200.0),
        # Its processes took a while to leave.
        (155.0, 150.0, None, 150.0),
        (155.0, 150.0, 154.0, 154.0),
        (151.0, 150.0, 152.0, 151.0),
        # It worked on without a word.
        (200.0, 150.0, None, 200.0),
    ],
)
def test_until_when_a_program_worked(
    finished: float | None, seen: float | None, saved: float | None, until: float | None
) -> None:
    times = {"finished": finished, "seen": seen, "saved": saved}
    lines = [{"event": kind, "time": time} for kind, time in times.items() if time is not None]
    traces = Traces(session_log.parse(lines), first=100.0, last=150.0)
    logged = [(10, 100.0), (20, 102.0), (30, 104.0), (40, 150.0)]
    assert goodput.worked_until(traces, logged) == until
    if finished is not None:
        assert goodput.worked_until(traces, logged[:1]) == finished


@pytest.mark.parametrize(
    ("starting", "finished", "until"),
    [(10.0, 162.0, 162.0), (40.0, 162.0, 150.0), (40.0, 175.0, 175.0), (900.0, 190.0, 190.0)],
)
def test_where_starting_took_long_leaving_may(
    starting: float, finished: float, until: float
) -> None:
    lines = [{"event": "finished", "time": finished}, {"event": "seen", "time": 150.0}]
    traces = Traces(session_log.parse(lines), first=100.0, last=150.0)
    logged = [(10, 100.0), (20, 102.0), (30, 104.0), (40, 150.0)]
    assert goodput.worked_until(traces, logged, starting) == until


def test_an_attempt_of_a_program_that_did_not_come_to_its_first_step() -> None:
    told = of_program(140.0, 200.0, first=160.0, begun=150.0, last=200.0)
    silent = of_program(100.0, 130.0)
    found = of_run(100.0, [silent, told], 999.0, over=True)
    assert found is not None
    assert (found.startup, found.running) == (30.0 + 10.0, 0.0)


@pytest.mark.parametrize(
    ("logged", "restored", "began"),
    [
        ([], 0, None),
        ([(1, 100.0)], 0, 100.0),
        ([(100, 100.0)], 0, None),
        ([(100, 100.0)], 99, 100.0),
        ([(10, 100.0), (20, 110.0), (30, 120.0)], 0, 90.0),
        ([(50, 100.0), (60, 110.0)], 40, 90.0),
        # Not all gaps are those of steps: there is an evaluation among them.
        ([(1, 100.0), (2, 101.0), (3, 150.0), (4, 151.0)], 0, 99.0),
        ([(5, 100.0), (5, 100.0), (3, 90.0)], 0, None),
    ],
)
def test_when_the_first_step_began(
    logged: list[tuple[int, float]], restored: int, began: float | None
) -> None:
    assert goodput.first_began(logged, restored) == began


def test_an_attempt_that_ended_before_its_ranks_said_a_word() -> None:
    """It is all start-up, where the program tells of other attempts."""
    told = attempt(2, 140.0, 200.0, Traces(session(150.0, 0.0), 151.0, 190.0, None, 9))
    found = of_run(90.0, [attempt(1, 100.0, 130.0, Traces()), told], 200.0, over=True)
    assert found is not None
    assert found.startup == 30.0 + 10.0
    assert found.wall == 110.0


def ended(pair: Pair, kind: str, action: str) -> Pair:
    found, traces = pair
    assert found.ended is not None
    found.ended = {**found.ended, "outcome": "failed", "cause": {"kind": kind}}
    found.decided = {"action": action}
    return found, traces


def story() -> list[Pair]:
    """A crash that was restarted in place, a lost node, a stop, and another submission."""
    return [
        ended(
            attempt(1, 110.0, 150.0, Traces(session(120.0, 4.0), 121.0, 140.0, None, 9)),
            *("rank_crash", "restart"),
        ),
        ended(
            attempt(2, 152.0, 200.0, Traces(session(160.0, 2.0), 161.0, 190.0, 170.0, 15)),
            *("node_failure", "requeue"),
        ),
        ended(
            attempt(3, 260.0, 300.0, Traces(session(270.0, 0.0), 271.0, 299.0, 280.0, 20), pid=7),
            *("rank_crash", "stop"),
        ),
        attempt(4, 520.0, 600.0, Traces(session(530.0, 0.0), 531.0, 600.0), submission=2),
    ]


def test_each_stretch_has_its_kind_and_the_cause_that_it_is_charged_to() -> None:
    found = goodput.spans({1: 100.0, 2: 500.0}, story(), 999.0, over=True)
    assert [(one.kind, one.start, one.end, one.attempt, one.cause) for one in found] == [
        ("queued", 100.0, 110.0, 1, None),
        ("startup", 110.0, 116.0, 1, None),
        ("restore", 116.0, 120.0, 1, None),
        ("useful", 120.0, 140.0, 1, None),
        ("idle", 140.0, 150.0, 1, "rank_crash"),
        ("idle", 150.0, 152.0, 2, "rank_crash"),
        ("startup", 152.0, 158.0, 2, "rank_crash"),
        ("restore", 158.0, 160.0, 2, "rank_crash"),
        ("replayed", 160.0, 170.0, 2, "rank_crash"),
        ("useful", 170.0, 190.0, 2, None),
        ("idle", 190.0, 200.0, 2, "node_failure"),
        ("queued", 200.0, 260.0, 3, "node_failure"),
        ("startup", 260.0, 270.0, 3, "node_failure"),
        ("replayed", 270.0, 280.0, 3, "node_failure"),
        ("useful", 280.0, 299.0, 3, None),
        ("idle", 299.0, 300.0, 3, "rank_crash"),
        ("stopped", 300.0, 500.0, 4, "rank_crash"),
        ("queued", 500.0, 520.0, 4, "rank_crash"),
        ("startup", 520.0, 530.0, 4, "rank_crash"),
        ("useful", 530.0, 600.0, 4, None),
    ]
    assert goodput.summed(found).share == 129 / (500 - 200)


def test_a_save_behind_the_training_stands_still_at_its_beginning() -> None:
    saved = {"event": "saved", "time": 150.0, "seconds": 20.0, "blocked": 1.0}
    log = session_log.parse([*(event.record for event in session(110.0, 0.0)), saved])
    found = goodput.spans(
        {}, [attempt(1, 100.0, 200.0, Traces(log, 111.0, 200.0))], 999.0, over=True
    )
    assert [one for one in found if one.kind == "save"] == [Span("save", 130.0, 131.0, 1)]


def test_an_attempt_without_an_end_lasts_until_the_next() -> None:
    lost = attempt(1, 100.0, None, Traces(session(110.0, 0.0), 111.0, 150.0))
    again = attempt(2, 200.0, 300.0, Traces(session(210.0, 0.0), 211.0, 300.0), pid=7)
    found = of_run(100.0, [lost, again], 999.0, over=True)
    assert found == Goodput(useful=90.0 + 90.0, startup=20.0)


def plan(**resources: Any) -> RunPlan:
    asked = {
        **{"nodes": 2, "spare_nodes": 1, "ntasks_per_node": None, "cpus_per_task": None},
        **{"gpus_per_node": 0, **resources},
    }
    return RunPlan(3, "", "", {}, Entry("script", "train.py"), {"resources": asked})


def test_gpu_hours_count_spare_nodes_and_what_each_cause_cost() -> None:
    spans = goodput.spans({1: 100.0, 2: 500.0}, story(), 999.0, over=True)
    found = cost.of_run("study", lambda _: plan(gpus_per_node=12), spans)
    assert found.unit == "GPU-hours"
    assert round(found.paid * 100, 6) == 500 - 200 - 10 - 60 - 20
    assert round(found.hours.queued * 100, 6) == 10 + 60 + 20
    assert {kind: round(hours * 100, 6) for kind, hours in found.causes.items()} == {
        "rank_crash": 10 + 2 + 6 + 2 + 10 + 1 + 10,
        "node_failure": 10 + 10 + 10,
    }
    other = cost.of_run("study", lambda _: plan(cpus_per_task=4, ntasks_per_node=3), spans)
    assert (other.unit, round(other.paid * 100, 6)) == ("CPU-hours", 210)
    both = cost.totals([found, found, other])
    assert [(one.run, one.unit, round(one.paid * 100, 6)) for one in both] == [
        (None, "GPU-hours", 420),
        (None, "CPU-hours", 210),
    ]
    assert both[0].causes["node_failure"] == 2 * found.causes["node_failure"]


def test_a_script_that_logs_but_has_no_session() -> None:
    found = of_run(
        100.0,
        [attempt(1, 100.0, 150.0, Traces(SessionLog(), 120.0, 150.0, None, 5))],
        200.0,
        over=True,
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
    found = of_run(submitted, told, 1000.0, over=over)
    if found is None:
        return
    assert min(vars(found).values()) >= -1e-9
    starts = [began for began, *_ in drawn] + ([] if submitted is None else [submitted])
    assert found.wall <= 1000.0 - min(starts) + 1e-6


def test_without_an_end_on_record_a_run_that_is_over_ended_with_its_last_sign() -> None:
    lost = attempt(1, 100.0, None, Traces(session(110.0, 0.0), 111.0, 150.0))
    assert of_run(100.0, [lost], 99_999.0, over=True) == Goodput(useful=40.0, startup=10.0)


def test_a_run_that_was_given_up_and_submitted_again_waits_from_then_on() -> None:
    pair = attempt(1, 100.0, 150.0, Traces(session(110.0, 0.0), 111.0, 150.0))
    stopped = ended(pair, "rank_crash", "restart")
    found = goodput.spans({1: 100.0}, [stopped], 400.0, over=False, resubmitted=350.0)
    assert [(one.kind, one.start, one.end) for one in found[-2:]] == [
        ("stopped", 150.0, 350.0),
        ("queued", 350.0, 400.0),
    ]


def test_each_attempt_is_counted_at_the_size_that_it_had() -> None:
    spans = [Span("useful", 0.0, 3600.0, 1), Span("useful", 3600.0, 7200.0, 2)]
    plans = {1: plan(gpus_per_node=1, nodes=1, spare_nodes=0), 2: plan(gpus_per_node=1, nodes=8)}
    found = cost.of_run("study", lambda number: plans[number or 2], spans)
    assert (found.unit, found.paid) == ("GPU-hours", 1 + 9)


def _ended(**known: Any) -> Attempt:
    found = Attempt(1)
    found.ended = {"time": 1.0, "outcome": "failed", **known}
    return found


# The newest attempt, where it began, came to and saved, unseen saves -> the last step that stands.
STANDING: dict[str, tuple[Attempt, tuple[int | None, int | None, int | None, bool], int | None]] = {
    "completed": (_ended(outcome="completed"), (0, 90, 50, False), None),
    "it runs": (Attempt(1), (50, 70, None, False), 70),
    "it has not begun": (Attempt(1), (None, None, None, False), None),
    "it saved": (_ended(), (0, 90, 50, False), 50),
    "it saved nothing": (_ended(), (None, 90, None, False), 0),
    "nobody knows what it saved": (_ended(), (50, 90, None, True), None),
}


@pytest.mark.parametrize("name", STANDING)
def test_what_a_run_still_has(name: str) -> None:
    last, (restored, reached, kept, unseen), expected = STANDING[name]
    found = goodput.standing(
        last, restored=restored, reached=reached, kept=kept, saves_unseen=unseen
    )
    assert found == expected


def test_steps_that_were_not_kept_are_lost_and_charged_to_their_end() -> None:
    traces = Traces(session(110.0, 0.0), 111.0, 180.0, 130.0, 9, stood=150.0)
    found, _ = attempt(1, 100.0, 200.0, traces)
    assert found.ended is not None
    found.ended = {**found.ended, "outcome": "failed", "cause": {"kind": "rank_crash"}}
    spans = goodput.spans({1: 100.0}, [(found, lambda furthest: traces)], 999.0, over=True)
    assert goodput.summed(spans) == Goodput(
        startup=10.0, replayed=20.0, useful=20.0, lost=30.0, idle=20.0
    )
    assert [one.cause for one in spans if one.kind == "lost"] == ["rank_crash"]
    total = cost.of_run("study", lambda number: plan(), spans)
    assert "LOST" in cost.table([total]).headers
    assert any("steps that were lost" in line for line in cost.sentences(total))


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize(
    ("start", "end", "months"),
    [
        (1_699_000_000.0, 1_699_000_000.0, ["2023-11"]),
        (1_701_388_799.0, 1_701_388_800.0, ["2023-11"]),
        (1_701_388_800.0, 1_701_388_801.0, ["2023-12"]),
        (1_701_388_799.0, 1_706_745_601.0, ["2023-11", "2023-12", "2024-01", "2024-02"]),
    ],
)
def test_months(utc: None, start: float, end: float, months: list[str]) -> None:
    found = cost.by_month([Span("useful", start, end, 1)])
    assert [*found] == months
    assert sum(one.seconds for those in found.values() for one in those) == end - start


def test_a_span_of_centuries_is_divided_so_often_at_most() -> None:
    found = cost.by_month([Span("useful", 0.0, 2.5e11, 1)])
    assert 1_000 < len(found) < 1_300
    assert sum(one.seconds for those in found.values() for one in those) == 2.5e11
