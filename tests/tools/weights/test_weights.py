"""`hpcrun weights` as typed: the choice of a checkpoint, the files, and what is refused.

Its checkpoints are written here in the form that DeepSpeed gives those of ZeRO 0;
tests/run/weights has those of real engines.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hpcrun.run.checkpoint import checkpoint_files
from hpcrun.state import files, session_log
from hpcrun.state.layout import RunPaths
from hpcrun.state.manifest import Manifest
from tests.support.command import argv, hpcrun
from tests.support.experiment import Experiment

torch = pytest.importorskip("torch")

HEAD, LAYER = "head.weight", "layer.weight"


def _save(run: RunPaths, step: int, loss: float, **more: Any) -> Path:
    """A checkpoint of ZeRO 0 whose first tensors are one."""
    directory = run.checkpoint(step, 1)
    directory.mkdir(parents=True)
    embed = torch.full((4, 2), float(step))
    module = {
        "embed.weight": embed,
        LAYER: torch.arange(6.0).reshape(3, 2).T,
        "seen": torch.tensor(7),
        HEAD: embed,
    }
    state = {"module": module, "buffer_names": ["seen"], "shared_params": None, **more}
    name = "mp_rank_00_model_states.pt"
    torch.save(state, directory / name)
    entry = Manifest(
        **{"step": step, "attempt": 1, "time": 1.0, "world_size": 1, "zero_stage": 0},
        train_batch_size=4,
        files={name: checkpoint_files.describe(directory / name)},
        metrics={"loss": loss},
    )
    entry.write(directory)
    return directory


@pytest.fixture
def study(tmp_path: Path) -> Experiment:
    made = Experiment(tmp_path / "root")
    environment = {"python": sys.executable, "setup": [], "variables": {}}
    made.submit((0, 1), spec={"environment": environment})
    for number in (0, 1):
        made.paths.run(number).directory.mkdir(parents=True)
    _save(made.paths.run(0), 10, 0.5)
    _save(made.paths.run(0), 20, 0.75)
    return made


def _weights(study: Experiment, *arguments: str | Path, code: int = 0) -> str:
    ended = hpcrun("weights", *arguments, root=study.paths.directory.parent)
    assert ended.returncode == code, ended.stderr
    return ended.stdout if code == 0 else ended.stderr


def _read(path: Path) -> dict[str, tuple[str, list[int], bytes]]:
    """Name -> dtype, shape and bytes of a safetensors file."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    assert length % 8 == 0
    header = json.loads(data[8 : 8 + length])
    assert header.pop("__metadata__") == {"format": "pt"}
    body = data[8 + length :]
    assert max(each["data_offsets"][1] for each in header.values()) == len(body)
    return {
        name: (each["dtype"], each["shape"], body[slice(*each["data_offsets"])])
        for name, each in header.items()
    }


def test_the_newest_checkpoint_as_safetensors(study: Experiment, tmp_path: Path) -> None:
    beside = study.paths.run(0).work / "export"
    beside.mkdir(parents=True)
    (beside / "config.json").write_text('{"model_type": "toy"}')
    (beside / "away").symlink_to("/etc/passwd")
    out = tmp_path / "out"
    found = json.loads(_weights(study, "study/0", "-o", out, "--json"))
    assert (found["step"], found["parameters"], found["tensors"]) == (20, 14, 3)
    assert found["tied"] == {HEAD: "embed.weight"}
    assert sorted(path.name for path in out.iterdir()) == [
        *("config.json", "hpcrun-weights.json", "model.safetensors")
    ]
    assert json.loads((out / "config.json").read_text()) == {"model_type": "toy"}
    tensors = _read(out / "model.safetensors")
    assert tensors.keys() == {"embed.weight", LAYER, "seen"}
    assert tensors["embed.weight"] == ("F32", [4, 2], struct.pack("<8f", *[20.0] * 8))
    assert tensors[LAYER] == ("F32", [2, 3], struct.pack("<6f", 0, 2, 4, 1, 3, 5))
    assert tensors["seen"] == ("I64", [], struct.pack("<q", 7))
    record = json.loads((out / "hpcrun-weights.json").read_text())
    for name, file in record["files"].items():
        described = checkpoint_files.describe(out / name, like=checkpoint_files.File(0, sha256=""))
        assert file == {"bytes": described.bytes, "sha256": described.sha256}


