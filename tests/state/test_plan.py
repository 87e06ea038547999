"""The frozen plan: what is written is what is read."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from hpcrun import bounded_json
from hpcrun.errors import BrokenFile, UsageError
from hpcrun.state import files, plan_file
from hpcrun.state.plan import Array, Entry, Plan, RunPlan


def _run(number: int, **resources: Any) -> RunPlan:
    spec = {"resources": {"nodes": 1, "ntasks_per_node": None, "gpus_per_node": 0, **resources}}
    entry = Entry("script", file="train.py", argv=("--lr=1", "${hpcrun:directory}"))
    return RunPlan(number, f"id{number}", "lr=1", {"config.lr": 1.0}, entry, spec)


def _plan() -> Plan:
    runs = (_run(4), _run(2, nodes=2))
    arrays = (Array((4,), "#!/bin/sh\n", 0.0), Array((2, 9), "", 1.5))
    cluster = {"executor": "local", "fabric": {}}
    return Plan("study", "/s/x.yaml", "/s", "sub", cluster, 8, runs, arrays)


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    plan = _plan()
    plan_file.write(plan, tmp_path / "plan.json")
    read = plan_file.read(tmp_path / "plan.json")
    assert read == plan
    assert isinstance(read.runs[0].entry.argv, tuple)
    assert isinstance(read.arrays[1].runs, tuple)


@pytest.mark.parametrize(
    ("number", "left"),
    [(4, [4]), (2, [2]), (9, [4, 2])],
    ids=["its own model", "differs from one", "is not there: the whole plan says so"],
)
def test_one_run_alone(tmp_path: Path, number: int, left: list[int]) -> None:
    plan_file.write(_plan(), tmp_path / "plan.json")
    found = plan_file.read(tmp_path / "plan.json", number)
    assert [run.number for run in found.runs] == left
    assert found.runs == tuple(_plan().run(one) for one in left)
    assert found.arrays == _plan().arrays


def test_one_run_of_a_plan_that_has_no_lines(tmp_path: Path) -> None:
    files.write_json(tmp_path / "plan.json", plan_file.pack(_plan()))
    assert plan_file.read(tmp_path / "plan.json", 4) == _plan()


def test_one_run_of_a_torn_plan(tmp_path: Path) -> None:
    plan_file.write(_plan(), tmp_path / "plan.json")
    content = (tmp_path / "plan.json").read_bytes()
    (tmp_path / "plan.json").write_bytes(content[: content.index(b"\n[2,") + 6])
    with pytest.raises(BrokenFile, match="is not a plan"):
        plan_file.read(tmp_path / "plan.json", 2)


def test_what_could_not_be_read_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_json, "MOST_MEMORY", 5_000)
    with pytest.raises(UsageError, match="study: the plan of 2 runs has so many values"):
        plan_file.write(_plan(), tmp_path / "plan.json")
    assert list(tmp_path.iterdir()) == []


def test_the_same_plan_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        plan_file.write(_plan(), tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_runs_are_found_by_number() -> None:
    assert _plan().run(2).identity == "id2"
    with pytest.raises(UsageError, match="study: there is no run 7"):
        _plan().run(7)


def test_another_format_is_refused_by_name(tmp_path: Path) -> None:
    data = {**_plan().to_data(), "format": 99}
    files.write_json(tmp_path / "plan.json", data)
    with pytest.raises(UsageError, match="format 99, this hpcrun reads 2"):
        plan_file.read(tmp_path / "plan.json")


@pytest.mark.parametrize(
    ("resources", "ranks", "world"),
    [
        ({}, 1, 1),
        ({"gpus_per_node": 8, "nodes": 2}, 8, 16),
        ({"ntasks_per_node": 3, "nodes": 2}, 3, 6),
        ({"ntasks_per_node": 2, "gpus_per_node": 4}, 2, 2),
    ],
)
def test_one_rank_a_gpu_unless_told_otherwise(
    resources: dict[str, Any], ranks: int, world: int
) -> None:
    run = _run(1, **resources)
    assert (run.ranks_per_node, run.world_size) == (ranks, world)


def test_one_run_is_no_array() -> None:
    single, several = _plan().arrays
    assert (single.is_array, several.is_array) == (False, True)


def _many() -> Plan:
    """Runs that differ in all ways that JSON has."""
    specs: list[dict[str, Any]] = [
        {"config": {"a": 1, "b": [1, {"c": 2.0}], "d": None}, "resources": {"nodes": 1}},
        {"config": {"a": True, "b": [1, {"c": 2}], "d": False}, "resources": {"nodes": 1}},
        {"config": {"a": 0.0, "b": [1], "d": {}}, "resources": {"nodes": 1}},
        {"config": {"a": -0.0, "b": [1], "d": []}, "resources": {"nodes": 1}},
        {"config": {"d": [], "b": [1], "a": "x"}, "resources": {"nodes": 1}},
        {"resources": {"nodes": 1}, "config": {"d": [], "b": [1], "a": "x"}},
        {"config": {str(n): n for n in range(200)}, "resources": {"nodes": 2}},
        {"config": {str(n): n + 1 for n in range(200)}, "resources": {"nodes": 2}},
    ]
    entries = [Entry("script", file="t.py", argv=("--a", f"--b={n}")) for n in range(7)]
    runs = [
        RunPlan(number, f"id{number}", f"n={number}", {"n": number}, entry, spec)
        for number, (entry, spec) in enumerate(
            zip([*entries, Entry("command", argv=("true",))], specs, strict=True)
        )
    ]
    return dataclasses.replace(_plan(), runs=tuple(runs), repeats=("config.seed",))


def test_a_run_comes_back_to_the_letter(tmp_path: Path) -> None:
    """True is not 1, -0.0 not 0.0, and keys keep their order."""
    plan_file.write(_many(), tmp_path / "plan.json")
    read = plan_file.read(tmp_path / "plan.json")
    assert [repr(run) for run in read.runs] == [repr(run) for run in _many().runs]
    assert read == _many()


def test_a_run_that_is_like_others_takes_a_line(tmp_path: Path) -> None:
    config = {f"key{number}": number for number in range(100)}
    runs = tuple(
        dataclasses.replace(_run(number), spec={"config": {**config, "key3": number}})
        for number in range(100)
    )
    plan_file.write(dataclasses.replace(_plan(), runs=runs), tmp_path / "plan.json")
    lines = (tmp_path / "plan.json").read_text().splitlines()
    assert len(lines) == 102
    assert max(len(line) for line in lines[1:]) < 100
