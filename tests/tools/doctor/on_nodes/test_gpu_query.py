"""What nvidia-smi prints, on boards and drivers of several kinds.

Made after its manual and public reports of its output, not recorded on each of these boards.
"""

from __future__ import annotations

import stat
from collections.abc import Sequence
from pathlib import Path

import pytest

from hpcrun.tools.doctor.on_nodes import gpu_query
from hpcrun.tools.doctor.on_nodes.gpu_query import Ask, GpuTrouble

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
    found = gpu_query.read(_asking([f"0, {H100}, 31", f"1, {H100}, 33"]))
    assert [gpu["index"] for gpu in found] == [0, 1]
    assert found[1] == {
        **{"index": 1, "name": "NVIDIA H100 80GB HBM3", "uuid": UUID, "driver": "550.127.05"},
        **{"memory": 81559, "memory_used": 4, "utilization": 0, "ecc": "Enabled"},
        **{"ecc_errors": 0, "retired_pending": "No", "clock": 1980, "clock_most": 1980},
        **{"pcie_width": 16, "pcie_width_most": 16, "temperature": 33},
    }


def test_what_a_board_does_not_know_is_left_out() -> None:
    (gpu,) = gpu_query.read(_asking([f"0, {GEFORCE}, 8, 16, 45"], None))
    assert {"ecc", "ecc_errors", "retired_pending", "slowdown", "trouble"}.isdisjoint(gpu)
    assert (gpu["pcie_width"], gpu["pcie_width_most"]) == (8, 16)


@pytest.mark.parametrize("words", ["[Unknown Error]", "[GPU requires reset]", "[GPU is lost]"])
def test_a_board_in_trouble(words: str) -> None:
    line = f"0, {H100}, 31".replace("81559", words)
    (gpu,) = gpu_query.read(_asking([line]))
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
    (gpu,) = gpu_query.read(_asking([f"0, {H100}, 31"], reasons))
    assert gpu.get("slowdown") == words


@pytest.mark.parametrize("text", ["No devices were found", "Unable to determine the device handle"])
def test_what_is_no_answer(text: str) -> None:
    with pytest.raises(GpuTrouble, match=text):
        gpu_query.read(_asking([text]))


def _program(directory: Path, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = directory / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")


def test_a_program_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(tmp_path, "echo NVIDIA-SMI has failed because it couldnt; exit 9", monkeypatch)
    assert gpu_query.is_there()
    with pytest.raises(GpuTrouble, match="exit code 9: NVIDIA-SMI has failed"):
        gpu_query.read()


def test_a_driver_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(tmp_path, "sleep 60", monkeypatch)
    monkeypatch.setattr(gpu_query, "PATIENCE", 0.3)
    with pytest.raises(GpuTrouble, match=r"no answer within 0\.3 s"):
        gpu_query.read()


def test_what_slurm_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS"):
        monkeypatch.delenv(name, raising=False)
    assert gpu_query.given() is None
    monkeypatch.setenv("SLURM_JOB_GPUS", "0,1,2,3")
    assert gpu_query.given() == 4
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert gpu_query.given() == 2
    # Parts of boards: nvidia-smi lists the boards.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-6ee1a7c2,MIG-0b1c1a52,MIG-71f6a1f0")
    assert gpu_query.given() is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "NoDevFiles")
    monkeypatch.delenv("SLURM_JOB_GPUS")
    assert gpu_query.given() is None
