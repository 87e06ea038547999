"""Reading ``/sys/class/infiniband``, also where its files do not answer."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from hpcrun.run.fabric import adapters, link_check
from hpcrun.run.fabric.adapters import AdapterReading
from tests.support import sysfs_tree
from tests.support.sysfs_tree import SysfsTree, rails


def test_a_port_as_the_kernel_tells_it(tmp_path: Path) -> None:
    rails(tmp_path, 2)
    found = adapters.read(tmp_path, patience=60)
    assert found.gpus == {"0000:02:01.0", "0000:12:01.0"}
    port = found.ports[1]
    assert (port.name, port.layer, port.state, port.phys_state) == (
        *("mlx5_1:1", "InfiniBand", "ACTIVE", "LinkUp"),
    )
    assert (port.rate, port.width, port.link) == (400.0, 4, sysfs_tree.NDR)
    assert port.pci == ("pci0000:10", "0000:10:01.0", "0000:11:00.0", "0000:12:00.0")
    assert (port.gpus, port.interfaces) == ({"0000:12:01.0"}, ("ib1",))


def test_a_machine_without_adapters(tmp_path: Path) -> None:
    assert adapters.read(tmp_path, patience=60) == AdapterReading()


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    """A pipe would be waited for."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"x" * 100_000)
    assert adapters.text(tmp_path / "pipe") == ""
    assert len(adapters.text(tmp_path / "file")) == 4096


def test_a_file_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the adapter's firmware hangs: the others count, and nobody waits a second time."""
    tree = SysfsTree(tmp_path)
    for number in (0, 1):
        tree.hca(f"mlx5_{number}", 0x10 * number)
    answer, calls, reached, read = threading.Event(), [], threading.Event(), adapters.text

    def text(path: Path) -> str:
        if path.name == "state" and "mlx5_1" in str(path):
            calls.append(path)
            reached.set()
            answer.wait()
        return read(path)

    monkeypatch.setattr(adapters, "text", text)
    try:
        adapters.read(tmp_path, patience=0.0)
        assert reached.wait(60)
        found = adapters.read(tmp_path, patience=60)
        assert (found.ports, found.is_late) == ((), True)
        assert len(calls) == 1
        report = link_check.report({}, found)
        assert report is not None
        assert [one["kind"] for one in report["findings"]] == ["unreadable"]
    finally:
        answer.set()
    stuck = adapters._stuck
    if stuck is not None:
        stuck.join(60)
    assert [port.name for port in adapters.read(tmp_path, patience=60).ports] == [
        *("mlx5_0:1", "mlx5_1:1")
    ]
