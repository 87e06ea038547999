"""Metrics across attempts: every step once, whatever was torn or replayed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrun.observe.read import metric_curves
from hpcrun.state import files, metrics_file
from hpcrun.state.layout import RunPaths
from tests.support.experiment import T0, Experiment


@pytest.fixture
def study(tmp_path: Path) -> Experiment:
    study = Experiment(tmp_path)
    study.submit((0,))
    study.start(0, 1)
    return study


def test_replayed_steps_count_once(study: Experiment) -> None:
    study.metrics(0, 1, range(1, 11), loss=1.0)
    study.start(0, 2)
    study.metrics(0, 2, range(6, 9), restored=5, loss=2.0)
    curve = metric_curves.read(study.run())
    assert list(curve.steps) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [values["loss"] for values in curve.steps.values()] == [1.0] * 5 + [2.0] * 3
    assert metric_curves.latest(study.run(), [1, 2]).step == 8


def test_a_fresh_start_replaces_everything(study: Experiment) -> None:
    study.metrics(0, 1, range(1, 11), loss=1.0)
    study.start(0, 2)
    study.metrics(0, 2, [], restored=0)
    assert metric_curves.read(study.run()).steps == {}
    assert metric_curves.latest(study.run(), [1, 2]).step == 0


def test_restored_and_nothing_logged_yet(study: Experiment) -> None:
    study.metrics(0, 1, range(1, 11), loss=lambda step: float(step))
    study.start(0, 2)
    study.metrics(0, 2, [], restored=7)
    latest = metric_curves.latest(study.run(), [1, 2])
    assert (latest.step, latest.values, latest.total_steps) == (7, {"loss": 7.0}, 100)


def test_a_script_without_a_session_replaces_from_its_first_step(study: Experiment) -> None:
    study.metrics(0, 1, range(1, 11), restored=None, loss=1.0)
    study.start(0, 2)
    study.metrics(0, 2, range(4, 6), restored=None, loss=2.0)
    assert list(metric_curves.read(study.run()).steps) == [1, 2, 3, 4, 5]


def test_a_script_without_times_has_a_pace_and_signs_of_life(study: Experiment) -> None:
    paths = study.run().attempt(1)
    files.append(paths.metrics, *({"step": step, "loss": 1.0} for step in range(1, 41)))
    files.append(
        paths.session,
        {"event": "read_from", "time": T0, "source": "metrics_file", "total_steps": 100},
        {"event": "seen", "time": T0 + 10, "step": 20},
        {"event": "seen", "time": T0 + 20, "step": 40},
    )
    found = metric_curves.latest(study.run(), [1])
    assert (found.step, found.total_steps, found.time) == (40, 100, T0 + 20)
    assert found.remaining == 60 * 0.5
    files.append(paths.log_sizes, {"time": T0 + 95, "sizes": {"0": 10}})
    assert metric_curves.latest(study.run(), [1]).time == T0 + 95, "it still prints"


def test_lines_of_several_files_may_be_out_of_order(study: Experiment) -> None:
    study.metrics(0, 1, [100, 200, 150], restored=None, loss=1.0)
    assert metric_curves.latest(study.run(), [1]).step == 200


def test_lines_of_one_step_are_merged(study: Experiment) -> None:
    study.metrics(0, 1, [10], loss=1.0)
    study.metrics(0, 1, [10], restored=None, accuracy=0.5)
    curve = metric_curves.read(study.run())
    assert curve.steps == {10: {"loss": 1.0, "accuracy": 0.5}}
    assert curve.names == ["loss", "accuracy"]


def test_first_last_best(study: Experiment) -> None:
    losses = {1: 5.0, 2: float("nan"), 3: 1.0, 4: float("inf"), 5: 2.0}
    study.metrics(0, 1, losses, loss=lambda step: losses[step])
    curve = metric_curves.read(study.run())
    assert curve.first("loss") == 5.0
    assert curve.last("loss") == 2.0
    assert curve.best("loss") == (3, 1.0)
    assert curve.best("loss", "max") == (1, 5.0)
    assert curve.best("absent") is None
    assert curve.last("absent") is None


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\n\n",
        b'{"step": 3, "lo',
        b"\x00\xff\xfe\n",
        b'{"loss": 1}\n{"step": "x"}\n{"step": true}\n{"step": null}\n[]\n3\n',
        b'{"step": 1.5, "loss": 2}\n',
    ],
)
def test_garbage_is_passed_over(study: Experiment, garbage: bytes) -> None:
    path = study.run().attempt(1).metrics
    path.write_bytes(garbage)
    assert metric_curves.read(study.run()).steps == {}
    assert metric_curves.latest(study.run(), [1]).step is None
    with open(path, "ab") as stream:
        stream.write(b'\n{"step": 9, "loss": 1, "note": "x", "flag": true}\n{"step": 10, "l')
    assert metric_curves.read(study.run()).steps == {9: {"loss": 1.0}}
    assert metric_curves.latest(study.run(), [1]).step == 9


def test_long_files_are_read_from_the_end(study: Experiment) -> None:
    study.metrics(0, 1, range(1, 5001), loss=1.0)
    assert study.run().attempt(1).metrics.stat().st_size > 10 * metric_curves.TAIL_BYTES
    assert metric_curves.latest(study.run(), [1]).step == 5000


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40)), min_size=1, max_size=5))
def test_the_curve_is_what_an_uninterrupted_run_would_have_logged(
    tmp_path_factory: pytest.TempPathFactory, attempts: list[tuple[int, int]]
) -> None:
    study = Experiment(tmp_path_factory.mktemp("root"))
    study.submit((0,))
    reached = 0
    for number, (restore, more) in enumerate(attempts, 1):
        restore = min(restore, reached)
        study.start(0, number)
        reached = restore + more
        study.metrics(0, number, range(restore + 1, reached + 1), restored=restore, n=number)
    steps = metric_curves.read(study.run()).steps
    assert list(steps) == list(range(1, reached + 1))
    assert metric_curves.latest(study.run(), range(1, len(attempts) + 1)).step == reached


def test_numbers_that_are_none_are_passed_over(tmp_path: Path) -> None:
    run = RunPaths(tmp_path / "3")
    paths = run.attempt(1)
    paths.directory.mkdir(parents=True)
    paths.metrics.write_text(
        '{"step": 1, "time": 1e99, "loss": "1", "step_seconds": Infinity, "a": 2}\n'
        f'{{"step": 2, "loss": 1{400 * "0"}}}\n'
    )
    found = metric_curves.latest(run, [1])
    assert (found.step, found.time, found.seconds_per_step) == (1, None, None)
    assert found.values == {"step_seconds": float("inf"), "a": 2.0}


def _read_from(study: Experiment, attempt: int, unit: str, total: int) -> None:
    event = {"event": "read_from", "time": T0, "source": "log", "unit": unit, "total_steps": total}
    files.append(study.run().attempt(attempt).session, event)


def test_attempts_that_count_something_else_are_left_out(study: Experiment) -> None:
    """A run was at step 192 of 8."""
    study.metrics(0, 1, [64, 128, 192], restored=None, loss=3.0)
    _read_from(study, 1, "bar of 64", 64)
    study.start(0, 2)
    _read_from(study, 2, "epochs", 8)
    assert metric_curves.latest(study.run(), [1, 2]).step is None
    study.metrics(0, 2, [1, 2], restored=None, loss=2.0)
    found = metric_curves.latest(study.run(), [1, 2])
    assert (found.step, found.total_steps) == (2, 8)
    study.start(0, 3)
    assert metric_curves.latest(study.run(), [1, 2, 3]).step == 2
    assert list(metric_curves.read(study.run()).steps) == [1, 2]


def test_a_total_that_is_not_known_any_more(study: Experiment) -> None:
    study.metrics(0, 1, [50, 100], restored=None)
    _read_from(study, 1, "bar of 50", 50)
    files.append(
        study.run().attempt(1).session,
        {"event": "read_from", "time": T0, "source": "log", "unit": "bar of 50"},
    )
    assert metric_curves.latest(study.run(), [1]).total_steps is None


@pytest.mark.parametrize(
    ("step", "total", "shown"),
    [
        (160, 160, (160, 160)),
        (161, 160, (160, 160)),
        (1010, 1000, (1000, 1000)),
        (192, 8, (192, None)),
        (None, 8, (None, 8)),
        (7, None, (7, None)),
    ],
)
def test_nothing_is_beyond_the_end(
    step: int | None, total: int | None, shown: tuple[int | None, int | None]
) -> None:
    found = metric_curves.Latest(step, total).bounded()
    assert (found.step, found.total_steps) == shown


def test_the_furthest_of_a_files_last_steps(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert (metrics_file.first_step(path), metrics_file.last_step(path)) == (None, None)
    path.write_text("".join(f'{{"step": {step}}}\n' for step in (3, 7, 9, 8)) + '{"step": 70')
    assert (metrics_file.first_step(path), metrics_file.last_step(path)) == (3, 9)
