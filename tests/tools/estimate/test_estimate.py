"""``hpcrun estimate`` as it is typed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hpcrun.state import files
from hpcrun.state.plan import Entry
from tests.support.command import hpcrun
from tests.support.experiment import T0, Experiment, path_with, slurm_shim

SPEC = """\
name: study
entry: train.py:train
cluster: site
config: {width: 1024, layers: 8, total_steps: 1000, context: 512, seed: 0}
deepspeed:
  train_micro_batch_size_per_gpu: 4
  bf16: {enabled: true}
  optimizer: {type: AdamW, params: {lr: 1.0e-3}}
  zero_optimization: {stage: 2}
resources: {nodes: 2, gpus_per_node: 8, time: "02:00:00", mem: 64G}
"""
PROFILE = """\
executor: slurm
resources: {gpu_type: h100}
prices: {currency: EUR, gpu_hour: 2.5, gpu_types: {a100: 1.2}, gpu_watts: 1000}
"""
TRAIN = """\
import torch

def build_model(config):
    open("made", "a").write(f"{config.width} ")
    layers = [torch.nn.Linear(config.width, config.width) for _ in range(config.layers)]
    return torch.nn.Sequential(*layers)

def sample_batch(config, micro_batch):
    return torch.zeros(micro_batch, config.context, config.width, dtype=torch.bfloat16)

