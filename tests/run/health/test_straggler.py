"""Which rank holds up the others, from pulses alone; and what a real rank counts as waiting."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcrun.run.health import progress
from hpcrun.run.health.progress import STEPPING, RankProgress
from hpcrun.run.health.straggler import AGREE, LOOKS, PARTS, Straggler, StragglerDetector
from tests.support.place import REPOSITORY
from tests.support.waiting import until

# Share of the looks at which each rank waits.
Shares = dict[int, float]


def told(
    shares: Callable[[int], Shares],
    seconds: int,
    steps: float = 1.0,
    trained: Callable[[int], int] = int,
) -> list[Straggler]:
    """What is told in so many seconds, of which so many are ``trained``, with steps in each."""
    found, waits = StragglerDetector(), dict.fromkeys(shares(0), 0.0)
    answers = []
    for now in range(seconds):
        for rank, share in shares(now).items():
            waits[rank] += share
        pulses = {
            rank: RankProgress(
                rank, int(trained(now) * steps), STEPPING, now, now, "S", 0, round(waits[rank])
            )
            for rank in waits
        }
        answers.append(found.update(pulses))
    return [answer for answer in answers if answer is not None]


def test_a_rank_that_the_others_wait_for_is_told_of_once() -> None:
    found = told(lambda now: {0: 0.6, 1: 0.0, 2: 0.8}, 1000)
    assert found == [Straggler(1, 0.0, 0.6)]


def test_a_rank_whose_loader_is_slow_says_so() -> None:
    found = StragglerDetector()
    told = [
        found.update(
            {
                rank: RankProgress(
                    rank, now, STEPPING, now, now, "S", 0, (1 - rank) * now, rank * now
                )
                for rank in (0, 1)
            }
        )
        for now in range(60)
    ]
    assert [one for one in told if one] == [Straggler(1, 0.0, 1.0, 1.0)]


def test_it_takes_a_while() -> None:
    assert told(lambda now: {0: 0.6, 1: 0.0}, LOOKS * AGREE) == []
    assert told(lambda now: {0: 0.6, 1: 0.0}, LOOKS * AGREE + 2) != []


@pytest.mark.parametrize("step", [0.1, 1, 10])
def test_a_rank_that_is_ten_times_slower_is_told_of_within_a_minute(step: float) -> None:
    shares = {0: 0.9, 1: 0.0, 2: 0.9}
    assert told(lambda now: shares, 62, steps=1 / step) == [Straggler(1, 0.0, 0.9)]
    # One that evaluates alone for a minute, again and again, is none.
    found = told(
        lambda now: {0: 0.0, 1: 1.0} if now % 120 < 60 else {0: 0.3, 1: 0.3},
        3600,
        1 / step,
        lambda now: now // 120 * 60 + max(0, now % 120 - 60),
    )
    assert found == []


def test_another_one_is_told_of_when_it_becomes_slow() -> None:
    found = told(
        lambda now: {0: 0.6, 1: 0.0, 2: 0.8} if now < 200 else {0: 0.0, 1: 0.7, 2: 0.8}, 500
    )
    assert [one.rank for one in found] == [1, 0]


@pytest.mark.parametrize(
    "shares",
    [
        {0: 0.6, 1: 0.6},
        {0: 0.0, 1: 0.0},
        {0: 0.9, 1: 0.3, 2: 0.9},
        {0: 0.0, 1: 0.0, 2: 0.9},
        {0: 0.0},
    ],
    ids=["balanced", "alone", "all wait", "two are slow", "one rank"],
)
def test_what_is_none(shares: Shares) -> None:
    assert told(lambda now: shares, 1000) == []


def test_a_rank_that_evaluates_alone_now_and_then_is_none() -> None:
    every = LOOKS * (PARTS - AGREE + 2)
    found = told(lambda now: {0: 0.0, 1: 1.0} if now % every < LOOKS else {0: 0.5, 1: 0.5}, 2000)
    assert found == []


def test_without_steps_nothing_is_told() -> None:
    assert told(lambda now: {0: 0.6, 1: 0.0}, 1000, steps=0) == []


def test_ranks_that_come_and_go_begin_anew() -> None:
    found = StragglerDetector()
    one = RankProgress(1, 5, STEPPING, 0, 20, "S", 0, 0)
    assert found.update({}) is None
    assert found.update({0: one}) is None
    assert found.update({0: one, 1: one}) is None


WAITS = """
import sys, types
from pathlib import Path
from hpcrun.run.health import progress as pulse
heart = pulse.writer(Path(sys.argv[1]), 0)
heart.write(pulse.STEPPING, 1)
code = "import time\\ndef all_reduce(): time.sleep(60)"
module = types.ModuleType("comm")
exec(compile(code, f"/site-packages/{sys.argv[2]}/comm.py", "exec"), module.__dict__)
module.all_reduce()
"""


@pytest.mark.parametrize(
    ("where", "waits", "loads"),
    [
        ("torch/distributed", True, False),
        ("torch/utils/data", False, True),
        ("numpy", False, False),
    ],
)
def test_where_a_main_thread_is_counts(
    tmp_path: Path, where: str, waits: bool, loads: bool
) -> None:
    command = [sys.executable, "-c", WAITS, str(tmp_path), where]
    with subprocess.Popen(command, env={"PYTHONPATH": str(REPOSITORY)}) as process:
        until(lambda: 0 in (found := progress.read(tmp_path)) and found[0].looks >= 2)
        found = progress.read(tmp_path)[0]
        process.kill()
    assert (found.waits > 0, found.loads > 0) == (waits, loads)
    assert found.waits + found.loads <= found.looks
