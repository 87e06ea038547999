"""What nodes were busy with, averaged."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcrun.observe.read import node_usage
from hpcrun.state import files
from tests.support.experiment import T0, Experiment


@pytest.fixture
def study(tmp_path: Path) -> Experiment:
    study = Experiment(tmp_path)
    study.submit((0,))
    return study


def test_means_by_node_and_the_units_of_people(study: Experiment) -> None:
    attempt = study.start(0, 1)
    gpus = [
        {"index": index, "utilization": 80 + 10 * index, "memory": 2**30 * (index + 1)}
        | {"power": 300.5, "temperature": 60 + index}
        for index in range(2)
    ]
    for place in range(1_000):
        sample = {"time": T0 + 10 * place, "cpu": 10 if place < 500 else 30, "gpus": gpus}
        files.append(attempt.telemetry("n1"), sample | {"memory": 2**31, "network": [1e6, 3e6]})
    found = node_usage.read(study.run(), runs=1)
    assert found.samples == 1_000
    assert len(found.times) == 240
    values = found.nodes["n1"]
    assert (values["cpu"][0], values["cpu"][-1]) == (10, 30)
    one = {key: column[0] for key, column in values.items()}
    assert one == {
        **{"gpu": 85, "gpu_least": 80, "gpu_memory": 2, "power": 601, "temperature": 61},
        **{"cpu": 10, "memory": 2, "network": 4},
    }
    [summary] = found.summary
    assert summary.values["cpu"] == (20, 30)


def test_what_could_not_be_read_is_no_value(study: Experiment) -> None:
    attempt = study.start(0, 1)
    files.append(
        attempt.telemetry("n1"),
        {"time": T0, "cpu": None, "gpus": "none", "network": [True, "x"], "memory": float("nan")},
        {"time": T0 + 10, "cpu": 7.0, "gpus": [{"index": 0}, 3], "fabric": []},
        {"time": "now", "cpu": 9.0},
    )
    files.append(attempt.telemetry("n2"), {"time": T0 + 5, "cpu": 1.0, "gpus": []})
    found = node_usage.read(study.run(), runs=1)
    assert {node: set(values) for node, values in found.nodes.items()} == {
        "n1": {"cpu"},
        "n2": {"cpu"},
    }
    assert found.samples == 2


def test_attempts_follow_each_other_and_gaps_are_gaps(study: Experiment) -> None:
    for number, (node, first) in enumerate((("n1", 0), ("n2", 1_000)), 1):
        attempt = study.start(0, number, when=T0 + first)
        lines = [{"time": T0 + first + 10 * place, "cpu": 10.0 * number} for place in range(9)]
        files.append(attempt.telemetry(node), *lines)
    found = node_usage.read(study.run(), runs=1)
    data = found.to_data()
    assert set(data["values"]["cpu"]) == {"n1", "n2"}
    assert found.nodes["n1"]["cpu"][-1] is None
    assert found.nodes["n2"]["cpu"][0] is None
    assert found.times == sorted(found.times)
    means = {value for node in found.nodes.values() for value in node["cpu"]}
    assert means == {10.0, 20.0, None}


def test_many_nodes_are_drawn_in_part_and_summed_up_in_full(study: Experiment) -> None:
    attempt = study.start(0, 1)
    for node in range(20):
        files.append(attempt.telemetry(f"n{node:02}"), {"time": T0, "cpu": 50.0})
    found = node_usage.read(study.run(), runs=1)
    assert (len(found.nodes), len(found.summary), found.left_out) == (16, 20, 4)


def test_nothing_was_sampled(study: Experiment) -> None:
    study.start(0, 1)
    assert node_usage.read(study.run(), runs=1) == node_usage.RunTelemetry()


def test_what_is_not_read_is_told(study: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_usage, "MOST_READ", 3)
    attempt = study.start(0, 1)
    os.mkfifo(attempt.telemetry("n0"))
    for node in ("n1", "n2"):
        samples = [{"time": T0 + 10 * place, "cpu": 7.0} for place in range(2)]
        files.append(attempt.telemetry(node), *samples)
    found = node_usage.read(study.run(), runs=1)
    assert (found.samples, found.is_cut) == (3, True)
    assert found.unread == (f"{attempt.telemetry('n0')}: a FIFO, not a regular file",)
    monkeypatch.setattr(node_usage, "MOST_READ", 4)
    found = node_usage.read(study.run(), runs=1)
    assert (found.samples, found.is_cut) == (4, False)
