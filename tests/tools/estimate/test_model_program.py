"""The counting of models, by the program that the job's Python runs."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hpcrun.errors import UsageError
from hpcrun.tools.estimate import model_program, model_source
from hpcrun.tools.estimate.model_facts import ModelFacts, of_answer, parameter_count
from tests.support.waiting import until

torch = pytest.importorskip("torch")
SHIPPED = Path(__file__).parents[3] / "jobs" / "language_model.py"
SMALL = {"layers": 3, "width": 64, "heads": 4, "context": 32}
MODEL = """
import torch
def build_model(config):
    model = torch.nn.Sequential(*[torch.nn.Linear(config.width, config.width) for _ in range(4)])
    if config["frozen"]:
        model[0].requires_grad_(False)
    if config.tied:
        model[3].weight = model[2].weight
    model.register_buffer("mask", torch.zeros(10))
    return model
"""
SLEEPS = """
import os, time
open("{pid}", "w").write(str(os.getpid()))
time.sleep(600)
def build_model(config): pass
"""
SAMPLE = """
def sample_batch(config, micro_batch):
    return torch.zeros(micro_batch, config.width)
"""


def count(file: Path, config: dict[str, Any], **more: Any) -> dict[str, Any]:
    function = {"function": more.pop("function", None)}
    question = {**model_source.module_of(str(file), file.stem), "config": config, **function}
    return model_source.count_model([sys.executable], question, precision="fp32", **more)


def facts(file: Path, config: dict[str, Any], **more: Any) -> ModelFacts:
    return of_answer(count(file, config, **more), {})


def test_the_model_that_ships() -> None:
    found = facts(SHIPPED, {"model": SMALL, "seed": 3})
    width, layers = 64, 3
    block = 12 * width**2 + 5 * width + 4 * width
    others = 2 * 256 * width + 32 * width + 2 * width
    assert found.parameters == found.trainable == layers * block + others
    assert sum(found.sizes) == found.parameters
    assert "LanguageModel" in found.source
    assert found.whole is not None
    assert found.checkpointed is not None
    assert 0 < found.checkpointed.peaks().of(4) < found.whole.peaks().of(4)
    assert found.whole.peaks().of(4) < 4.1 * found.whole.peaks().of(1)


def test_a_step_holds_what_torch_allocates() -> None:
    """Within 10 % of the peak of torch's allocator on the CPU, by its profiler."""
    from bench.estimate import allocated_peak

    shape = {"layers": 3, "width": 128, "heads": 4, "context": 64}
    found = facts(SHIPPED, {"model": shape})
    assert found.whole is not None
    for micro in (1, 4):
        measured = allocated_peak(shape, micro)
        assert abs(found.whole.peaks().of(micro) / measured - 1) < 0.10, (micro, measured)


