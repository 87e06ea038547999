"""``hpcrun scaling`` as it is typed, with a program whose steps take as long as its share."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree.ElementTree import tostring

import pytest

from hpcrun.tools.perf import scaling
from hpcrun.tools.perf.on_nodes.trial_log import FINAL, MEASURED, TrialRecord, TrialScore
from hpcrun.tools.perf.scaling import STRONG, WEAK, ScalePoint, Scaling
from tests.support import command

PROGRAM = """
import time


class Engine:
    global_steps = 0


def train(session):
    sizes = session.deepspeed_config
    engine = Engine()
    session.restore(engine)
    for step in session.steps(total=100):
        time.sleep(0.005 * sizes["train_batch_size"] / session.world_size)
        engine.global_steps += 1
"""
SPEC = """
name: paced
entry: train.py:train
cluster: local
deepspeed: {train_batch_size: 4, train_micro_batch_size_per_gpu: 2}
resources: {ntasks_per_node: 1, cpus_per_task: 1, time: "00:10:00"}
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "paced.yaml").write_text(SPEC)
    return tmp_path


def _scaling(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return command.hpcrun("scaling", "paced.yaml", *arguments, root=place / "root", cwd=place)


def test_one_rank_is_compared_with_two_and_the_plot_is_written(place: Path) -> None:
    answer = _scaling(place, "--ranks", "2,1", "--json")
    assert answer.returncode == 0, answer.stderr
    points = json.loads(answer.stdout)["points"]
    found = {(one["kind"], one["ranks"]): one for one in points}
    assert {key: one["train_batch_size"] for key, one in found.items()} == {
        ("strong", 1): 4,
        ("strong", 2): 4,
        ("weak", 1): 4,
        ("weak", 2): 8,
    }
    # Half of the samples on each rank take half as long; as many, as long.
    assert 1.2 < found["strong", 2]["speed_up"] <= 2.1
    assert 0.6 < found["weak", 2]["efficiency"] <= 1.1
    assert len(found["strong", 2]["steps"]) == 20
    page = place / "paced.scaling.html"
    assert "2 ranks, weak" in page.read_text()
    page.write_text("mine")
    answer = _scaling(place, "--ranks", "1")
    assert answer.returncode == 2
    assert "which `hpcrun scaling` did not write" in answer.stderr


def test_a_dry_run_says_what_is_refused_and_why(place: Path) -> None:
    answer = _scaling(place, "--ranks", "1,3", "--dry-run", "--json")
    assert answer.returncode == 0, answer.stderr
    found = {(one["kind"], one["ranks"]): one for one in json.loads(answer.stdout)["points"]}
    assert "no whole numbers fit" in found["strong", 3]["problem"]
    assert found["weak", 3]["train_batch_size"] == 12
    assert not (place / "root").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "one of --nodes and --ranks"),
        (("--nodes", "1", "--ranks", "1"), "one of --nodes and --ranks"),
        (("--nodes", "1,x"), "accepted are whole numbers"),
        (("--ranks", "3", "deepspeed.train_micro_batch_size_per_gpu=3"), "no whole numbers fit"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    place: Path, arguments: tuple[str, ...], told: str
) -> None:
    answer = _scaling(place, *arguments)
    assert answer.returncode == 2
    assert told in answer.stderr


def _point(kind: str, ranks: int, train: int, seconds: float | None) -> ScalePoint:
    steps = () if seconds is None else (seconds,)
    record = TrialRecord(0, FINAL, MEASURED, 0.0, steps)
    return ScalePoint(kind, 1, ranks, train, 1, TrialScore((record,)))


def _of_points(*points: ScalePoint) -> Scaling:
    base: Any = SimpleNamespace(name="<b>fine")
    return Scaling(base, list(points), [])


def test_efficiency_is_that_of_a_rank_against_the_fewest_ranks() -> None:
    strong = [_point(STRONG, 1, 16, 1.0), _point(STRONG, 4, 16, 0.5)]
    weak = [_point(WEAK, 2, 8, None), _point(WEAK, 4, 16, 1.0), _point(WEAK, 8, 32, 1.25)]
    found = _of_points(*strong, *weak)
    assert [found.speed_up(one) for one in strong] == [1.0, 2.0]
    assert [found.efficiency(one) for one in strong] == [1.0, 0.5]
    # The first of the weak ones was not measured: the next one is what others are compared with.
    assert [found.efficiency(one) for one in weak] == [None, 1.0, 0.8]
    assert weak[0].problem == "not measured"


def test_the_page_shows_each_measurement_and_escapes_names() -> None:
    found = _of_points(_point(STRONG, 1, 16, 1.0), _point(STRONG, 4, 16, 0.5))
    page = scaling.render(found, ("A", "B"), [("1", "<i>")])
    assert page.startswith(scaling.PAGE_MARK)
    assert "<b>" not in page
    assert "&lt;i&gt;" in page
    assert "4 ranks, strong: 50%" in page
    drawing = tostring(scaling.chart(found), encoding="unicode")
    assert drawing.count("<circle") == 2
    assert "src=" not in page
    empty = _of_points(_point(WEAK, 2, 8, None))
    assert "<circle" not in tostring(scaling.chart(empty), encoding="unicode")
