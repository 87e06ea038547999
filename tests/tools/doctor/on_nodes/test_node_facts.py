"""What a node tells of itself; here, of this machine."""

from __future__ import annotations

import json
import shutil
import sys
import threading
import time
from pathlib import Path

import pytest

from hpcrun.tools.doctor.on_nodes import gpu_query, node_facts


def test_the_facts_are_plain_data() -> None:
    facts = node_facts.read({"fast_interface": None})
    assert json.loads(json.dumps(facts)) == facts
    assert facts["python"] == sys.executable
    assert set(facts["compiler"]) == {"c++", "ninja", "nvcc", "Python.h"}
    assert facts["compiler"]["c++"] == shutil.which("g++")


def test_the_model_of_a_processor(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    for text, model in (
        ("cpu family\t: 25\nmodel\t\t: 1\nmodel name\t: AMD EPYC 7763\n", "AMD EPYC 7763"),
        ("processor\t: 0\ncpu\t\t: POWER9\nclock\t: 3800MHz\n", "POWER9"),
        ("processor\t: 0\nCPU part\t: 0xd4f\n", "0xd4f"),
        ("", ""),
    ):
        path.write_text(text)
        assert node_facts.processor(path) == model
    assert node_facts.processor(tmp_path / "none") == ""


def test_gpus_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> list[dict[str, object]]:
        raise gpu_query.GpuTrouble("it hangs")

    monkeypatch.setattr(gpu_query, "is_there", lambda: True)
    monkeypatch.setattr(gpu_query, "read", broken)
    found = node_facts.gpus()
    assert (found["gpus"], found["gpu_trouble"]) == (None, "it hangs")


def test_fsync_leaves_nothing(tmp_path: Path) -> None:
    assert 0 < node_facts.sync_seconds(tmp_path, "sync-n1") < 5
    assert [*tmp_path.iterdir()] == []
    with pytest.raises(OSError, match="No such file"):
        node_facts.sync_seconds(tmp_path / "gone", "sync-n1")


def test_a_file_that_appears(tmp_path: Path) -> None:
    path = tmp_path / "from-n1"
    assert node_facts.wait_for(path, "text", 0.1) is None

    def write() -> None:
        time.sleep(0.2)
        path.write_text("old")
        time.sleep(0.1)
        path.write_text("text")

    threading.Thread(target=write).start()
    took = node_facts.wait_for(path, "text", 10)
    assert took is not None
    assert took >= 0.2
