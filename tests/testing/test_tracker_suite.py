"""The suite for trackers: hpcrun's own pass it, and it names what is wrong with others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hpcrun.compile.spec import schema
from hpcrun.extensions import TRACKERS
from hpcrun.run.tracking import wandb_tracker
from hpcrun.run.tracking.interface import RunDescription
from hpcrun.state.metrics_file import Line
from hpcrun.state.spec.experiment import Mlflow, Wandb
from hpcrun.testing import check_tracker


def _tensorboard(directory: Path) -> Iterable[int]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(directory), {"scalars": 0}, purge_orphaned_data=True).Reload()
    return [one.step for one in found.Scalars("loss")]


def _wandb(directory: Path) -> Iterable[int]:
    return [
        one.history.step.num
        for path in wandb_tracker.offline_files(directory)
        for one in wandb_tracker.read_records(path)
        if one.HasField("history")
    ]


def _mlflow(uri: str) -> Iterable[int]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    [run] = client.search_runs([client.get_experiment_by_name("study").experiment_id])
    return [one.step for one in client.get_metric_history(run.info.run_id, "loss")]


def test_tensorboard() -> None:
    check_tracker(TRACKERS.load("tensorboard"), name="tensorboard", arrived=_tensorboard)


def test_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    settings = {**schema.defaults(Wandb), "mode": "offline"}
    check_tracker(TRACKERS.load("wandb"), settings, name="wandb", arrived=_wandb)


def test_mlflow(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    settings = {**schema.defaults(Mlflow), "uri": uri}
    check_tracker(TRACKERS.load("mlflow"), settings, name="mlflow", arrived=lambda _: _mlflow(uri))


class LineTracker:
    """A right tracker: a file of steps, of which the state is the newest that was sent."""

    starts_over = False

    def __init__(
        self, run: RunDescription, directory: Path, state: dict[str, Any], step: int
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._file = directory / "steps"
        self._steps = set(_lines(directory)) if self._file.exists() else set()
        self.state = {"step": step}

    def send(self, lines: Sequence[Line], kept: int | None) -> None:
        self._steps |= {line.step for line in lines}
        self.state = {"step": max(self._steps)}

    def close(self, ended: str | None) -> None:
        self._file.write_text("".join(f"{step}\n" for step in sorted(self._steps)))


def _lines(directory: Path) -> list[int]:
    return [int(line) for line in (directory / "steps").read_text().split()]


class OtherArguments(LineTracker):
    def __init__(self, run: RunDescription, directory: Path) -> None:
        super().__init__(run, directory, {}, 0)


class WithoutClose:
    def send(self, lines: Sequence[Line], kept: int | None) -> None: ...


class StateOfASet(LineTracker):
    def send(self, lines: Sequence[Line], kept: int | None) -> None:
        self.state = {"steps": {1}}


class StartsOverUnsaid(LineTracker):
    starts_over: Any = None


class LosesSteps(LineTracker):
    def send(self, lines: Sequence[Line], kept: int | None) -> None:
        super().send(lines[1:], kept)


class SendsTwice(LineTracker):
    def close(self, ended: str | None) -> None:
        with self._file.open("a") as stream:
            stream.write("".join(f"{step}\n" for step in sorted(self._steps)))


class FailsAtTheEnd(LineTracker):
    def close(self, ended: str | None) -> None:
        if ended == "cancelled":
            raise KeyError(ended)
        super().close(ended)


class SettingsOfAnything(LineTracker):
    class Settings:
        repository = "."


def test_a_right_one() -> None:
    check_tracker(LineTracker, arrived=_lines)


@pytest.mark.parametrize(
    ("tracker", "said"),
    [
        (OtherArguments, r"OtherArguments\(run, .*is called with 4 arguments: too many"),
        (WithoutClose, "WithoutClose has no close"),
        (StateOfASet, r"state is \{'steps': \{1\}\}; expected is a dictionary that JSON"),
        (StartsOverUnsaid, "starts_over is None; expected is True or False"),
        (LosesSteps, "step 1 was sent and is not there"),
        (SendsTwice, "step 1 is there 2 times; expected is once"),
        (FailsAtTheEnd, r"close\('cancelled'\) raises KeyError"),
        (SettingsOfAnything, r"Settings cannot be a block: .* is no dataclass"),
    ],
)
def test_it_says_what_is_wrong(tracker: type, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_tracker(tracker, arrived=_lines)
