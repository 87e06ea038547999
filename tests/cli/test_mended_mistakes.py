"""Mistakes of a first day, and what is typed in their place: the test types it.

In a folder with ``train.py`` (argparse), ``fn.py`` and ``s.yaml``. To add a mistake, add a row: the
keys that stand in the spec and the line that is typed, what is told of it, and the keys and the
line that the message says to write. Those in ``_NOTES`` work, and a note says how they are read.
"""

from __future__ import annotations

import shlex
import signal
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


def _sweep(keys: str) -> dict[str, str]:
    return {"sweep": f"{{{keys}}}"}


def _drawn(form: str) -> dict[str, str]:
    return _sweep(f"random: {{samples: 5, keys: {{lr: {form}}}}}")


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
    Mistake("a sweep of W&B", "write sweep: {random: {samples: 20, keys: {config.lr: {uniform: "
            "[0.1, 1]}}}}", _sweep("method: random, parameters: {lr: {min: 0.1, max: 1}}"),
            mended=_sweep("random: {samples: 20, keys: {config.lr: {uniform: [0.1, 1]}}}")),
    Mistake("a grid of W&B", "write sweep: {grid: {config.lr: [0.1, 1]}}",
            _sweep("method: grid, parameters: {lr: {values: [0.1, 1]}}"),
            mended=_sweep("grid: {config.lr: [0.1, 1]}")),
    Mistake("values in a grid", "write config.lr: [0.1, 0.2]",
            _sweep("grid: {lr: {values: [0.1, 0.2]}}"),
            mended=_sweep("grid: {config.lr: [0.1, 0.2]}")),
    Mistake("choices in a list", "write config.lr: [0.1, 0.2]",
            _sweep("grid: {lr: {choices: [0.1, 0.2]}}"),
            mended=_sweep("grid: {config.lr: [0.1, 0.2]}")),
    Mistake("a distribution in a grid", "{linspace: [0, 1, 5]}, or draw it",
            _sweep("grid: {lr: {uniform: [0, 1]}}"),
            mended=_sweep("random: {samples: 20, keys: {config.lr: {uniform: [0, 1]}}}")),
    Mistake("Hydra's choice", "write config.lr: [1,2]", _sweep("grid: {lr: 'choice(1,2)'}"),
            mended=_sweep("grid: {config.lr: [1,2]}")),
    Mistake("a key below sweep", "write sweep: {grid: {lr: [0.1, 0.2]}}", _sweep("lr: [0.1, 0.2]"),
            mended=_sweep("grid: {lr: [0.1, 0.2]}")),
    Mistake("a key below a union", "write grid: {lr: [0.1, 0.2]}",
            _sweep("union: [{lr: [0.1, 0.2]}]"),
            mended=_sweep("union: [{grid: {lr: [0.1, 0.2]}}]")),
    Mistake("a text below sweep", "write sweep: {grid: {lr: [0.1,0.2]}}", _sweep("lr: '0.1,0.2'"),
            mended=_sweep("grid: {lr: [0.1,0.2]}")),
    Mistake("steps below sweep", "write sweep: {grid: {steps: {range: [1, 5]}}}",
            _sweep("steps: {range: [1, 5]}"), mended=_sweep("grid: {steps: {range: [1, 5]}}")),
    Mistake("pairs for a sweep", "write sweep: {grid: {lr: [1,2], steps: [3]}}",
            {"sweep": "['lr=1,2', steps=3]"}, mended=_sweep("grid: {lr: [1,2], steps: [3]}")),
    Mistake("one pair for a sweep", "write sweep: {grid: {lr: [1,2]}}", {"sweep": "'lr=1,2'"},
            mended=_sweep("grid: {lr: [1,2]}")),
    Mistake("bayes", "write search: {space: {lr: {loguniform: [1e-5, 1e-1]}}, trials: 40}",
            _sweep("bayes: {lr: [0.1, 1]}"),
            mended=_sweep("random: {samples: 20, keys: {lr: {loguniform: [1e-5, 1e-2]}}}")),
    Mistake("a method of Bayes", "write sweep: {search: {space", _sweep("method: bayes")),
    Mistake("an early end", "delete it", _sweep("early_terminate: {type: hyperband}"), mended={}),
    Mistake("an objective below sweep", "write objective: {metric: loss, mode: min}",
            _sweep("metric: {name: loss, goal: minimize}"),
            mended={"objective": "{metric: loss, mode: min}"}),
    Mistake("samples of no part", "as in random: {samples: 20", _sweep("samples: 20")),
    Mistake("a number of samples", "write samples: 5",
            _sweep("random: {n_trials: 5, keys: {lr: {uniform: [0, 1]}}}"),
            mended=_sweep("random: {samples: 5, keys: {lr: {uniform: [0, 1]}}}")),
    Mistake("a key below random", "write keys: {lr: {uniform: [0, 1]}}",
            _sweep("random: {samples: 5, lr: {min: 0, max: 1, distribution: uniform}}"),
            mended=_drawn("{uniform: [0, 1]}")),
    Mistake("logarithms of W&B", "write config.lr: {loguniform: [0.001, 0.1]}",
            _drawn("{distribution: log_uniform_values, min: 0.001, max: 0.1}"),
            mended=_drawn("{loguniform: [0.001, 0.1]}")),
    Mistake("ends alone", "write config.lr: {uniform: [0.1, 1]}", _drawn("{min: 0.1, max: 1}"),
            mended=_drawn("{uniform: [0.1, 1]}")),
    Mistake("whole ends", "{int_uniform: [1, 8]}, both ends included", _drawn("{min: 1, max: 8}"),
            mended=_drawn("{int_uniform: [1, 8]}")),
    Mistake("a choice with odds", "[1, 2], all of them equally often",
            _drawn("{values: [1, 2], probabilities: [0.1, 0.9]}"), mended=_drawn("[1, 2]")),
    Mistake("steps that are drawn", "sweep: {grid: {config.lr: {linspace: [0, 1, 3]}}}",
            _drawn("{linspace: [0, 1, 3]}"),
            mended=_sweep("grid: {config.lr: {linspace: [0, 1, 3]}}")),
    Mistake("a distribution of no like", "accepted are a list of values",
            _drawn("{distribution: beta, a: 1}")),
    Mistake("a W&B objective", "write metric: loss", {"objective": "{name: loss, goal: minimize}"},
            mended={"objective": "{metric: loss, mode: min}"}),
    Mistake("a direction", "write mode: max", {"objective": "{metric: acc, direction: maximize}"},
            mended={"objective": "{metric: acc, mode: max}"}),
    Mistake("a file of W&B: program", "write entry: train.py", {"program": "train.py"}, mended={}),
    Mistake("a file of W&B: method", "delete it", {"method": "grid"}, mended={}),
    Mistake("a file of W&B: bayes", "write sweep: {search: {space", {"method": "bayes"}),
    Mistake("a method of the program's", "`config: {method: adam}`", {"method": "adam"}),
    Mistake("a file of W&B: parameters", "write sweep: {grid: {config.lr: [1, 2]}}",
            {"parameters": "{lr: {values: [1, 2]}}"},
            mended=_sweep("grid: {config.lr: [1, 2]}")),
    Mistake("parameters of the program's", "did you mean 'config'?", {"parameters": "{lr: 1}"},
            mended={"config": "{lr: 1}"}),
    Mistake("a file of W&B: metric", "write objective: {metric: loss, mode: min}",
            {"metric": "{name: loss, goal: minimize}"},
            mended={"objective": "{metric: loss, mode: min}"}),
    Mistake("a file of W&B: early_terminate", "delete it", {"early_terminate": "{min_iter: 3}"},
            mended={}),
    Mistake("a file of W&B: command", "write entry: FILE",
            {"command": "['${env}', python, '${program}']"}, mended={}),
    Mistake("a file of W&B: run_cap", "sweep.random.samples", {"run_cap": "10"}),
    Mistake("Hydra's defaults", "write config: {model: resnet} and flags: key=value",
            {"defaults": "[model: resnet, _self_]"},
            mended={"config": "{model: resnet}", "flags": "key=value"}),
    Mistake("Hydra's own block", "delete it", {"hydra": "{run: {dir: out}}"}, mended={}),
    Mistake("a bare interpolation", 'quote it: "${oc.env:HOME}/x"',
            {"config": "{lr: ${oc.env:HOME}/x}"}, mended={"config": '{lr: "${oc.env:HOME}/x"}'}),
    Mistake("a bare interpolation in a list", 'quote it: "${config.steps}"',
            {"config": "{lr: [${config.steps}], steps: 3}"},
            mended={"config": '{lr: ["${config.steps}"], steps: 3}'}),
    Mistake("a bare interpolation in a text", 'quote it: "run --x=${config.a}/${config.a}"',
            {"config": "{a: 1, b: run --x=${config.a}/${config.a}}"},
            mended={"config": '{a: 1, b: "run --x=${config.a}/${config.a}"}'}),
    Mistake("a bracket that is open", "a text with , : { or [ is quoted",
            {"config": '{a: "x, ${y}", b: [1, 2}'}),
    Mistake("a colon without a blank", "write config: {lr: 0.1}", {"config": "\n  lr:0.1"},
            mended={"config": "{lr: 0.1}"}),
    Mistake("one value below sweep", "write sweep: {grid: {lr: [0.1]}}", _sweep("lr: 0.1"),
            mended=_sweep("grid: {lr: [0.1]}")),
    Mistake("a bare interpolation on the line", 'quote it: "${oc.env:HOME}"',
            line="plan s.yaml 'config={lr: ${oc.env:HOME}}'",
            typed="plan s.yaml 'config={lr: \"${oc.env:HOME}\"}'"),
    Mistake("Jinja's braces", 'write "${NAME}"', {"config": "{lr: {{ steps }}, steps: 3}"},
            mended={"config": '{lr: "${config.steps}", steps: 3}'}),
    Mistake("a sign of YAML's", 'quote it: "@x"', {"config": "{lr: @x}"},
            mended={"config": '{lr: "@x"}'}),
    Mistake("a colon in braces", "is quoted", {"config": "{lr: a: b}"},
            mended={"config": '{lr: "a: b"}'}),
    Mistake("a colon in a text", "is quoted", {"notes": "first: second: third"},
            mended={"notes": '"first: second: third"'}),
    Mistake("a grid with bounds", "{linspace: [start, stop, count]}",
            {"sweep": "{grid: {lr: {min: 0.1, max: 1}}}"},
            mended={"sweep": "{grid: {lr: {linspace: [0.1, 1, 3]}}}"}),
    Mistake("a grid in a string", "write config.lr: [1e-3,1e-4]",
            {"sweep": "{grid: {lr: '1e-3,1e-4'}}"},
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
    Mistake("an image", "write container: {image: py.sif, runtime: apptainer}",
            _env("image: py.sif"), mended=_env("container: {image: py.sif, runtime: apptainer}")),
    Mistake("Docker's image", "write container: {image: docker://a/b, runtime: apptainer}",
            _env("docker: a/b"),
            mended=_env("container: {image: docker://a/b, runtime: apptainer}")),
    Mistake("an image at the top", "{container: {image: py.sif, runtime: apptainer}}",
            {"container": "py.sif"},
            mended=_env("container: {image: py.sif, runtime: apptainer}")),
    Mistake("conda", "write python: /home/me/miniconda3/envs/torch/bin/python",
            _env("conda: torch"), mended=_env("python: /home/me/miniconda3/envs/torch/bin/python")),
    Mistake("conda's prefix", "write python: /c/envs/torch/bin/python",
            _env("conda: /c/envs/torch"), mended=_env("python: /c/envs/torch/bin/python")),
    Mistake("conda at the top", "environment: {python: /home/me/miniconda3/envs/torch/bin/python}",
            {"conda": "torch"}, mended=_env("python: /home/me/miniconda3/envs/torch/bin/python")),
    Mistake("an environment's name", "envs/torch/bin/python}", {"environment": "torch"},
            mended=_env("python: /home/me/miniconda3/envs/torch/bin/python")),
    Mistake("a venv", "write python: venv/bin/python", _env("venv: venv/"),
            mended=_env("python: venv/bin/python")),
    Mistake("a virtualenv", "write python: venv/bin/python", _env("virtualenv: venv"),
            mended=_env("python: venv/bin/python")),
    Mistake("a venv at the top", "environment: {python: venv/bin/python}", {"venv": "venv"},
            mended=_env("python: venv/bin/python")),
    Mistake("uv", "write python: .venv/bin/python", _env("uv: true"),
            mended=_env("python: .venv/bin/python")),
    Mistake("packages", "hpcrun help lock", _env("pip: [torch]"), typed="help lock", mended={}),
    Mistake("env", "did you mean 'environment.variables'?", _env("env: {A: 1}"),
            mended=_env("variables: {A: 1}")),
    Mistake("minutes between saves", "as in every: 500; no key counts time",
            {"checkpoint": "{every: 10min}"}),
    Mistake("steps in words", "write every: 100", FN | {"checkpoint": "{every: 100 steps}"},
            mended=FN | {"checkpoint": "{every: 100}"}),
    Mistake("a key of minutes", "every: N", {"checkpoint": "{every_minutes: 10}"}),
    Mistake("cores in words", "write cpus_per_task: 4", _res("cpus_per_task: 4 cores"),
            mended=_res("cpus_per_task: 4")),
    Mistake("an hour in words", 'write "01:00:00"', _res("time: 1 hour"),
            mended=_res('time: "01:00:00"')),
    Mistake("days in words", 'write "2-12:30:00"', _res("time: 2d12h30m"),
            mended=_res('time: "2-12:30:00"')),
    Mistake("a time of no unit", 'such as "12:00:00"', _res("time: soon")),
    Mistake("a hang's minutes", 'write "00:05:00"', {"recovery": "{hang_after: 5m}"},
            mended={"recovery": '{hang_after: "00:05:00"}'}),
    Mistake("a lead's minutes", 'write "00:05:00"', {"recovery": "{stop_before: 5 min}"},
            mended={"recovery": '{stop_before: "00:05:00"}'}),
    Mistake("memory of a typo", "write 4T", _res("mem: 4TBB"), mended=_res("mem: 4T")),
    Mistake("a part of memory", "write 1536G", _res("mem: 1.5T"), mended=_res("mem: 1536G")),
    Mistake("a name with a blank", "write name: my-exp", {"name": "my exp"},
            mended={"name": "my-exp"}),
    Mistake("a name with a slash", "write name: a-b", {"name": "a/b"}, mended={"name": "a-b"}),
    Mistake("a name with an accent", "write name: uber", {"name": "über"}, mended={"name": "uber"}),
    Mistake("a name of digits", "write name: job-3", {"name": "3"}, mended={"name": "job-3"}),
    Mistake("a slip of a block's key", "did you mean 'resources.partition'?", {"partitoin": "gpu"},
            mended=_res("partition: gpu")),
    Mistake("a key of the top in a block", "framework stands at the top, not below resources",
            _res("framework: none"), mended={"framework": "none"}),
    Mistake("a dependence that is not there", "(there are other.yaml)",
            {"depends_on": "pretrain.yaml"}, mended={"depends_on": "other.yaml"}),
    Mistake("a spec that is not there", "there are other.yaml, s.yaml", line="plan pretrain.yaml",
            typed="plan other.yaml"),
    Mistake("a dependence of another ending", "did you mean 'other.yaml'?",
            {"depends_on": "other.yml"}, mended={"depends_on": "other.yaml"}),
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
    Mistake("a nested option of a script", "hpcrun plan s.yaml 'config={trainer.steps: 3}'",
            line="plan s.yaml --trainer.steps 3", typed="plan s.yaml 'config={trainer.steps: 3}'"),
    Mistake("a nested key of a script", "'config={trainer.steps: VALUE}' adds it",
            line="plan s.yaml trainer.steps=3", typed="plan s.yaml 'config={trainer.steps: 3}'"),
    Mistake("a nested option of a function", "hpcrun plan s.yaml +config.trainer.steps=3", FN,
            line="plan s.yaml --trainer.steps 3", typed="plan s.yaml +config.trainer.steps=3"),
    Mistake("a seed", "+config.seed=VALUE", {"config": "{lr: 1}"}, line="plan s.yaml seed=3",
            typed="plan s.yaml +config.seed=3"),
    Mistake("a script of a shell", "[bash, run.sh]", {"entry": "run.sh"},
            mended={"entry": "[bash, run.sh]", "config": "{}"}),
    Mistake("a script without its ending", "did you mean 'train.py'?", {"entry": "train"},
            mended={"entry": "train.py"}),
    Mistake("a module", "[python, -m, pkg.train]", {"entry": "pkg.train"},
            mended={"entry": "[python, -m, pkg.train]"}),
    Mistake("a package", "[python, -m, pkg]", {"entry": "pkg"},
            mended={"entry": "[python, -m, pkg]"}),
    Mistake("Python's -m", "[python, -m, pkg.train]", {"entry": "-m pkg.train"},
            mended={"entry": "[python, -m, pkg.train]"}),
    Mistake("Python's -m in a list", "[python, -m, pkg.train]", {"entry": "[-m, pkg.train]"},
            mended={"entry": "[python, -m, pkg.train]"}),
    Mistake("a command in a list of one", "[python, -m, pkg.train]",
            {"entry": "[python -m pkg.train]"}, mended={"entry": "[python, -m, pkg.train]"}),
    Mistake("a line of a shell", '[sh, -c, "cd pkg && python train.py"]',
            {"entry": "cd pkg && python train.py"},
            mended={"entry": '[sh, -c, "cd pkg && python train.py"]', "config": "{}"}),
    Mistake("a notebook", "`jupyter nbconvert --to script a.ipynb`", {"entry": "a.ipynb"}),
    Mistake("words of a shell", "'|' is an argument: no shell reads it", {"args": "['|', tee, x]"}),
    Mistake("an option with its value", '[--out, "1"]', {"args": "[--out 1]"},
            mended={"args": '[--out, "1"]'}),
    Mistake("curved quotes", 'typed: "adam"', {"config": "{lr: 1, method: “adam”}"},
            mended={"config": '{lr: 1, method: "adam"}'}),
    Mistake("a minus of a text", "typed: 1e-3", {"config": "{lr: 1e\u22123}"},
            mended={"config": "{lr: 1e-3}"}),
    Mistake("a blank that is not seen", "the key holds '\\xa0'", {"config": "\n \xa0lr: 1"},
            mended={"config": "\n  lr: 1"}),
    Mistake("a tag of YAML's", "python/tuple is not accepted", {"config": "!!python/tuple [1]"}),
    Mistake("a tab", "YAML indents with spaces", {"config": "\n\tlr: 1"},
            mended={"config": "\n  lr: 1"}),
    Mistake("two documents", "a file is one spec", {"notes": "a\n---\nname: b"}, mended={}),
    Mistake("numbers in a row", "write config.lr: [1, 2, 3]", _sweep("grid: {lr: 1-3}"),
            mended=_sweep("grid: {config.lr: [1, 2, 3]}")),
    Mistake("numbers up to an end", "write config.lr: [0, 1, 2]", _sweep("grid: {lr: '0:3'}"),
            mended=_sweep("grid: {config.lr: [0, 1, 2]}")),
    Mistake("numpy's powers", "write config.lr: {geomspace: [1e-4, 1e-1, 4]}",
            _sweep("grid: {lr: 'np.logspace(-4, -1, 4)'}"),
            mended=_sweep("grid: {config.lr: {geomspace: [1e-4, 1e-1, 4]}}")),
    Mistake("numpy's steps", "write config.lr: {linspace: [0, 1, 3]}",
            _sweep("grid: {lr: 'np.linspace(0, 1, 3)'}"),
            mended=_sweep("grid: {config.lr: {linspace: [0, 1, 3]}}")),
    Mistake("an executor", "did you mean 'cluster'?", {"executor": "local"}, mended={}),
    Mistake("a description", "did you mean 'notes'?", {"description": "first"},
            mended={"notes": "first"}),
    Mistake("jobs at once", "did you mean 'sweep.max_parallel'?", {"max_parallel": "2"},
            mended=_sweep("grid: {lr: [1, 2]}, max_parallel: 2")),
    Mistake("a value that is a little like a key", "`config: {trials: 3}`", {"trials": "3"},
            mended={"config": "{trials: 3}"}),
    Mistake("RAM", "did you mean 'resources.mem'?", _res("ram: 4G"), mended=_res("mem: 4G")),
    Mistake("a device", "how many a node has", _res("gpus_per_node: 'cuda:0'")),
    Mistake("no hang", "null is never", {"recovery": "{hang_after: false}"},
            mended={"recovery": "{hang_after: null}"}),
    Mistake("a signal that nobody can catch", "did you mean 'SIGTERM'?",
            {"recovery": "{stop_signal: SIGKILL}"}, mended={"recovery": "{stop_signal: SIGTERM}"}),
    Mistake("a signal's number", "did you mean 'SIGUSR1'?",
            {"recovery": f"{{stop_signal: {int(signal.SIGUSR1)}}}"},
            mended={"recovery": "{stop_signal: SIGUSR1}"}),
    Mistake("a file for a recipe", "resume: {when: 'last.pt', args: [--resume]}",
            {"recovery": "{resume: last.pt}"},
            mended={"recovery": "{resume: {when: 'last.pt', args: [--resume]}}"}),
    Mistake("a group of another language", "(?P<step>…)",
            {"progress": r"{pattern: '(?<step>\d+)'}"},
            mended={"progress": r"{pattern: '(?P<step>\d+)'}"}),
    Mistake("a pattern alone", r"write progress: {pattern: 'step (?P<step>\d{2})'}",
            {"progress": r"'step (?P<step>\d{2})'"},
            mended={"progress": r"{pattern: 'step (?P<step>\d{2})'}"}),
    Mistake("Hydra's flags", "did you mean 'key=value'?", {"flags": "hydra"},
            mended={"flags": "key=value"}),
    Mistake("argparse's flags", "did you mean --key value?", {"flags": "argparse"},
            mended={"flags": "--key value"}),
    Mistake("the program's own file", "write args: [own.yaml]", {"config": "own.yaml"},
            mended={"args": "[own.yaml]"}),
    Mistake("config in lines", 'write config: {"lr": 1, "steps": 2}',
            {"config": "\n  - lr: 1\n  - steps: 2"}, mended={"config": '{"lr": 1, "steps": 2}'}),
    Mistake("a grid in a list", 'write grid: {"lr": [1, 2]}', _sweep("grid: [{lr: [1, 2]}]"),
            mended=_sweep('grid: {"lr": [1, 2]}')),
    Mistake("a number of repeats", "repeat: {config.seed: [0, 1, 2]}", _sweep("repeat: 3"),
            mended=_sweep("repeat: {config.seed: [0, 1, 2]}")),
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
    *("words of a shell", "an option with its value", "curved quotes", "a minus of a text"),
}


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "desk"
    clusters = directory / "configs" / "clusters"
    for made in (clusters, directory / "venv" / "bin", directory / "pkg", tmp_path / "root"):
        made.mkdir(parents=True)
    for name, text in {
        "train.py": PROGRAM,
        "fn.py": "def train(session):\n    pass\n",
        "venv/bin/python": "",
        "run.sh": "",
        "pkg/train.py": "",
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
