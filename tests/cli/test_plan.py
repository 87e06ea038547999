"""``hpcrun plan``: pure, light, and readable by scripts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcrun.compile import compile_spec
from hpcrun.compile.freeze import freeze

SPEC = """\
entry: train.py
cluster: slurm
config: {lr: 1.0e-3}
deepspeed_config: zero2
deepspeed: {train_batch_size: 8}
resources: {nodes: 2, gpus_per_node: 2, cpus_per_task: 1, time: "02:00:00"}
sweep: {grid: {config.lr: [1.0e-3, 2.0e-3]}}
"""
WATCH = """
import sys
from hpcrun.cli.main import main
try:
    main(sys.argv[1:])
finally:
    loaded = {name.partition('.')[0] for name in sys.modules}
    print(*sorted(loaded & {'torch', 'deepspeed', 'submitit', 'rich', 'numpy'}), file=sys.stderr)
"""


def plan(
    directory: Path, *arguments: str, code: str | None = None
) -> subprocess.CompletedProcess[str]:
    directory.joinpath("train.py").write_text("import os, torch\nRANK = os.environ['RANK']\n")
    (directory / "demo.yaml").write_text(SPEC)
    start = ["-c", code] if code else ["-m", "hpcrun"]
    return subprocess.run(
        [sys.executable, *start, "plan", "demo.yaml", *arguments],
        cwd=directory,
        env={**os.environ, "HOME": "/nonexistent", "PYTHONHASHSEED": "random"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_nothing_heavy_is_imported(tmp_path: Path) -> None:
    answer = plan(tmp_path, code=WATCH)
    assert "#SBATCH" in answer.stdout
    assert answer.stderr == "\n"


def test_it_says_the_same_every_time_and_writes_nothing(tmp_path: Path) -> None:
    first, second = plan(tmp_path), plan(tmp_path)
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout == second.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo.yaml", "train.py"]


def test_runs_without_gpus_cost_hours_of_their_processors(tmp_path: Path) -> None:
    shape = [
        "resources.gpus_per_node=0",
        "resources.ntasks_per_node=4",
        "resources.cpus_per_task=2",
    ]
    out = plan(tmp_path, *shape).stdout
    assert "2 runs in 1 array, at most 64 CPU-hours (no GPUs)" in out
    spared = json.loads(plan(tmp_path, *shape, "resources.spare_nodes=1", "--json").stdout)
    assert [(one["gpu_hours"], one["cpu_hours"]) for one in spared["arrays"]] == [(0, 96)]
    (array,) = json.loads(plan(tmp_path, "--json").stdout)["arrays"]
    assert (array["gpu_hours"], array["cpu_hours"]) == (16, 16)


def test_text_has_runs_hours_script_and_configuration(tmp_path: Path) -> None:
    out = plan(tmp_path).stdout
    assert "2 runs in 1 array, at most 16 GPU-hours" in out
    assert "lr=0.002  2 nodes x 2 ranks on 2 GPUs each  02:00:00" in out
    assert "batch 8 = micro 2 x accumulation 1" in out
    assert "#SBATCH --array=0-1\n" in out
    assert '"train_micro_batch_size_per_gpu": 2' in out


def test_json_is_the_plan_that_would_be_frozen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = json.loads(plan(tmp_path, "--json", "--root", "/r").stdout)
    assert data.pop("root") == "/r"
    assert set(data.pop("commands")) == {"0", "1"}
    assert data.pop("unfrozen") is None
    monkeypatch.setenv("HOME", "/nonexistent")
    frozen = freeze(compile_spec(tmp_path / "demo.yaml", root=Path("/r")))
    assert [run.label for run in frozen.runs] == ["lr=0.001", "lr=0.002"]
    assert json.loads(json.dumps(frozen.to_data())) == data
    assert frozen.runs[0].spec["deepspeed"]["zero_optimization"] == {"stage": 2}


def test_a_wrong_spec_ends_with_2_and_one_line(tmp_path: Path) -> None:
    answer = plan(tmp_path, "config.lrr=3")
    assert answer.returncode == 2
    assert answer.stdout == ""
    assert answer.stderr.startswith("error: command line: config.lrr: there is no key config.lrr")
