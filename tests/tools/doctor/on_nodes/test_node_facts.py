"""What a node tells of itself; here, of this machine."""

from __future__ import annotations

import json
import shutil
import stat
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from hpcrun.tools.doctor.on_nodes import node_facts
from hpcrun.tools.doctor.on_nodes.node_facts import Ask, GpuTrouble


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
        raise GpuTrouble("it hangs")

    monkeypatch.setattr(node_facts, "has_driver", lambda: True)
    monkeypatch.setattr(node_facts, "read_gpus", broken)
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


UUID = "GPU-29017365-4723-b07f-2ddf-a631c231412d"
H100 = f"NVIDIA H100 80GB HBM3, {UUID}, 550.127.05, 81559, 4, 0, Enabled, 0, No, 1980, 1980, 16, 16"
GEFORCE = f"NVIDIA GeForce RTX 4090, {UUID}, 535.104, 24564, 812, 3, [N/A], [N/A], [N/A], 210, 3105"


def _asking(lines: Sequence[str], reasons: str | None = "0x0000000000000000") -> Ask:
    def ask(argv: Sequence[str]) -> str:
        if "index" in argv[1]:
            return "".join(f"{line}\n" for line in lines)
        if reasons is None or "clocks_event" in argv[1]:
            raise GpuTrouble('Field "clocks_event_reasons.active" is not a valid field to query.')
        return f"{reasons}\n" * len(lines)

    return ask


def test_two_boards_of_a_node() -> None:
    found = node_facts.read_gpus(_asking([f"0, {H100}, 31", f"1, {H100}, 33"]))
    assert [gpu["index"] for gpu in found] == [0, 1]
    assert found[1] == {
        **{"index": 1, "name": "NVIDIA H100 80GB HBM3", "uuid": UUID, "driver": "550.127.05"},
        **{"memory": 81559, "memory_used": 4, "utilization": 0, "ecc": "Enabled"},
        **{"ecc_errors": 0, "retired_pending": "No", "clock": 1980, "clock_most": 1980},
        **{"pcie_width": 16, "pcie_width_most": 16, "temperature": 33},
    }


def test_what_a_board_does_not_know_is_left_out() -> None:
    (gpu,) = node_facts.read_gpus(_asking([f"0, {GEFORCE}, 8, 16, 45"], None))
    assert {"ecc", "ecc_errors", "retired_pending", "slowdown", "trouble"}.isdisjoint(gpu)
    assert (gpu["pcie_width"], gpu["pcie_width_most"]) == (8, 16)


@pytest.mark.parametrize("words", ["[Unknown Error]", "[GPU requires reset]", "[GPU is lost]"])
def test_a_board_in_trouble(words: str) -> None:
    line = f"0, {H100}, 31".replace("81559", words)
    (gpu,) = node_facts.read_gpus(_asking([line]))
    assert gpu["trouble"] == words.strip("[]")


@pytest.mark.parametrize(
    ("reasons", "words"),
    [
        ("0x0000000000000001", None),
        ("0x0000000000000004", None),
        ("0x0000000000000048", "HW slowdown, HW thermal slowdown"),
        ("0x0000000000000080", "HW power brake"),
        ("[N/A]", None),
    ],
)
def test_what_slows_a_board(reasons: str, words: str | None) -> None:
    (gpu,) = node_facts.read_gpus(_asking([f"0, {H100}, 31"], reasons))
    assert gpu.get("slowdown") == words


@pytest.mark.parametrize("text", ["No devices were found", "Unable to determine the device handle"])
def test_what_is_no_answer(text: str) -> None:
    with pytest.raises(GpuTrouble, match=text):
        node_facts.read_gpus(_asking([text]))


def _program(directory: Path, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = directory / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")


def test_a_program_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(tmp_path, "echo NVIDIA-SMI has failed because it couldnt; exit 9", monkeypatch)
    assert node_facts.has_driver()
    with pytest.raises(GpuTrouble, match="exit code 9: NVIDIA-SMI has failed"):
        node_facts.read_gpus()


def test_a_driver_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(tmp_path, "sleep 60", monkeypatch)
    monkeypatch.setattr(node_facts, "PATIENCE", 0.3)
    with pytest.raises(GpuTrouble, match=r"no answer within 0\.3 s"):
        node_facts.read_gpus()


def test_what_slurm_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS"):
        monkeypatch.delenv(name, raising=False)
    assert node_facts.given_gpus() is None
    monkeypatch.setenv("SLURM_JOB_GPUS", "0,1,2,3")
    assert node_facts.given_gpus() == 4
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert node_facts.given_gpus() == 2
    # Parts of boards: nvidia-smi lists the boards.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-6ee1a7c2,MIG-0b1c1a52,MIG-71f6a1f0")
    assert node_facts.given_gpus() is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "NoDevFiles")
    monkeypatch.delenv("SLURM_JOB_GPUS")
    assert node_facts.given_gpus() is None