def test_frozen_and_tied_parameters_and_buffers(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(MODEL)
    plain = facts(file, {"width": 8, "frozen": False, "tied": False, "lr": 1})
    assert (plain.parameters, plain.trainable, plain.tied) == (288, 288, 0)
    assert plain.buffer_bytes == 40
    assert plain.whole is None
    assert any("sample_batch(config, micro_batch)" in note for note in plain.notes)
    frozen = facts(file, {"width": 8, "frozen": True, "tied": False})
    assert (frozen.parameters, frozen.trainable, frozen.frozen) == (288, 216, 72)
    tied = facts(file, {"width": 8, "frozen": False, "tied": True})
    assert (tied.parameters, tied.tied) == (224, 1)


def test_it_is_followed_without_a_loss_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(MODEL + SAMPLE)
    found = facts(file, {"width": 512, "frozen": False, "tied": False})
    assert found.whole is not None
    # Four layers keep 2 kB of each sample, or little more as gradients come and go.
    assert 4 * 2048 <= found.whole.peaks().more <= 10 * 2048


def test_the_keys_that_are_read_are_told(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(MODEL)
    config = {"width": 8, "frozen": False, "tied": False, "lr": 1, "seed": 2}
    assert count(file, config)["read"] == ["frozen", "tied", "width"]
    file.write_text("import torch\ndef build_model(config):\n    make(**config)\n"
                    "    return torch.nn.Linear(2, 2)\ndef make(**config): pass\n")  # fmt: skip
    assert count(file, config)["read"] == sorted(config)


def test_no_gpu_is_seen_and_own_modules_are_found(tmp_path: Path) -> None:
    (tmp_path / "model_facts.py").write_text("WIDTH = 7\n")  # as a module beside the program
    file = tmp_path / "mine.py"
    file.write_text(
        "import os, torch, hpcrun\nfrom model_facts import WIDTH\n"
        "def make(config):\n"
        "    assert os.environ['CUDA_VISIBLE_DEVICES'] == os.environ['HIP_VISIBLE_DEVICES'] == ''\n"
        "    assert os.environ['MINE'] == 'yes' and 'HPCRUN_ROOT' not in os.environ\n"
        "    return torch.nn.Linear(WIDTH, 1, bias=False)\n"
    )
    given = {"function": "make", "variables": {"CUDA_VISIBLE_DEVICES": "0", "MINE": "yes"}}
    assert count(file, {}, **given)["parameters"] == 7
    assert count(file, {}, setup=["export A=1"], **given)["parameters"] == 7


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", r"mine has no function build_model\(config\)"),
        ("def build_model(config): return 3\n", "returned int, no torch.nn.Module"),
        ("def build_model(config): return config.widht\n", r"mine.py:1: .*no key 'widht'.*width"),
        ("import nowhere\n", "No module named 'nowhere'"),
        ("import os\nos._exit(3)\n", "its Python ended with code 3"),
        ("1/0\n", r"mine.py:1: ZeroDivisionError"),
        ("raise SystemExit('stop')\n", "mine.py:1: SystemExit: stop"),
        (
            "print('hpcrun-model:[1]', flush=True)\nimport os; os._exit(0)\n",
            "no answer that can be read",
        ),
    ],
)
def test_what_cannot_be_counted_says_what_to_type(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(text)
    with pytest.raises(UsageError, match=said) as error:
        count(file, {"width": 3})
    assert "--parameters 7.5B" in str(error.value.hint)


def test_a_model_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(SLEEPS.format(pid=str(tmp_path / "pid")))
    began = time.monotonic()
    with pytest.raises(UsageError, match="not made within 15 s") as error:
        count(file, {}, timeout=15)
    assert time.monotonic() - began < 40
    assert "estimate.timeout" in str(error.value.hint)
    _gone(tmp_path / "pid")


def test_ctrl_c_ends_it(tmp_path: Path) -> None:
    file, pid = tmp_path / "mine.py", tmp_path / "pid"
    file.write_text(SLEEPS.format(pid=str(pid)))
    (tmp_path / "spec.yaml").write_text(
        "entry: mine.py:build_model\ndeepspeed: {train_batch_size: 2}\nresources: {nodes: 1}\n"
    )
    started = subprocess.Popen(
        [sys.executable, "-m", "hpcrun", "estimate", "spec.yaml", "cluster=local"],
        cwd=tmp_path,
        env={**os.environ, "HPCRUN_ROOT": str(tmp_path / "root")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    until(pid.exists, "the start of the user's code", timeout=60)
    started.send_signal(signal.SIGINT)
    output, _ = started.communicate(timeout=20)
    assert started.returncode == 130, output
    assert output.decode().strip().endswith("interrupted")
    _gone(pid)


def _gone(pid: Path) -> None:
    process = Path("/proc", pid.read_text())
    until(lambda: not process.exists() or "zombie" in (process / "status").read_text(), "its end")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(("7.5B", 7_500_000_000), ("350M", 350_000_000), ("1.2 T", 1_200_000_000_000)),
        *(("1_000_000", 10**6), ("12,345", 12_345), ("7e9", 7 * 10**9), ("10k", 10_000)),
    ],
)
def test_numbers_of_parameters(text: str, number: int) -> None:
    assert parameter_count(text, "--parameters") == number


@pytest.mark.parametrize(
    "text", ["", "many", "-3B", "7.5BB", "0", "1e99", "B", "nan", True, "9" * 41]
)
def test_senseless_numbers(text: Any) -> None:
    with pytest.raises(UsageError, match=r"--parameters: found .*accepted is a number"):
        parameter_count(text, "--parameters")


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"parameters": "many", "trainable": 1},
        {"parameters": 0, "trainable": 0},
        {"parameters": 3, "trainable": 3, "sizes": ["x"]},
        {"parameters": 3, "trainable": None},
        {"parameters": 3, "trainable": 3, "sizes": [3], "divided": [1, 0]},
        {"parameters": 3, "trainable": 3, "sizes": [3], "divided": [2]},
        {"parameters": 3, "trainable": 3, "stages": [{"parameters": "x", "trainable": 3}]},
    ],
)
def test_a_malformed_answer_is_refused(answer: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"parameters|trainable|sizes|divided"):
        of_answer(answer, {})


@pytest.mark.parametrize(
    "step",
    [
        *(None, 3, {}, {"peaks": [], "kept": [0, 0]}, {"peaks": [[1, 2]]}),
        {"peaks": [[10**400, 1]], "kept": [0, 0]},
        {"peaks": [[-1, 2]], "kept": [0, 0]},
        {"peaks": [[1, 2], [3]], "kept": [0, 0]},
    ],
)
def test_peaks_that_no_step_has_are_none(step: Any) -> None:
    peaks = {"whole": [step, step], "checkpointed": [step]}
    found = of_answer({"parameters": 3, "trainable": 3, "peaks": peaks}, {})
    assert (found.whole, found.checkpointed) == (None, None)


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 40])
def test_stages_begin_where_those_of_deepspeed_do(parts: int) -> None:
    utils = pytest.importorskip("deepspeed.runtime.utils")
    draw = random.Random(parts)
    for count in (3, 12, 33):
        weights = [draw.choice((0, 5, 5, 5, 80, draw.randrange(100))) for _ in range(count)]
        found = model_program.balanced(weights, parts)
        assert found == [int(one) for one in utils.partition_balanced(weights, parts)]
        layers = [torch.nn.Linear(1, 1) for _ in range(count)]
        found = model_program.stage_bounds(layers, parts, "uniform")
        if count > parts:
            assert found == utils.partition_uniform(count, parts)
