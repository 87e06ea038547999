"""Profiles from what ranks wrote: the slowest rank, the MFU, and files that are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpcrun.errors import UsageError
from hpcrun.observe import step_profile
from hpcrun.observe.step_profile import StepProfile
from hpcrun.state.layout import AttemptPaths
from hpcrun.state.spec.profiling import COMMUNICATION, COMPUTE, DATA, HOST, OPTIMIZER


def _summary(rank: int, **more: Any) -> dict[str, Any]:
    """A rank whose 5 steps take 50 ms each, of which 20 are communication."""
    parts = {COMPUTE: 0.1, COMMUNICATION: 0.1, OPTIMIZER: 0.025, DATA: 0.0, HOST: 0.025}
    return {
        "taken": 15,
        "rank": rank,
        "node": f"n{rank}",
        "steps": 5,
        "bare_seconds": 0.2,
        "profiled_seconds": 0.25,
        "trace_seconds": 0.25,
        "flops": 4_000_000_000,
        "memory": {"parameters": 4000, "gradients": 4000, "activations": 2_000_000},
        "dtype": "bfloat16",
        "process_bytes": 500_000_000,
        "device": "cpu",
        "peak": 1e12,
        "trace_bytes": 45_000,
        "parts": parts,
        "hidden": 0.05,
        "phases": {"forward": 0.05},
        "collectives": {"gloo:all_reduce": 0.15},
        "problems": [],
        **more,
    }


def _collect(directory: Path, *ranks: dict[str, Any], peak: float | None = None) -> StepProfile:
    attempt = AttemptPaths(directory)
    for one in ranks:
        attempt.profile(one["rank"]).write_text(json.dumps(one))
    name = "fine-profile/0"
    return step_profile.of_summaries(name, attempt, len(ranks), 3, lambda *_: peak)


def _with(rank: int, **parts: float) -> dict[str, Any]:
    found = _summary(rank)
    return {**found, "parts": {**found["parts"], **parts}}


def test_times_are_of_a_step(tmp_path: Path) -> None:
    [one] = _collect(tmp_path, _summary(0)).ranks
    assert (one.bare, one.step, one.hidden) == pytest.approx((0.04, 0.05, 0.01))
    assert one.parts[COMPUTE] == pytest.approx(0.02)
    assert one.sum_of_parts == pytest.approx(one.step)
    assert one.busy == pytest.approx(0.03)
    # 4 GFLOP in 40 ms: 0.1 of a peak of 1 TFLOP/s.
    assert one.utilization == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("ranks", "slowest"),
    [
        # It waits least: what it does in that time is its own.
        ([_with(0), _with(1), _with(2, compute=0.18, communication=0.02)], (2, COMPUTE)),
        ([_with(0, data=0.09, communication=0.01), _with(1), _with(2)], (0, DATA)),
        ([_with(0), _with(1, host=0.115, communication=0.01)], (1, HOST)),
        # A rank that waits long is none: another one is.
        ([_with(0), _with(1), _with(2, communication=0.9)], None),
        ([_with(0), _with(1, compute=0.1001)], None),
        ([_with(0)], None),
    ],
)
def test_the_slowest_rank_is_the_one_that_waits_least(
    ranks: list[dict[str, Any]], slowest: tuple[int, str] | None, tmp_path: Path
) -> None:
    found = _collect(tmp_path, *ranks).slowest
    assert (None if found is None else (found.rank, found.part)) == slowest


def test_the_peak_of_a_gpu_is_that_of_its_data_sheet(tmp_path: Path) -> None:
    gpu = _summary(0, device="NVIDIA H100 80GB HBM3", peak=None, device_bytes=3_000_000_000)
    known = _collect(tmp_path, gpu, peak=989.4e12)
    assert known.utilization == pytest.approx(4e9 / 5 / 0.04 * 5 / 989.4e12)
    assert "the peak of NVIDIA H100 80GB HBM3 in bfloat16" in "\n".join(step_profile.head(known))
    assert "DEVICE" in step_profile.memory_table(known).headers
    unknown = _collect(tmp_path, {**gpu, "device": "Voodoo 2"})
    assert unknown.utilization is None
    assert "Voodoo 2 is not in the catalogue" in "\n".join(step_profile.head(unknown))


def test_a_profile_is_read_as_it_was_written(tmp_path: Path) -> None:
    found = _collect(tmp_path, _summary(0), _with(1, host=0.1, communication=0.0))
    attempt = AttemptPaths(tmp_path)
    attempt.whole_profile.write_text(json.dumps(found.to_data()))
    assert step_profile.read(attempt) == found


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"ranks": []}', '{"ranks": [3]}', "\x00"])
def test_a_broken_profile_is_none_for_a_report(text: str, tmp_path: Path) -> None:
    attempt = AttemptPaths(tmp_path)
    assert step_profile.read(attempt) is None
    attempt.whole_profile.write_text(text)
    assert step_profile.read(attempt) is None


def test_a_rank_that_ended_before(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="rank 0 of fine-profile/0 ended after 7 optimizer steps"):
        _collect(tmp_path, {"rank": 0, "taken": 7})


def test_a_rank_that_wrote_nothing(tmp_path: Path) -> None:
    attempt = AttemptPaths(tmp_path)
    with pytest.raises(UsageError, match=r"no optimizer step that can be seen"):
        step_profile.of_summaries("fine-profile/0", attempt, 1, 3, lambda *_: None)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"bare_seconds": "long"}, "bare_seconds is 'long', not a number"),
        ({"parts": {COMPUTE: 1.0}}, "parts has no communication"),
        ({"parts": {COMPUTE: "all"}}, "parts is"),
        ({"node": None}, "node is missing"),
    ],
)
def test_a_file_that_is_no_profile(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as raised:
        _collect(tmp_path, _summary(0, **change))
    assert said in raised.value.message
    assert "profile-00000.json" in raised.value.message


def test_many_ranks_are_shown_from_both_ends(tmp_path: Path) -> None:
    found = _collect(tmp_path, *(_with(rank, host=0.001 * rank) for rank in range(40)))
    numbers = [one.rank for one in step_profile.shown_ranks(found)]
    assert numbers == [*range(39, 31, -1), *range(7, -1, -1)]
    assert "24 ranks between these are not shown" in "\n".join(step_profile.findings(found))
    assert len(found.to_data()["ranks"]) == 40