def train(session):
    raise AssertionError("estimates train nothing")
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a spec for a cluster that has prices; its Slurm is a stand-in."""
    monkeypatch.setenv("PATH", path_with(slurm_shim(tmp_path / "shim")))
    profiles = tmp_path / "configs" / "clusters"
    profiles.mkdir(parents=True)
    (profiles / "site.yaml").write_text(PROFILE)
    made = json.dumps(str(tmp_path / "made"))
    (tmp_path / "train.py").write_text(TRAIN.replace('"made"', made))
    (tmp_path / "study.yaml").write_text(SPEC)
    return tmp_path


def estimate(place: Path, *arguments: str, code: int = 0) -> tuple[str, str]:
    done = hpcrun("estimate", *arguments, root=place / "root", cwd=place)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout, done.stderr


def data(place: Path, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(estimate(place, "study.yaml", *arguments, "--json")[0])
    return found


def test_one_run_in_full(place: Path) -> None:
    told, said = estimate(place, "study.yaml")
    lines = told.splitlines()
    assert lines[0] == "study: 1 run on site"
    assert "2 nodes x 8 h100; ZeRO 2, bf16, adamw, micro batch 4 x accumulation 1" in lines[1]
    assert "8.4 M parameters (Sequential, counted on the meta device by train:build_model" in told
    assert re.search(r"memory of a GPU: .* of 80.0 GB: fits", told)
    assert re.search(r"^ +16.8 MB  parameters$", told, re.MULTILINE)
    assert re.search(r"largest micro batch: \d{4} \(now 4\)", told)
    assert "checkpoint: 118 MB; a save takes less than a second (assumed: 1 GB/s" in told
    assert "(assumed: 40 % of the peak of h100)" in told
    assert re.search(r"1,000 steps in .* GPU-hours, .* kWh \(at gpu_watts .*\), .* EUR", told)
    assert "one start, at most, by its time limit: 32.00 GPU-hours, 80.00 EUR" in told
    assert "expected start" not in told
    assert not (place / "root").exists()
    assert "Slurm" in said


@pytest.mark.usually
@pytest.mark.parametrize(
    ("spec", "model"),
    [
        ("lora-fine-tuning", "251 k parameters, 214 k of them frozen (Sequential, counted on"),
        ("preference-tuning", "251 k parameters, 214 k of them frozen (Sequential, counted on"),
        ("distillation", "5.15 k parameters (Network, counted on"),
    ],
)
def test_a_program_with_a_model_of_local_disk(place: Path, spec: str, model: str) -> None:
    """What is trained is counted without the base and the teacher, which need not be there yet."""
    told, _ = estimate(place, spec, "cluster=local")
    assert f"  model: {model} the meta device" in told
    assert re.search(r"^ +[\d.]+ [kM]B  activations$", told, re.MULTILINE)


def test_a_sweep_has_a_row_for_each_shape(place: Path) -> None:
    sweeps = ["-s", "config.width=256,512", "-s", "config.seed=0,1,2"]
    told, said = estimate(place, "study.yaml", *sweeps)
    rows = told.splitlines()[1:4]
    assert rows[0].split()[:3] == ["RUNS", "SHAPE", "SETTING"]
    assert [row.split()[:2] for row in rows[1:]] == [["0-2", "width=256"], ["3-5", "width=512"]]
    assert told.splitlines()[4].startswith("all runs: ")
    assert "-v shows each row in full" in said
    # Each model was made once, as it does not read the seed.
    assert (place / "made").read_text().split() == ["256", "512"]


def test_a_number_executes_nothing(place: Path) -> None:
    found = data(place, "--parameters", "7.5B")
    (shape,) = found["shapes"]
    assert not (place / "made").exists()
    assert shape["model"]["parameters"] == 7_500_000_000
    gpu = shape["memory"]["gpu"]
    # 2 bytes of each weight; 12 of Adam and 2 of gradients are divided by 16.
    assert gpu["parameters"] == 15e9
    assert gpu["optimizer"] == 7.5e9 * 12 / 16
    assert gpu["gradients"] == 7.5e9 * 2 / 16
    assert shape["largest_micro_batch"] is None
    assert any("activations are not in it" in note for note in shape["notes"])
    assert found["expected_start"] is None


def test_what_fits_and_what_is_nearest(place: Path) -> None:
    shape = ["+estimate.layers=32", "+estimate.hidden_size=4096", "--parameters", "7B"]
    told, _ = estimate(place, "study.yaml", *shape, "--fit", "--gpu", "a100-40gb")
    settings = told.partition("settings that fit a100-40gb")[2]
    assert re.search(r"^ +ZeRO 3 +\d+ ", settings, re.MULTILINE)
    assert re.search(r"^ +ZeRO 0 +- +.* no$", settings, re.MULTILINE)
    assert re.search(r"optimizer on cpu, .*not the node$", settings, re.MULTILINE)  # 64G
    told, _ = estimate(place, "study.yaml", "--parameters", "2T")
    nearest = told.partition("nothing fits h100; nearest is ")[2]
    assert nearest.startswith("ZeRO 3, micro batch 1:")
    assert re.search(r"a GPU lacks \d+\.?\d* TB", nearest)
    assert re.search(r"it fits with [\d,]+ GPUs", nearest)


def test_another_gpu_has_its_own_price(place: Path) -> None:
    mine, other = data(place), data(place, "--gpu", "a100")
    assert mine["shapes"][0]["costs"]["limit_money"] == 80.0
    assert other["shapes"][0]["costs"]["limit_money"] == pytest.approx(80.0)  # gpu_hour
    assert other["shapes"][0]["gpu"]["memory_gb"] == 40
    told, _ = estimate(place, "study.yaml", "resources.gpu_type=a100")
    assert "32.00 GPU-hours, 38.40 EUR" in told
    assert "a100 is taken as a100-40gb, which is careful" in told


def test_whole_nodes_cost_what_they_have(place: Path) -> None:
    whole = PROFILE.replace("gpu_type: h100", "gpu_request: none, node_has_gpus: 8")
    (place / "configs/clusters/site.yaml").write_text(whole)
    told, _ = estimate(place, "study.yaml", "gpus_per_node=4", "--gpu", "h100")
    assert "2 nodes x 4 h100" in told
    assert "32.00 GPU-hours, 80.00 EUR" in told


def test_without_a_gpu_type_the_catalogue_is_asked(place: Path) -> None:
    (place / "configs/clusters/site.yaml").write_text("executor: slurm\n")
    told, _ = estimate(place, "study.yaml", "--parameters", "7B")
    fits = re.search(r"fits on: (.*)", told)
    assert fits
    assert "h100" in fits[1]
    assert "t4" not in fits[1].split(", ")
    assert "the spec does not say which GPU it gets: resources.gpu_type, or --gpu h100" in told
    assert "EUR" not in told
    told, _ = estimate(place, "study.yaml", "resources.gpu_type=gtx9", "--parameters", "2B")
    assert "resources.gpu_type: there is no GPU 'gtx9' in the catalogue" in told


def test_processors(place: Path) -> None:
    ranks = ["resources.gpus_per_node=0", "resources.ntasks_per_node=4", "cluster=local"]
    told, said = estimate(place, "study.yaml", "resources.nodes=1", *ranks)
    assert "1 node x 4 ranks; ZeRO 2" in told
    assert "memory of a rank, in its node's: " in told
    assert "fits resources.mem, 68.7 GB" in told
    assert "CPU-hours" in told
    assert "it runs on this machine: nothing is queued" in said


def test_a_measured_speed_is_used(place: Path) -> None:
    """The pace comes from a run of the same model under the root, on the same kind of GPU."""
    study = Experiment(place / "root")
    entry = Entry(kind="function", module="train", function="train", import_root=".")
    spec = {
        "config": {"width": 1024, "layers": 8, "total_steps": 50, "context": 512},
        "deepspeed": {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1,
                      "bf16": {"enabled": True}, "zero_optimization": {"stage": 2}},
        "resources": {"nodes": 2, "gpus_per_node": 8, "gpu_type": "h100", "ntasks_per_node": None},
    }  # fmt: skip
    study.submit(range(1), spec=spec, entry=entry)
    paths = study.start(0, 1, job_id="100_0", when=T0)
    for step in range(1, 20):
        line = {"step": step, "time": T0 + step, "step_seconds": 0.5 if step > 2 else 9.0}
        files.append(paths.metrics, line)
    files.append(paths.session, {"event": "saved", "time": T0 + 9, "step": 9, "seconds": 7.5})
    (shape,) = data(place)["shapes"]
    pace = shape["costs"]["pace"]
    # With micro batches twice as large.
    assert pace["step_seconds"] == pytest.approx(1.0)
    assert pace["source"].startswith("measured by study/0, which has 16 ranks x 2 samples")
    assert pace["tokens_per_second"] == pytest.approx(16 * 4 * 512)
    assert shape["costs"]["hours"] == pytest.approx(1000 * 1.0 / 3600 * 16)
    assert (shape["costs"]["save_seconds"], shape["costs"]["save_source"]) == (
        7.5,
        "measured by study/0",
    )
    (other,) = data(place, "config.width=512")["shapes"]
    assert other["costs"]["pace"]["source"].startswith("assumed")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--gpu", "h10"], "error: --gpu: there is no GPU 'h10' in the catalogue"),
        (["--parameters", "big"], "error: --parameters: found 'big'; accepted is a number"),
        (["--utilization", "2"], "error: --utilization: found 2; accepted is a part of the peak"),
        (["+estimate.layers=0"], "estimate.layers: found 0; accepted is a whole number from 1"),
        (["+estimate.modell=a"], "estimate.modell: unknown key"),
    ],
)
def test_wrong_words(place: Path, arguments: list[str], said: str) -> None:
    assert said in estimate(place, "study.yaml", *arguments, code=2)[1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["+estimate.model=nosuch.py:make"], "estimate.model: there is no file"),
        (["+estimate.model=train.py:make-it"], "estimate.model: found 'train.py:make-it'"),
        (["+estimate.model=train.py:train"], "estimates train nothing"),
        (["+estimate.model=./nosuch"], "there is no ./nosuch/config.json"),
        (["+estimate.parameters=much"], "estimate.parameters: found 'much'"),
        (["entry=plain.py"], "nothing says how many parameters the model has"),
    ],
)
def test_a_model_that_is_not_known(place: Path, arguments: list[str], said: str) -> None:
    (place / "plain.py").write_text("print(1)\n")
    told, _ = estimate(place, "study.yaml", *arguments, code=2)
    assert said in told
    assert "7.5B" in told
    assert json.loads(estimate(place, "study.yaml", *arguments, "--json", code=2)[0])["shapes"]


def test_a_wrong_price_is_refused(place: Path) -> None:
    profile = place / "configs/clusters/site.yaml"
    profile.write_text("executor: slurm\nprices: {gpu_hour: -1, gpu_types: {a: -2.0}}\n")
    said = estimate(place, "study.yaml", code=2)[1]
    assert "prices.gpu_hour: found -1.0; accepted is a number from 0" in said
    assert "prices.gpu_types.a: found -2.0" in said


def test_ranks_that_hold_a_model_together(place: Path) -> None:
    told, _ = estimate(place, "study.yaml", "parallel.tensor=4")
    assert "how 4 ranks divide the model is not known (the model has no tensor_paral" in told
    assert re.search(r"memory of a GPU: .* to .* of 80", told)
    numbers = ["--parameters", "7B", "parallel.tensor=4"]
    (shape,) = json.loads(estimate(place, "study.yaml", *numbers, "--json")[0])["shapes"]
    assert shape["memory"]["needed_on_gpu_least"] < shape["memory"]["needed_on_gpu"]
    told, _ = estimate(place, "study.yaml", "+model_parallel_size=4")
    assert "how 4 ranks divide the model is not known (it is the program's)" in told
    told, _ = estimate(place, "study.yaml", "parallel.sequence=2")
    assert "activations are those of whole sequences, which parallel.sequence divides" in told
    assert "not known" not in told


def test_the_stages_of_a_pipeline(place: Path) -> None:
    """Eight equal layers: the first of four stages has two, of four micro batches at once."""
    stages = ["parallel.pipeline=4", "deepspeed.zero_optimization.stage=1"]
    stages += ["deepspeed.gradient_accumulation_steps=8"]
    told, _ = estimate(place, "study.yaml", *stages)
    assert "stage 1 of 4, which holds most: of 4 micro batches at once" in told
    assert "not known" not in told
    told, _ = estimate(place, "study.yaml", *stages, "--parameters", "7B")
    assert "(the model is a number)" in told
