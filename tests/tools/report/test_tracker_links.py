"""Where else a run's metrics are, by its spec; what a spec names is no address by that alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcrun.observe.read.selection import Finder
from hpcrun.tools.report import page
from hpcrun.tools.report.page import TrackerLink
from tests.support.experiment import Experiment


def links(directory: Path, **spec: Any) -> list[TrackerLink]:
    Experiment(directory).submit((3,), spec=spec)
    [one] = Finder(directory).resolve(["study"])
    return page.tracker_links(one)


def test_none(tmp_path: Path) -> None:
    assert links(tmp_path) == []


def test_tensorboard_is_a_command(tmp_path: Path) -> None:
    [found] = links(tmp_path / "a b", tracking={"tensorboard": True})
    path = tmp_path / "a b" / "study" / "runs" / "3" / "tracking" / "tensorboard"
    assert found.command == f"tensorboard --logdir '{path}'"


def test_a_run_of_wandb(tmp_path: Path) -> None:
    [found] = links(tmp_path, tracking={"wandb": {"entity": "lab", "project": None}})
    assert found.address.startswith("https://wandb.ai/lab/study/runs/")
    assert found.text == "lab/study"


def test_wandb_without_what_an_address_needs(tmp_path: Path) -> None:
    [found] = links(tmp_path, tracking={"wandb": {"project": "p"}})
    assert (found.address, found.command) == ("", "")
    assert found.text.startswith("project p, run ")


def test_wandb_offline(tmp_path: Path) -> None:
    [found] = links(tmp_path, tracking={"wandb": {"mode": "offline", "entity": "lab"}})
    assert found.address == ""
    assert found.command.startswith("wandb beta sync ")


@pytest.mark.parametrize(
    ("server", "address"),
    [
        ("https://mlflow.lab.example:5000/ml", "https://mlflow.lab.example:5000/ml"),
        ("http://10.0.0.7", "http://10.0.0.7"),
        ("javascript:alert(1)", ""),
        ("https://user:secret@host", ""),
        ("postgresql://user:secret@host/mlflow", ""),
        ("https://x/?token=abc", ""),
        ("file:///etc/passwd", ""),
    ],
)
def test_only_plain_addresses_of_the_web_are_links(
    server: str, address: str, tmp_path: Path
) -> None:
    variables = {"variables": {"WANDB_BASE_URL": server}}
    blocks = {"mlflow": {"uri": server}, "wandb": {"entity": "a/../b?", "project": "<p>"}}
    wandb, mlflow = links(tmp_path, tracking=blocks, environment=variables)
    assert mlflow.address == address
    assert bool(wandb.address) is bool(address)
    assert "secret" not in f"{mlflow}{wandb}"
    if address:
        assert wandb.address.startswith(f"{address}/a%2F..%2Fb%3F/%3Cp%3E/runs/")


def test_a_database_of_mlflow_is_looked_at_by_a_command(tmp_path: Path) -> None:
    [found] = links(tmp_path, tracking={"mlflow": {"uri": "sqlite:////a b/x.db"}})
    assert found.text == "experiment study"
    assert found.command == "mlflow ui --backend-store-uri 'sqlite:////a b/x.db'"
