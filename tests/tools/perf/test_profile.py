"""``hpcrun profile``: of a spec, of a run as it was frozen, and of programs that cannot be."""

from __future__ import annotations

import gzip
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hpcrun.state.spec import profiling
from tests.support import command, operators

PLAIN = """
import os, time, torch
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64))
optimizer = torch.optim.AdamW(model.parameters())
data = torch.utils.data.TensorDataset(torch.randn(400, 64))
for step, (x,) in enumerate(torch.utils.data.DataLoader(data, batch_size=4)):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    if step + 1 == int(os.environ.get("STEPS", "1000")):
        break
print("ended by itself")
"""
SPEC = "name: plain\nentry: train.py\nframework: none\ncluster: local\n"


def _profile(root: Path, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return command.hpcrun("profile", *arguments, "--root", root, **options)


def _plain(directory: Path) -> str:
    (directory / "train.py").write_text(PLAIN)
    (directory / "plain.yaml").write_text(SPEC)
    return str(directory / "plain.yaml")


def _add_up(answer: dict[str, Any]) -> None:
    """The parts of each rank's trace are the step that its program measured, within 5 %."""
    for one in answer["ranks"]:
        assert sum(one["parts"].values()) == pytest.approx(one["step"], rel=0.05)
        assert all(value >= 0 for value in one["parts"].values())
        trace = Path(answer["directory"], one["trace"])
        with gzip.open(trace) as stream:
            assert json.load(stream)["traceEvents"]
        assert trace.stat().st_size == one["trace_bytes"]


def test_a_dry_run_says_how_many_steps_it_takes(tmp_path: Path) -> None:
    options = ("cluster=local", "--dry-run", "--steps", "4", "--warmup", "2", "--json")
    answer = _profile(tmp_path / "root", "language-model", *options)
    assert json.loads(answer.stdout) == {
        "experiment": "language-model-profile",
        "steps": 4,
        "warmup": 2,
        "needed": profiling.needed(4, 2),
    }
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("language-model", "--steps", "0"), "0 is not in the range"),
        (("language-model", "--warmup", "0"), "0 is not in the range"),
        (("fine/3", "config.lr=1"), "fine/3 is profiled as it was frozen; found config.lr=1"),
        (("fine/3",), "fine"),
        (("language-model", "-o", "absent/report.html"), "there is no directory absent"),
    ],
)
def test_what_is_typed_wrong(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    answer = _profile(tmp_path / "root", *arguments)
    assert answer.returncode == 2
    assert said in answer.stderr
    assert "Traceback" not in answer.stderr


@pytest.mark.training
@pytest.mark.timeout(300)
def test_the_parts_of_two_ranks_add_up_to_the_step(warm_operators: Path, tmp_path: Path) -> None:
    root, report = tmp_path / "root", tmp_path / "report.html"
    operators.link(warm_operators, root)
    spec = ["language-model", "cluster=local", "--steps", "4", "--json", "-o", str(report)]
    done = _profile(root, *spec, timeout=280)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    _add_up(answer)
    assert [one["rank"] for one in answer["ranks"]] == [0, 1]
    for one in answer["ranks"]:
        assert min(one["parts"][part] for part in ("compute", "communication", "optimizer")) > 0
        assert one["parts"]["data"] > 0
        assert {"forward", "backward", "step"} == set(one["phases"])
        # fp32: 4 bytes a parameter; ZeRO 1 shares the master copy and two moments among ranks.
        size = one["memory"]["parameters"]
        assert one["memory"]["gradients"] >= size // 2
        assert 1.4 * size < one["memory"]["optimizer state"] < 1.6 * size
        assert one["problems"] == []
    assert 0 < answer["utilization"] < 1.5
    page = report.read_text()
    assert 'id="profile"' in page
    assert "collectives that no computation hides" in page
    run = root / "language-model-profile/runs/0"
    assert not (run / "checkpoints").exists()


@pytest.mark.training
@pytest.mark.timeout(300)
def test_a_script_without_a_session_and_its_run_as_it_was_frozen(tmp_path: Path) -> None:
    root, spec = tmp_path / "root", _plain(tmp_path)
    done = _profile(root, spec, "--json", timeout=120)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    _add_up(answer)
    [one] = answer["ranks"]
    assert one["parts"]["communication"] == 0
    assert min(one["parts"][part] for part in ("compute", "optimizer", "data", "host")) > 0
    # Two products forward, and three backward: the first layer's input has no gradient.
    assert answer["flops"] == 2 * 4 * 64 * 256 * 5
    weights = 2 * 64 * 256 + 64 + 256
    assert one["memory"]["parameters"] == one["memory"]["gradients"] == 4 * weights
    # Of the run, whose code is not that of the directory any more; it ends too early.
    (tmp_path / "train.py").write_text("raise SystemExit('the code of now')")
    again = _profile(root, "plain-profile/0", "--steps", "60", timeout=120)
    assert again.returncode == 1
    assert "rank 0 of plain-profile/1 ended after 100 optimizer steps" in again.stderr
    assert f"a profile takes {profiling.needed(60, 3)} optimizer steps" in again.stderr


def test_a_program_without_steps(tmp_path: Path) -> None:
    done = _profile(tmp_path / "root", "hello", "cluster=local")
    assert done.returncode == 1
    assert "took no optimizer step that can be seen" in done.stderr


def test_a_program_that_fails(tmp_path: Path) -> None:
    spec = _plain(tmp_path)
    (tmp_path / "train.py").write_text("raise SystemExit('no data')")
    done = _profile(tmp_path / "root", spec)
    assert done.returncode == 1
    assert "plain-profile/0 failed before its profile was done" in done.stderr
