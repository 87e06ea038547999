"""Programs in a spec's place: the words that were typed are those that the program gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from hpcrun.compile import compile_spec
from hpcrun.compile.spec.typed_program import TypedProgram
from hpcrun.compile.target.sbatch_request import take_option
from hpcrun.errors import UsageError

# What is typed behind the options, and what the spec has of it.
PROGRAMS: list[tuple[str, dict[str, Any]]] = [
    ("train.py", {"entry": "train.py"}),
    ("train.py --lr 0.1 --amp", {"config": {"lr": 0.1, "amp": True}, "flags": "--key value"}),
    ("train.py --lr=1e-3 --n=3", {"config": {"lr": "1e-3", "n": 3}}),
    ("train.py --lr=0.1 --n 3", {"args": ["--lr=0.1"], "config": {"n": 3}}),
    ("train.py data -v --lr 0.1", {"args": ["data", "-v"], "config": {"lr": 0.1}}),
    ("train.py --lr 0.1 -v", {"args": ["--lr", "0.1", "-v"]}),
    ("train.py --x -0.5 --on true --at 1:30", {"config": {"x": -0.5, "on": "true", "at": "1:30"}}),
    ("train.py --betas 0.9 0.95", {"config": {"betas": [0.9, 0.95]}, "flags": "--key value"}),
    ("train.py --lr 1 --lr 2", {"args": ["--lr", "1"], "config": {"lr": 2}}),
    ("train.py -- --lr 1", {"args": ["--", "--lr", "1"]}),
    ("train.py --a.b 1", {"args": ["--a.b", "1"]}),
    ("train.py --no-amp --amp", {"args": ["--no-amp", "--amp"]}),
    (
        "train.py --config c.yaml --batch_size 32",
        {"args": ["--config", "c.yaml"], "config": {"batch_size": 32}},
    ),
    (
        "train.py --b 1 --model-config=c.yaml --a=2",
        {"args": ["--b", "1", "--model-config=c.yaml"], "config": {"a": 2}},
    ),
    ("FOO=1 B= python train.py", {"environment": {"variables": {"FOO": "1", "B": ""}}}),
    ("train.py a.lr=0.1 a.n=x", {"config": {"a": {"lr": 0.1, "n": "x"}}, "flags": "key=value"}),
    ("train.py +a=1", {"args": ["+a=1"]}),
    ("python -u train.py --lr 1", {"entry": ["python", "-u", "train.py"], "config": {"lr": 1}}),
    ("python -m pkg.train --lr 1", {"name": "train", "entry": ["python", "-m", "pkg.train"]}),
    ("torchrun train.py --lr 1", {"entry": ["torchrun", "train.py"], "framework": "torchrun"}),
    (
        "torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d train.py",
        {"entry": ["torchrun", "--nproc_per_node=4", "train.py"]},
    ),
    ("srun -N 2 python train.py --lr 1", {"entry": ["python", "train.py"], "config": {"lr": 1}}),
    ("mpirun -np 2 python train.py", {"framework": "batch"}),
    ("bash job.sh 3", {"entry": ["bash", "job.sh"], "args": ["3"]}),
    ("job.sh 3", {"entry": ["bash", "job.sh"], "args": ["3"], "name": "job"}),
]
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("-N 2 --gpus-per-node 8 -c 4", {"nodes": 2, "gpus_per_node": 8, "cpus_per_task": 4}),
    ("-N2 -n 4 -t 1-12:00:00", {"nodes": 2, "ntasks_per_node": 2, "time": "1-12:00:00"}),
    ("--gres=gpu:a100:8", {"gpus_per_node": 8, "gpu_type": "a100"}),
    ("-N 2 -G 16", {"nodes": 2, "gpus_per_node": 8}),
    ("-p gpu -A acc -q high", {"partition": "gpu", "account": "acc", "qos": "high"}),
    ("-C a100 -x n[1-2] --mem 64G", {"constraint": "a100", "exclude": "n[1-2]", "mem": "64G"}),
    ("-w n3 --exclusive", {"sbatch": {"nodelist": "n3", "exclusive": True}}),
    ("-o %j.log --parsable --requeue", {}),
    ("--tasks-per-node=2", {"ntasks_per_node": 2}),
    ("-n 4 --ntasks-per-node=2", {"nodes": 2, "ntasks_per_node": 2}),
]
REFUSED = [
    ("-n 5 --ntasks-per-node=2", "train.py", "-n 5 wants 5 tasks in all, not 2 on 1 node"),
    ("--array=0-3", "train.py", "--sweep KEY=A,B before the program"),
    ("-N 1-2", "train.py", "1-2 nodes were asked for"),
    ("-G 3 -N 2", "train.py", "a number that 2 nodes have alike"),
    ("-d afterok:3", "train.py", "name its spec"),
    ("-D /tmp", "train.py", "cd there first"),
    ("--test-only", "train.py", "`hpcrun check` asks the cluster"),
    ("--signal=USR1@60", "train.py", "recovery.stop_signal"),
    ("--export=A", "train.py", '--export=A="$A"'),
    ("-N 2", "accelerate launch train.py", "framework=accelerate"),
    ("-N 2 -n 4", "torchrun train.py", "leave -n and --ntasks-per-node out"),
    ("", "trian.py", "did you mean 'train.py'?"),
    ("", "job.sbatch", "hpcrun init --from job.sbatch"),
    ("", "python -c print()", "python runs no file and no module"),
]


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "job.sh").write_text("echo\n")
    (tmp_path / "job.sbatch").write_text("#!/bin/bash\n#SBATCH -N 2\npython train.py\n")
    monkeypatch.chdir(tmp_path)


def _command(options: str, program: str) -> TypedProgram:
    words, found = options.split(), {}
    while words:
        option = take_option(words)
        found[option.name] = option
    return TypedProgram(program.split(), found)


@pytest.mark.parametrize(("program", "wanted"), PROGRAMS)
def test_a_program_gets_the_words_that_were_typed(
    program: str, wanted: dict[str, Any], tmp_path: Path
) -> None:
    options = "-N 2" if "2" in program.split()[:3] or "--nnodes=2" in program else ""
    command = _command(options, program)
    made = command.spec()
    spec = yaml.safe_load(made.text)
    assert {name: spec.get(name) for name in wanted} == wanted
    (run,) = compile_spec(made, ["cluster=local"], root=tmp_path / "root").runs
    typed = [one for one in program.split() if one not in ("--nnodes=2", "--rdzv_backend=c10d")]
    typed = typed[3:] if typed[0] == "srun" else typed
    typed = typed[2:] if typed[0] == "FOO=1" else typed
    typed = typed[1:] if typed[0] == "train.py" else typed
    typed = ["bash", *typed] if typed[:1] == ["job.sh"] else typed
    # config has an order of its own.
    made_again = [*run.entry.argv]
    assert made_again == typed or (sorted(made_again) == sorted(typed) and "config" in spec)


@pytest.mark.parametrize(("options", "wanted"), OPTIONS)
def test_options_of_sbatch_mean_what_they_mean_there(options: str, wanted: dict[str, Any]) -> None:
    spec = yaml.safe_load(_command(options, "train.py").spec().text)
    assert spec.get("resources", {}) == wanted


def test_what_follows_a_flag_of_the_program_stays_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("p.add_argument('--v', '-w',\n  action='store_true')\n")
    words = ["--v", "a", "--b", "c"]
    spec = yaml.safe_load(_command("", f"train.py {' '.join(words)}").spec().text)
    assert (spec["args"], spec["config"]) == (["--v", "a"], {"b": "c"})


def test_options_that_do_nothing_are_told() -> None:
    command = _command("-o x.log --export=ALL,A=1 -J two.words! --mail-type=END", "train.py")
    spec = yaml.safe_load(command.spec().text)
    assert spec["environment"] == {"variables": {"A": "1"}}
    assert spec["name"] == "two.words"
    told = "\n".join(command.notes)
    for one in ("-o x.log: ", "`hpcrun logs`", "--export=ALL", "name is two.words", "to whom?"):
        assert one in told


@pytest.mark.parametrize(("options", "program", "told"), REFUSED)
def test_what_no_spec_says_is_refused_with_what_to_type(
    options: str, program: str, told: str
) -> None:
    with pytest.raises(UsageError) as caught:
        _command(options, program).spec()
    assert told in str(caught.value)


def test_a_swept_option_that_was_not_typed_is_added(tmp_path: Path) -> None:
    command = _command("", "train.py --steps 3")
    command.sweeps = ("lr=1,2", "steps=4,5", "nodes=1,2")
    made = command.spec()
    assert yaml.safe_load(made.text)["config"] == {"steps": 3, "lr": None}
    runs = compile_spec(made, ["cluster=local"], ["lr=1,2"], root=tmp_path / "root").runs
    assert [run.entry.argv for run in runs] == [("--lr", lr, "--steps", "3") for lr in "12"]
