"""Metrics forwarded to the real MLflow, in the database that its server would have."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcrun.run import tracker as tracker_module
from hpcrun.run.tracking import mlflow_tracker
from hpcrun.state import files, ledger
from tests.run.test_tracker import Log, values
from tests.support.place import Place


def client(uri: str) -> Any:
    """Return a client; importing MLflow takes seconds."""
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri)


@pytest.fixture(scope="session")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow database, which takes seconds to make."""
    path = tmp_path_factory.mktemp("mlflow") / "empty.db"
    client(f"sqlite:///{path}").search_experiments()
    return path


class MlflowLog(Log):
    """What attempts log, and what MLflow then has."""

    def __init__(self, place: Place, uri: str) -> None:
        wanted = {"uri": uri, "experiment": None, "tags": {"team": "nlp"}}
        super().__init__(place, mlflow=wanted)
        self.client = client(uri)

    def runs(self) -> list[Any]:
        experiment = self.client.get_experiment_by_name("study")
        return list(self.client.search_runs([experiment.experiment_id]))

    def mlflow(self, name: str = "loss") -> list[tuple[int, float]]:
        """Step and value, in the order in which they came."""
        (run,) = self.runs()
        history = self.client.get_metric_history(run.info.run_id, name)
        return [(one.step, one.value) for one in sorted(history, key=lambda one: one.step)]

    def forward(self, start: int = 1) -> None:
        assert self.tracker("mlflow", start).once() == 0

    def end(self, attempt: int, outcome: str, action: str) -> None:
        cause = {"kind": "rank_crash", "message": "exit 1"} if outcome == "failed" else None
        ledger.write(self.run, ledger.ENDED, attempt, outcome=outcome, cause=cause)
        ledger.write(self.run, ledger.DECIDED, attempt, action=action, reason="of the test")


@pytest.fixture
def log(place: Place, empty: Path, tmp_path: Path) -> MlflowLog:
    return MlflowLog(place, f"sqlite:///{shutil.copy(empty, tmp_path / 'mlflow.db')}")


def test_one_run_through_all_attempts(log: MlflowLog) -> None:
    """Steps that are done over again keep the values sent first."""
    log.attempt(1)
    log.log(1, *range(1, 11))
    log.forward()
    log.attempt(2, restored=8)
    log.log(2, 9, 10, 11)
    log.end(2, "completed", "nothing")
    log.forward(start=2)
    assert log.mlflow() == [*values(1, 1, 10), *values(2, 11, 11)]
    (run,) = log.runs()
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "study/3"
    assert run.data.tags["team"] == "nlp"
    assert run.data.params["config.lr"] == "0.1"
    assert run.data.params["deepspeed.train_batch_size"] == "8"
    assert run.data.params["config.data"] == '["x", 1]'


@pytest.mark.parametrize(
    ("outcome", "action", "status"),
    [("failed", "stop", "FAILED"), ("failed", "requeue", "SCHEDULED")],
)
def test_how_it_ended(log: MlflowLog, outcome: str, action: str, status: str) -> None:
    log.attempt(1)
    log.log(1, 1)
    log.end(1, outcome, action)
    log.forward()
    (run,) = log.runs()
    assert run.info.status == status


def test_cancelled_by_its_user(log: MlflowLog) -> None:
    log.attempt(1)
    log.log(1, 1)
    ledger.set_intent(log.run, ledger.CANCELLED)
    log.forward()
    (run,) = log.runs()
    assert run.info.status == "KILLED"


class Killed(BaseException):
    """In place of a SIGKILL at a known instruction."""


@pytest.mark.parametrize("moment", ["before it sends", "between two requests", "after it sent"])
def test_killed_between_sending_and_noting_it(
    log: MlflowLog, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is lost, and nothing is there twice."""
    monkeypatch.setattr(mlflow_tracker, "_METRICS", 2)
    log.attempt(1)
    log.log(1, 1, 2, 3)
    one = log.tracker("mlflow")
    one.forward()
    log.log(1, 4, 5, 6)
    opened: Any = one._tracker
    real = opened._client.log_batch
    left = {"before it sends": 0, "between two requests": 1, "after it sent": 2}[moment]

    def log_batch(*arguments: Any, **named: Any) -> None:
        nonlocal left
        if left == 0:
            raise Killed
        left -= 1
        real(*arguments, **named)
        if moment == "after it sent" and left == 0:
            raise Killed

    monkeypatch.setattr(opened._client, "log_batch", log_batch)
    with pytest.raises(Killed):
        one.forward()
    log.log(1, 7)
    log.forward(start=2)
    assert log.mlflow() == values(1, 1, 7)


def test_a_step_of_many_metrics_that_are_cut(
    log: MlflowLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tag names no step of which a metric is missing."""
    monkeypatch.setattr(mlflow_tracker, "_METRICS", 2)
    log.attempt(1)
    names = [f"loss/{number}" for number in range(3)]
    files.append(log.run.attempt(1).metrics, {"step": 1, **dict.fromkeys(names, 1.0)})
    one = log.tracker("mlflow")
    one.forward()
    opened: Any = one._tracker
    real, calls = opened._client.log_batch, []

    def log_batch(run: str, **named: Any) -> None:
        calls.append(named["tags"][0].value)
        real(run, **named)

    monkeypatch.setattr(opened._client, "log_batch", log_batch)
    files.append(log.run.attempt(1).metrics, {"step": 2, **dict.fromkeys(names, 2.0)})
    one.forward()
    assert calls == ["1", "2"]
    assert [log.mlflow(name) for name in names] == [[(1, 1.0), (2, 2.0)]] * 3


def test_a_run_that_was_deleted_there_is_sent_anew(log: MlflowLog) -> None:
    log.attempt(1)
    log.log(1, 1, 2)
    log.forward()
    log.client.delete_run(log.runs()[0].info.run_id)
    log.log(1, 3)
    log.forward()
    assert log.mlflow() == values(1, 1, 3)


def test_names_and_values_that_it_refuses(log: MlflowLog, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(mlflow_tracker, "say", said.append)
    log.attempt(1)
    files.append(log.run.attempt(1).metrics, {"step": 1, "acc@5": 0.5, "loss": float("nan")})
    log.forward()
    assert log.mlflow("acc_5") == [(1, 0.5)]
    ((step, value),) = log.mlflow("loss")
    assert step == 1
    assert value != value
    assert said == ["mlflow: acc@5 is called acc_5 there"]


def test_a_server_that_does_not_answer_costs_the_run_nothing(place: Place) -> None:
    place.submit(
        'echo \'{"step": 1, "loss": 1.0}\' >> $HPCRUN_METRICS_FILE',
        tracking={"mlflow": {"uri": "http://127.0.0.1:9", "experiment": None, "tags": {}}},
    )
    code, said = place.supervise(MLFLOW_HTTP_REQUEST_MAX_RETRIES="0")
    assert code == 0, said
    assert place.attempt().outcome == "completed"
    text = place.run.attempt(1).tracker_log("mlflow").read_text()
    # Of low priority: beside others, the library may not even be imported by then.
    assert ("127.0.0.1" in text and "tried again" in text) or "does not return in time" in text


def test_without_the_library(log: MlflowLog, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(tracker_module, "say", said.append)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    log.attempt(1)
    log.log(1, 1)
    with pytest.raises(ImportError):
        log.tracker("mlflow").forward()
