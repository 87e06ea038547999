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


def told(shares: Callable[[int], Shares], seconds: int, steps: float = 1.0) -> list[Straggler]:
    """What is told in so many seconds, in each of which some steps are finished."""
    found, waits = StragglerDetector(), dict.fromkeys(shares(0), 0.0)
    answers = []
    for now in range(seconds):
        for rank, share in shares(now).items():
            waits[rank] += share
        pulses = {
            rank: RankProgress(
                rank, int(now * steps), STEPPING, now, now, "S", 0, round(waits[rank])
            )
            for rank in waits
        }
        answers.append(found.update(pulses))
    return [answer for answer in answers if answer is not None]


def test_a_rank_that_the_others_wait_for_is_told_of_once() -> None:
    found = told(lambda now: {0: 0.6, 1: 0.0, 2: 0.8}, 1000)
    assert found == [Straggler(1, 0.0, 0.6)]


def test_it_takes_a_while() -> None:
    assert told(lambda now: {0: 0.6, 1: 0.0}, LOOKS * AGREE) == []
    assert told(lambda now: {0: 0.6, 1: 0.0}, LOOKS * AGREE + 2) != []


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


@pytest.mark.parametrize(("where", "waits"), [("torch/distributed", True), ("numpy", False)])
def test_a_main_thread_in_a_collective_waits(tmp_path: Path, where: str, waits: bool) -> None:
    command = [sys.executable, "-c", WAITS, str(tmp_path), where]
    with subprocess.Popen(command, env={"PYTHONPATH": str(REPOSITORY)}) as process:
        until(lambda: 0 in (found := progress.read(tmp_path)) and found[0].looks >= 2)
        found = progress.read(tmp_path)[0]
        process.kill()
    assert (found.waits > 0) is waits
    assert found.waits <= found.looks
