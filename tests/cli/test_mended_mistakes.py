"""Mistakes of a first day, and what is typed in their place: the test types it.

In a folder with ``train.py`` (argparse), ``fn.py`` and ``s.yaml``. To add a mistake, add a row: the
keys that stand in the spec and the line that is typed, what is told of it, and the keys and the
line that the message says to write. Those in ``_NOTES`` work, and a note says how they are read.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hpcrun.cli.main import main
from hpcrun.compile import run_notes
from tests.support.experiment import path_with, slurm_shim

SPEC = {"entry": "train.py", "cluster": "local", "config": "{lr: 1.0e-3, steps: 3, seed: 0}"}
FN = {"entry": "fn.py:train"}
PROGRAM = """
import argparse
p = argparse.ArgumentParser()
p.add_argument("--lr", type=float)
p.add_argument("--betas", nargs=2, type=float)
"""


@dataclass(frozen=True)
class Mistake:
    """What is typed, what is told, and what is typed then."""

    id: str
    told: str
    keys: dict[str, str] = field(default_factory=dict)
    line: str = "plan s.yaml"
    mended: dict[str, str] | None = None
    """The keys that the message says to write."""
    typed: str | None = None
    """The line that it says to type."""


def _res(keys: str) -> dict[str, str]:
    return {"resources": f"{{{keys}}}"}


def _env(keys: str) -> dict[str, str]:
    return {"environment": f"{{{keys}}}"}


TABLE = [
    Mistake("a command in words", "[python, train.py]", {"entry": "python train.py"},
            mended={"entry": "[python, train.py]"}),
    Mistake("a script with flags", 'write entry: train.py and args: [--lr, "0.1"]',
            {"entry": "train.py --lr 0.1"}, mended={"entry": "train.py", "args": '[--lr, "0.1"]'}),
    Mistake("a list of a script", "write entry: train.py", {"entry": "[train.py]"},
            mended={"entry": "train.py"}),
    Mistake("args in one string", "[--out, results]", {"args": "--out results"},
            mended={"args": "[--out, results]"}),
    Mistake("config as a list", "write config: {lr: 1}", {"config": "[lr=1]"},
            mended={"config": "{lr: 1}"}),
    Mistake("cpus", "'resources.cpus_per_task'", _res("cpus: 4"), mended=_res("cpus_per_task: 4")),
    Mistake("memory of little", "64 MB, as sbatch does (64G is in GB)", _res("mem: 64")),
    Mistake("memory with a blank", "write 64G", _res("mem: '64 GB'"), mended=_res("mem: 64G")),
    Mistake("memory in GiB", "write 64G", _res("mem: 64GiB"), mended=_res("mem: 64G")),
    Mistake("hours", '24 min, as sbatch does ("24:00:00"', _res("time: 24")),
    Mistake("seconds", '("00:05:00" is 5 min)', {"recovery": "{hang_after: 300}"}),
    Mistake("a stage alone", "write zero_optimization: {stage: 2}",
            FN | {"deepspeed": "{zero_optimization: 2, train_batch_size: 8}"},
            mended=FN | {"deepspeed": "{zero_optimization: {stage: 2}, train_batch_size: 8}"}),
    Mistake("a truth value for bf16", "write bf16: {enabled: true}",
            FN | {"deepspeed": "{bf16: true, train_batch_size: 8}"},
            mended=FN | {"deepspeed": "{bf16: {enabled: true}, train_batch_size: 8}"}),
    Mistake("Lightning's precision", "did you mean 'fp16'?", {"precision": "16-mixed"},
            mended=FN | {"precision": "fp16", "deepspeed": "{train_batch_size: 8}"}),
    Mistake("a framework that is none", "did you mean none", {"framework": "pytorch"},
            mended={"framework": "none"}),
    Mistake("accuracy", "more of 'accuracy' is better", {"objective": "{metric: accuracy}"}),
    Mistake("maximize", "did you mean 'max'?", {"objective": "{metric: acc, mode: maximize}"},
            mended={"objective": "{metric: acc, mode: max}"}),
    Mistake("a sweep of W&B", "grid: {config.lr: [0.1, 1]}",
            {"sweep": "{method: grid, parameters: {lr: {min: 0.1, max: 1}}}"},
            mended={"sweep": "{grid: {config.lr: [0.1, 1]}}"}),
    Mistake("a grid with bounds", "{linspace: [start, stop, count]}",
            {"sweep": "{grid: {lr: {min: 0.1, max: 1}}}"},
            mended={"sweep": "{grid: {lr: {linspace: [0.1, 1, 3]}}}"}),
    Mistake("a grid in a string", "write [1e-3,1e-4]", {"sweep": "{grid: {lr: '1e-3,1e-4'}}"},
            mended={"sweep": "{grid: {lr: [1e-3,1e-4]}}"}),
    Mistake("bounds the other way", "write {loguniform: [1e-05, 0.01]}",
            {"sweep": "{random: {samples: 5, keys: {lr: {loguniform: [1e-2, 1e-5]}}}}"},
            mended={"sweep": "{random: {samples: 5, keys: {lr: {loguniform: [1e-05, 0.01]}}}}"}),
    Mistake("random without keys", "keys: {lr: {loguniform: [1e-5, 1e-2]}}",
            {"sweep": "{random: {samples: 5}}"},
            mended={"sweep": "{random: {samples: 5, keys: {lr: {loguniform: [1e-5, 1e-2]}}}}"}),
    Mistake("random without samples", "samples: 20",
            {"sweep": "{random: {keys: {lr: {uniform: [0, 1]}}}}"},
            mended={"sweep": "{random: {samples: 20, keys: {lr: {uniform: [0, 1]}}}}"}),
    Mistake("a misspelt swept key", "did you mean 'seed'?", line="plan s.yaml --sweep sed=0,1",
            typed="plan s.yaml --sweep seed=0,1"),
    Mistake("a swept key that is not there", "config: {seed: VALUE}", {"config": "{lr: 1}"},
            line="plan s.yaml --sweep seed=0,1", mended={"config": "{seed: 0}"},
            typed="plan s.yaml --sweep seed=0,1"),
    Mistake("a range of seeds", "--sweep config.seed=0,1,2,3,4", line="plan s.yaml -s seed=0:5"),
    Mistake("jobs", "--sweep lr=1,2 sweep.max_parallel=4", line="plan s.yaml --sweep lr=1,2 -j 4",
            typed="plan s.yaml --sweep lr=1,2 sweep.max_parallel=4"),
    Mistake("an option of no key", "s.yaml +config.epochs=3", line="plan s.yaml --epochs 3",
            typed="plan s.yaml +config.epochs=3"),
    Mistake("an option of a key", "hpcrun plan s.yaml steps=3", line="plan s.yaml --steps 3",
            typed="plan s.yaml steps=3"),
    Mistake("a list for nargs", "write flags: --key value", {"config": "{betas: [0.9, 0.95]}"}),
    Mistake("a nested config", "args: [--model.dim=4]", {"config": "{model: {dim: 4}}"},
            mended={"args": "[--model.dim=4]"}),
    Mistake("a profile's path", "and write mine", {"cluster": "configs/clusters/mine.yaml"},
            mended={"cluster": "mine"}),
    Mistake("a profile's ending", "call it p8.yaml", {"cluster": "p8"}, mended={"cluster": "mine"}),
    Mistake("modules of a profile", "in a profile `setup: [module load NAME]`",
            {"cluster": "modules"}),
    Mistake("a fabric's name", "write fabric: {fast_interface: ib0}", {"cluster": "fabric"}),
    Mistake("modules", "`setup: [module load NAME]`", _env("modules: [cuda]"),
            mended=_env("setup: [module load NAME]")),
    Mistake("modules at the top", "environment: {setup: [module load NAME]}",
            {"modules": "[cuda]"}, mended=_env("setup: [module load NAME]")),
    Mistake("a directory for Python", "write venv/bin/python", _env("python: venv"),
            mended=_env("python: venv/bin/python")),
    Mistake("a setup line", "[conda activate x]", _env("setup: conda activate x"),
            mended=_env("setup: [conda activate x]")),
    Mistake("variables in a list", "write variables: {A: 1}", _env("variables: [A=1]"),
            mended=_env("variables: {A: 1}")),
    Mistake("a secret", "environment.secrets_file", _env("variables: {WANDB_API_KEY: abcdef01}"),
            mended={}),
    Mistake("every in a script", "checkpoint.every acts where", {"checkpoint": "{every: 2}"}),
    Mistake("copies of a script's saves", "object_storage acts where",
            {"object_storage": "{to: 's3://bucket/prefix'}"}),
    Mistake("a place of checkpoints", "no key is needed", {"checkpoint": "{dir: out}"}, mended={}),
    Mistake("weights of a script", "initialize_from acts where",
            {"checkpoint": "{initialize_from: exp2/0}"}),
    Mistake("the best of nothing", "`objective: {metric: NAME, mode: max}`",
            FN | {"checkpoint": "{every: 2, keep_best: 1}"}),
    Mistake("resume: true", "hf-trainer, or {when: 'out/*.pt', args: [--resume]}",
            {"recovery": "{resume: true}"},
            mended={"recovery": "{resume: {when: 'out/*.pt', args: [--resume]}}"}),
    Mistake("resume: false", "write none", {"recovery": "{resume: false}"},
            mended={"recovery": "{resume: none}"}),
    Mistake("a recipe's name", "did you mean 'hf-trainer'?", {"recovery": "{resume: hf_trainer}"}),
    Mistake("max_retries", "'recovery.max_failures'", {"recovery": "{max_retries: 3}"},
            mended={"recovery": "{max_failures: 3}"}),
    Mistake("a pattern without a name", "(?P<step>", {"progress": r"{pattern: 'step (\d+)'}"},
            mended={"progress": r"{pattern: 'step (?P<step>\d+).* loss (?P<loss>\S+)'}"}),
    Mistake("a pattern in double quotes", "in single quotes",
            {"progress": r'{pattern: "step (?P<step>\d+)"}'},
            mended={"progress": r"{pattern: 'step (?P<step>\d+)'}"}),
    Mistake("restart: always", "did you mean 'rank'?",
            {"roles": "{a: {}, b: {entry: train.py, restart: always}}"},
            mended={"roles": "{a: {}, b: {entry: train.py, restart: rank}}"}),
    Mistake("roles in an order", "delete it", {"roles": "{a: {}, b: {entry: fn.py, after: a}}"},
            mended={"roles": "{a: {}, b: {entry: fn.py}}"}),
    Mistake("a container", "write container: {image: py.sif, runtime: apptainer}",
            _env("container: py.sif"),
            mended=_env("container: {image: py.sif, runtime: apptainer}")),
    Mistake("a container without a runtime", "accepted are apptainer",
            _env("container: {image: py.sif}"),
            mended=_env("container: {image: py.sif, runtime: apptainer}")),
    Mistake("an image that is not there", "there is no file 'py.sif'",
            _env("container: {image: py.sif, runtime: apptainer}")),
    Mistake("Docker", "image: docker://NAME", _env("container: {image: a, runtime: docker}"),
            mended=_env("container: {image: 'docker://NAME', runtime: apptainer}")),
    Mistake("an image", "write container: {image: PATH, runtime: apptainer}", _env("image: a.sif"),
            mended=_env("container: {image: PATH, runtime: apptainer}")),
    Mistake("an address", "did you mean 'mail'?", {"notify": "{email: a@example.org}"},
            mended={"notify": "{mail: a@example.org}"}),
    Mistake("a mail of this machine", "notify.mail does nothing", {"notify": "{mail: a@b.org}"}),
    Mistake("a dependence without its ending", "did you mean 'other.yaml'?",
            {"depends_on": "other"}, mended={"depends_on": "other.yaml"}),
    Mistake("a dependence of nothing", "such as pretraining.yaml", {"depends_on": "pretraining"}),
    Mistake("a dependence of a job", "resources: {sbatch: {dependency: 'afterok:123'}}",
            {"depends_on": "123"}, mended={"resources": "{sbatch: {dependency: 'afterok:123'}}"}),
    Mistake("tracking: wandb", "write tracking: {wandb: {}}", {"tracking": "wandb"},
            mended={"tracking": "{wandb: {}}"}),
    Mistake("wandb: true", "write wandb: {}", {"tracking": "{wandb: true}"},
            mended={"tracking": "{wandb: {}}"}),
    Mistake("wandb disabled", "(null)", {"tracking": "{wandb: {mode: disabled}}"},
            mended={"tracking": "{wandb: null}"}),
    Mistake("a pattern of what is left out", "[data/]", {"code": "{exclude: data/}"},
            mended={"code": "{exclude: [data/]}"}),
    Mistake("all GPUs", "how many a node has", _res("gpus_per_node: all")),
    Mistake("GPUs of a type", "gpus_per_node: 4 and gpu_type: a100",
            _res("gpus_per_node: 'a100:4'"), mended=_res("gpus_per_node: 4, gpu_type: a100")),
    Mistake("a range of nodes", "write one number", _res("nodes: 1-4"), mended=_res("nodes: 4")),
    Mistake("a base that is not there", "there is no file 'ss.yaml'", {"extends": "ss.yaml"}),
    Mistake("a place of outputs", "`config: {output_dir: results}`", {"output_dir": "results"},
            mended={"config": "{output_dir: results}"}),
    Mistake("an absolute place", "config.out=x, is the run's own", {"config": "{out: /tmp/a/x}"}),
    Mistake("a tag", "[baseline]", {"tags": "baseline"}, mended={"tags": "[baseline]"}),
    Mistake("tp", "'parallel.tensor'", {"parallel": "{tp: 2}"}),
    Mistake("a staged path", "write staging: {paths: [/data]}", {"staging": "/data"},
            mended={"staging": "{paths: [/data]}"}),
    Mistake("a Hydra program's key", "+config.trainer.steps=VALUE", {"flags": "key=value"},
            line="plan s.yaml trainer.steps=3", typed="plan s.yaml +config.trainer.steps=3"),
    Mistake("a seed", "+config.seed=VALUE", {"config": "{lr: 1}"}, line="plan s.yaml seed=3",
            typed="plan s.yaml +config.seed=3"),
    Mistake("a limit of a list", "hpcrun list | head -n 6", line="list --limit 5", typed="list"),
    Mistake("a dashboard", "Did you mean 'top'?", line="dashboard", typed="top --help"),
    Mistake("a report's file", "hpcrun report s -o out.html", line="report s out.html"),
    Mistake("a note first", "hpcrun note s/0 -m great", line="note great s/0"),
]  # fmt: skip
# What is told of a line that works.
_NOTES = {
    *(one.id for one in TABLE if "acts where" in one.told),
    *("memory of little", "hours", "seconds", "accuracy", "a range of seeds", "an absolute place"),
    *("a list for nargs", "the best of nothing", "a mail of this machine"),
    "an image that is not there",
}


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "desk"
    clusters = directory / "configs" / "clusters"
    for made in (clusters, directory / "venv" / "bin", tmp_path / "root"):
        made.mkdir(parents=True)
    for name, text in {
        "train.py": PROGRAM,
        "fn.py": "def train(session):\n    pass\n",
        "venv/bin/python": "",
        "other.yaml": "entry: train.py\ncluster: local\n",
        "configs/clusters/mine.yaml": "executor: local\n",
        "configs/clusters/p8.yml": "executor: local\n",
        "configs/clusters/modules.yaml": "executor: local\nmodules: [cuda]\n",
        "configs/clusters/fabric.yaml": "executor: local\nfabric: ib0\n",
    }.items():
        (directory / name).write_text(text)
    slurm_shim(tmp_path / "shim")
    monkeypatch.setenv("PATH", path_with(tmp_path / "shim"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HPCRUN_ROOT", str(tmp_path / "root"))
    monkeypatch.delenv("HPCRUN_CLUSTERS", raising=False)
    monkeypatch.setattr(run_notes, "_DEVICES", tmp_path)
    monkeypatch.chdir(directory)
    return directory


def _type(
    line: str, keys: dict[str, str], desk: Path, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str]:
    text = "".join(f"{key}: {value}\n" for key, value in {**SPEC, **keys}.items())
    (desk / "s.yaml").write_text(text)
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(line))
    assert isinstance(ended.value.code, int)
    return ended.value.code, capsys.readouterr().err


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in TABLE])
def test_what_is_told_of_a_mistake_works(
    case: Mistake, desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = _type(case.line, case.keys, desk, capsys)
    assert case.told in told, told
    assert code == (0 if case.id in _NOTES else 2)
    if case.mended is None and case.typed is None:
        return
    mended = case.mended if case.mended is not None else case.keys
    code, told = _type(case.typed or case.line, mended, desk, capsys)
    assert code == 0, told
    assert case.told not in told