def test_best_shards_and_another_type(study: Experiment, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ("--best", "--shard-size", "0.00000003", "--dtype", "bf16")
    said = hpcrun(
        "weights", "study/0", "-o", out, *arguments, root=study.paths.directory.parent
    ).stderr
    assert f"{out} has 14 parameters of study/0, step 10" in said
    assert "safetensors keeps one of tied weights: head.weight is embed.weight" in said
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": 16 + 12 + 8}
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    assert index["weight_map"] == {"embed.weight": first, LAYER: first, "seen": second}
    assert _read(out / first)["embed.weight"][:2] == ("BF16", [4, 2])


def test_a_dry_run_and_a_step_as_torch_saves(study: Experiment, tmp_path: Path) -> None:
    lines = _weights(study, "study/0@10", "-n", "--format", "pt").splitlines()
    assert lines == [f"{32 + 24 + 8:>14}  pytorch_model.bin"]
    out = tmp_path / "out"
    _weights(study, "study/0@10", "-o", out, "--format", "pt")
    state = torch.load(out / "pytorch_model.bin", weights_only=True)
    assert state[HEAD].data_ptr() == state["embed.weight"].data_ptr()
    assert state[HEAD].unique().tolist() == [10.0]
    # Again, with --force alone.
    assert "it is there already" in _weights(study, "study/0", "-o", out, code=2)
    _weights(study, "study/0", "-o", out, "--force")
    assert (out / "model.safetensors").is_file()
    assert not (out / "pytorch_model.bin").exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_damaged_checkpoint_leaves_nothing(study: Experiment, tmp_path: Path) -> None:
    (file,) = study.paths.run(0).checkpoint(20, 1).glob("*.pt")
    file.write_bytes(file.read_bytes()[:-9] + b"corrupted")
    said = _weights(study, "study/0", "-o", tmp_path / "out", code=1)
    assert "mp_rank_00_model_states.pt does not have the checksum that its manifest says" in said
    assert "take an earlier step of the run, as RUN@STEP" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["root"]


def test_what_is_asked_wrongly(study: Experiment, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert "-o DIR is missing" in _weights(study, "study/0", code=2)
    assert "name one, such as study/0" in _weights(study, "study", "-o", out, code=2)
    said = _weights(study, "study/0@15", "-o", out, code=2)
    assert "no checkpoint of step 15" in said
    assert "it has those of steps 10, 20" in said
    assert "leave one out" in _weights(study, "study/0@10", "--best", "-o", out, code=2)
    assert "no directory" in _weights(study, "study/0", "-o", out / "a" / "b", code=2)
    out.mkdir()
    (out / "mine").write_text("precious")
    said = _weights(study, "study/0", "-o", out, "--force", code=2)
    assert "--force replaces what hpcrun weights has written" in said
    assert (out / "mine").read_text() == "precious"


def test_a_program_that_saves_by_itself(study: Experiment, tmp_path: Path) -> None:
    run = study.paths.run(1)
    out = tmp_path / "out"
    said = _weights(study, "study/1", "-o", out, code=2)
    assert "study/1 has no complete checkpoint of hpcrun's" in said
    assert "nothing of that was seen" in said
    save = run.work / "checkpoint-7"
    (save / "global_step7").mkdir(parents=True)
    attempt = run.attempt(1)
    attempt.directory.mkdir(parents=True)
    files.append(attempt.session, session_log.record("saved", step=7, checkpoint=str(save)))
    said = _weights(study, "study/1", "-o", out, code=2)
    assert f"its program saves by itself: the newest is {save}" in said
    assert f"python {save}/zero_to_fp32.py {save} DIR" in said
    (save / "model.safetensors").touch()
    said = _weights(study, "study/1", "-o", out, code=2)
    assert "in Hugging Face's layout already" in said


def test_a_python_without_torch_and_one_in_its_place(study: Experiment, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    bare.chmod(0o755)
    said = _weights(study, "study/0", "-n", "--python", bare, code=2)
    assert "has no torch and deepspeed on this machine" in said
    assert "--python names one that has them" in said


def test_an_interrupt_leaves_nothing(study: Experiment, tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    # Answers the probe, and then takes its time.
    slow.write_text(
        f'#!/bin/sh\ncase "$2" in *export_program*) sleep 600;; esac\nexec {sys.executable} "$@"\n'
    )
    slow.chmod(0o755)
    command = argv("weights", "study/0", "-o", tmp_path / "out", "--python", slow)
    environment = {**os.environ, "HPCRUN_ROOT": str(study.paths.directory.parent)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not [*tmp_path.glob(".out.*")]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    assert sorted(path.name for path in tmp_path.iterdir()) == ["root", "slow"]
