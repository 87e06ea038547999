"""The login node's adapters, on a made ``/sys``; its interfaces are this machine's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcrun.run.node import network
from hpcrun.run.protocol.launch import Interface
from hpcrun.tools.init.starter import survey
from tests.support.sysfs_tree import NDR, SysfsTree


def test_interfaces_and_ports_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = SysfsTree(tmp_path)
    tree.hca("mlx5_0")
    found = [Interface("ib0", "10.0.0.1", "type"), Interface("eth0", "10.1.0.1", "")]
    monkeypatch.setattr(network, "candidates", lambda _sysfs: found)
    monkeypatch.setattr(network, "default_interface", lambda: "eth0")
    read = survey.read_network(tmp_path)
    assert read.interfaces == ("ib0 (InfiniBand)", "eth0 (default route)")
    assert read.adapters == (f"mlx5_0:1 InfiniBand, {NDR}",)
    assert not read.is_late


def test_this_machine(tmp_path: Path) -> None:
    assert survey.read_network(tmp_path).adapters == ()
    survey.read_network()
