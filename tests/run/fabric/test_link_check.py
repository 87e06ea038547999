"""Nodes whose links differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcrun.run.fabric import adapters, compute_ports, link_check
from tests.support import sysfs_tree
from tests.support.sysfs_tree import SysfsTree, rails


@pytest.fixture(autouse=True)
def _no_choice_of_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCL_IB_HCA", raising=False)


def _report(root: Path) -> Any:
    return link_check.report({}, adapters.read(root, patience=60))


def _alone(root: Path, rate: str) -> Any:
    SysfsTree(root).hca("mlx5_0")
    SysfsTree(root).port("mlx5_0", rate=rate)
    return _report(root)


def test_mixed_rate_across_nodes(tmp_path: Path) -> None:
    """Nothing is wrong with n2 in its own eyes: it has one port."""
    reports = {name: _alone(tmp_path / name, sysfs_tree.NDR) for name in ("n1", "n3", "n4")}
    reports["n2"] = _alone(tmp_path / "n2", sysfs_tree.NDR_2X)
    assert reports["n2"]["findings"] == []
    assert link_check.compare(reports) == [
        {
            "node": "n2",
            "kind": "differs",
            "message": "it has 1 InfiniBand port at 200 Gb/sec (2X NDR) for NCCL, n1, n3, n4 have "
            "1 InfiniBand port at 400 Gb/sec (4X NDR)",
        }
    ]


def test_of_two_nodes_the_lesser_one_is_named(tmp_path: Path) -> None:
    rails(tmp_path / "n1")
    rails(tmp_path / "n2").port("mlx5_3", state=sysfs_tree.DOWN)
    reports = {name: _report(tmp_path / name) for name in ("n2", "n1")}
    down, differs = link_check.compare(reports)
    assert (down["node"], down["port"], down["kind"]) == ("n2", "mlx5_3:1", "down")
    assert (differs["node"], differs["kind"]) == ("n2", "differs")
    assert "it has 7 InfiniBand ports" in differs["message"]
    assert differs["message"].endswith("n1 has 8 InfiniBand ports at 400 Gb/sec (4X NDR)")


def test_nodes_with_other_names_of_the_same_ports_are_alike(tmp_path: Path) -> None:
    rails(tmp_path / "n1", 1)
    SysfsTree(tmp_path / "n2").hca("ibp65s0")
    assert link_check.compare({n: _report(tmp_path / n) for n in ("n1", "n2")}) == []


def test_a_node_without_adapters_among_others(tmp_path: Path) -> None:
    reports = {"n1": _report(tmp_path / "none"), "n2": _alone(tmp_path / "n2", sysfs_tree.NDR)}
    assert reports["n1"] is None
    (found,) = link_check.compare(reports)
    assert (found["node"], found["message"].split(",")[0]) == ("n1", "it has no port for NCCL")
    assert link_check.compare({"n1": None, "n3": None}) == []
    assert link_check.choices({"n1": None}, {"n1": None}) == []


def test_the_choice_is_told_once_for_nodes_that_are_alike(tmp_path: Path) -> None:
    reports, hcas = {}, {}
    for node in ("n1", "n2", "n3"):
        rails(tmp_path / node, 2)
        reports[node] = _report(tmp_path / node)
        hcas[node] = compute_ports.hca_filter({}, adapters.read(tmp_path / node, patience=60))
    assert link_check.choices(reports, hcas) == [
        "n1, n2, n3: NCCL_IB_HCA is =mlx5_0:1,mlx5_1:1, as read there; fabric.hca in the profile "
        "decides"
    ]
