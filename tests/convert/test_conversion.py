"""`hpcrun init --from`: ten scripts of the usual structures, and that no line is dropped."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcrun.compile import compile_spec
from hpcrun.convert.conversion import Conversion, convert, read_script
from hpcrun.convert.line_fates import CARRIED, LEFT, NOT_NEEDED
from hpcrun.errors import UsageError
from tests.convert.support import SCRIPTS, project
from tests.support.doc_blocks import blocks

FATES = {CARRIED, NOT_NEEDED, LEFT}
SHELL = {"SCRATCH": "/scratch/ada", "USER": "ada"}


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in SHELL.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return project(tmp_path)


def made(text: str, directory: Path = Path("/nowhere")) -> Conversion:
    """The conversion of a script."""
    return convert(text, directory / "job.sbatch", directory)


def spec_of(text: str, **more: Any) -> dict[str, Any]:
    """The spec of a script, as YAML reads it."""
    return yaml.safe_load(made(text, **more).spec)


def job(*lines: str, options: str = "") -> str:
    head = [f"#SBATCH {one}" for one in options.split("|") if one]
    return "\n".join(["#!/bin/bash", *head, *lines, ""])


def what_of(text: str, number: int) -> list[tuple[str, str]]:
    """The fates of a line, what and why."""
    return [(one.fate, one.what) for one in made(text).fates if one.line <= number <= one.last]


# --- ten scripts


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_becomes_the_spec_beside_it(script: Path, directory: Path) -> None:
    """To write them anew: python -m tests.convert.golden."""
    done = convert(read_script(directory / script.name), directory / script.name, directory)
    assert done.spec == script.with_suffix(".yaml").read_text()
    check_every_line(script.read_text(), done)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_its_spec_is_planned(script: Path, directory: Path) -> None:
    done = convert(read_script(script), directory / script.name, directory)
    (directory / "experiment.yaml").write_text(done.spec)
    compiled = compile_spec(str(directory / "experiment.yaml"), [], [])
    assert compiled.runs
    assert [one for one in compiled.notes if "starts processes of its own" in one] == []


# Script -> arguments of rank 0's program that must come back, in this order.
WORDS = {
    "torchrun_nodes": "--epochs=20 --lr=3e-4 --amp --data=/data/imagenet",
    "srun_python": "--name|first try|data/cells|--batch-size|16|--betas|0.9|0.95",
    "array_seeds": "--seed 0 --env Hopper-v4 --steps 1000000",
    "array_lookup": "optimizer.lr=1e-4 +tag=lookup model=small trainer.devices=1",
    "bash_c_ranks": "bash --arch resnet50 --dist-backend nccl",
    "grid_loops": "--lr=0.1 --weight-decay=0 --data=/data/cifar",
    "megatron_document": "--tensor-model-parallel-size 2 --num-layers 24 --hidden-size 1536 "
    "--pp-partition-method type:transformer|embedding --lr 2.5e-4 --deepspeed --deepspeed_config "
    "${hpcrun:deepspeed_config}",
    "requeue_trap": "--config configs/base.yaml --epochs 100",
}


@pytest.mark.parametrize(("name", "words"), WORDS.items())
def test_the_program_gets_the_same_words(name: str, words: str, directory: Path) -> None:
    script = directory / f"{name}.sbatch"
    done = convert(read_script(script), script, directory)
    (directory / "experiment.yaml").write_text(done.spec)
    first = compile_spec(str(directory / "experiment.yaml"), [], []).runs[0]
    wanted = words.split("|") if " try|" in words else words.split()
    assert list(first.entry.argv)[-len(wanted) :] == wanted


def test_an_array_becomes_the_runs_of_its_tasks(directory: Path) -> None:
    done = convert(read_script(SCRIPTS[1]), directory / "array_lookup.sbatch", directory)
    (directory / "experiment.yaml").write_text(done.spec)
    runs = compile_spec(str(directory / "experiment.yaml"), [], []).runs
    told = [(run.entry.argv[-2], run.entry.argv[8]) for run in runs]
    rates, models = ["1e-4", "3e-4", "1e-3"], ["small", "large"]
    assert told == [
        (f"model={models[task // 3]}", f"optimizer.lr={rates[task % 3]}") for task in range(6)
    ]


def test_the_page_shows_what_is_made(tmp_path: Path) -> None:
    script, _, spec = blocks("docs/from-sbatch.md")
    assert (script.language, spec.file) == ("bash", "experiment.yaml")
    (tmp_path / "train.py").touch()
    done = convert(script.text, tmp_path / "job.sbatch", tmp_path)
    assert done.spec == spec.text


# --- every line


def check_every_line(text: str, done: Conversion) -> None:
    """Every line that is no comment has a fate, with a reason; what was left out is in the spec."""
    covered = {n for one in done.fates for n in range(one.line, one.last + 1)}
    for number, line in enumerate(text.split("\n"), 1):
        is_comment = line.lstrip().startswith("#") and not re.match(r"#SBATCH(\s|$)", line)
        if line.strip() and not is_comment:
            assert number in covered, f"line {number} is dropped: {line!r}"
    for one in done.fates:
        assert one.fate in FATES
        assert one.what
    told = " ".join(done.spec.split())
    for one in done.of(LEFT):
        start = " ".join(f"# - {one.place}:".split())
        assert start in told or "more: `hpcrun init --from`" in told


COMMANDS = [
    *("module load cuda", "export A=1", "export B=$A/x", "X=3", "echo hi", "cd sub", "set -e", ""),
    *("# a comment", "#SBATCH --nodes=2", "mkdir -p logs", "source venv/bin/activate", "wait"),
    *("cp a b", "trap 'echo x' USR1", "rm -rf out", "Y=$(date +%s)", "Z=(a b c)", "unknown --x"),
    *("if [ $X -gt 2 ]; then", "else", "fi", "for i in 1 2 3; do", "done", "while true; do"),
    *("srun python train.py --a $X", "torchrun train.py", "python prepare.py", "f() {", "}"),
    *("cat <<EOF > f.json", "EOF", "case $X in", "3) echo x;;", "esac", "f", "echo 'open", "$("),
    *("(cd x; ls)", "a && b || c", "[[ -f x ]] && source x", "time python x.py | tee y", "eval $Y"),
    *("python - <<EOF", "export PATH=/x:$PATH", "wandb login abc", "ulimit -n 4096", "\\", "&&"),
]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(COMMANDS), max_size=25))
def test_no_line_is_dropped(lines: list[str]) -> None:
    text = "\n".join(["#!/bin/bash", "#SBATCH --job-name=x", *lines, "srun python train.py", ""])
    try:
        done = made(text)
    except UsageError as error:
        if "starts no program" not in str(error):
            raise
        return
    check_every_line(text, done)
    assert yaml.safe_load(done.spec)["name"] == "x"


@settings(max_examples=150, deadline=None)
@given(
    st.text(alphabet=st.sampled_from("ab $\"'`(){}[]<>|&;\\\n#=!*?~-@\ue000\x1b\x85"), max_size=60)
)
def test_no_text_makes_it_fail(text: str) -> None:
    whole = f"#!/bin/bash\n#SBATCH -J x\nsrun python train.py --first 1\n{text}\n"
    try:
        done = made(whole)
    except UsageError:
        return
    check_every_line(whole, done)
    assert "\x1b" not in done.spec
    assert "\x1b" not in "".join(map(str, done.fates))


WORD = st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), min_size=0, max_size=12)


@settings(max_examples=150, deadline=None)
@given(st.lists(WORD, max_size=8))
def test_quoted_arguments_come_back(words: list[str]) -> None:
    """Whatever a script's words are, the program gets the same ones, options before others."""
    import shlex

    from hpcrun.compile.source.marked_tree import Tree
    from hpcrun.compile.source.problems import Problems, Reporter
    from hpcrun.compile.target.command_line import flags_of

    spec = spec_of(job("srun python train.py " + " ".join(map(shlex.quote, words))))
    problems = Problems()
    style = spec.get("flags", "--key=value")
    flags = flags_of(spec.get("config", {}), style, Reporter(Tree({}, {}), problems))
    assert not problems
    got = [*map(str, spec.get("args", [])), *flags]
    assert sorted(one.replace("\\${", "${") for one in got) == sorted(words)


# --- nothing is executed


def test_nothing_of_it_is_executed(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    text = job(
        f"touch {canary}; X=$(touch {canary}); Y=`touch {canary}`",
        f"eval 'touch {canary}'; source <(touch {canary})",
        f"[[ -n $(touch {canary}) ]] && srun python train.py --x $((a[$(touch {canary})]))",
        f"srun python train.py --y ${{Z:-$(touch {canary})}}",
    )
    made(text, tmp_path)
    assert not canary.exists()


@pytest.mark.parametrize(
    "text",
    [
        'X="$X$X$X$X"\n' * 200,
        "for a in {1..1000}; do\n" * 6 + "echo $a\n" + "done\n" * 6,
        "if true; then\n" * 3_000,
        "$(" * 5_000,
        "f() { f; f; f; }\nf\n",
        "(" * 2_000,
        "A=$((9**9**9**9))\nB=$((1<<99999999))\n",
        "X=${X:-${X:-${X:-${X:-${X}}}}}\n" * 100,
        "a" * 500_000,
        'cat > d.json <<EOF\n{"a": "${FOO:-it\'s}", "b": "${X:-$\'}"}\nEOF\n',
        "X=$'\\",
        "[ -f x ] && " * 5_000 + "source x",
        "case $(seq 1 \u00b2) in\n1) X=1;;\nesac\nfor i in $(seq "
        + "9" * 5_000
        + "); do :; done\n",
        "if [ " + "! " * 3_000 + "x ]; then X=1; fi\n",
        'eval "$CMD"\nCMD=\'eval "$CMD"\'\neval "$CMD"\n',
    ],
    ids=[
        *("doubling", "loops", "blocks", "substitutions", "recursion", "parentheses", "powers"),
        *("defaults", "long", "apostrophe", "open quote", "joined", "digits", "negations", "eval"),
    ],
)
@pytest.mark.timeout(20)
def test_a_hostile_script_ends_soon(text: str) -> None:
    try:
        made(f"#!/bin/bash\n{text}\nsrun python train.py\n")
    except UsageError as error:
        if "starts no program" not in str(error):
            raise


def test_a_file_that_is_none(tmp_path: Path) -> None:
    for path in (Path("/dev/zero"), tmp_path, tmp_path / "lacking"):
        with pytest.raises(UsageError, match="cannot be read"):
            read_script(path)
    binary = tmp_path / "binary"
    binary.write_bytes(b"\x7fELF\0")
    with pytest.raises(UsageError, match="NUL"):
        read_script(binary)
    big = tmp_path / "big"
    big.write_bytes(b"#" * 1_000_001)
    with pytest.raises(UsageError, match=r"cannot be read"):
        read_script(big)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("#!/usr/bin/env python3\n#SBATCH -N1\n", "no script of a shell"),
        (job("echo nothing"), "starts no program"),
        (job("srun python a.py", options="-N 1|hetjob|-N 2"), "heterogeneous jobs"),
    ],
)
def test_what_is_refused_is_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        made(text)
    assert caught.value.hint


# --- sbatch's options

OPTIONS: dict[str, dict[str, Any]] = {
    "-N 3": {"nodes": 3},
    "-N2 -n 8": {"nodes": 2, "ntasks_per_node": 4},
    "--nodes=2-4": {"nodes": 2},
    "--nodes 2 --tasks-per-node=3": {"nodes": 2, "ntasks_per_node": 3},
    "--gres=gpu": {"gpus_per_node": 1},
    "--gres=gpu:h100:2 --ntasks-per-node=2": {"gpus_per_node": 2, "gpu_type": "h100"},
    "--gpus-per-node=v100:2 -n2": {"gpus_per_node": 2, "gpu_type": "v100"},
    "-N2 -G 8 --ntasks-per-node=4": {"nodes": 2, "gpus_per_node": 4},
    "-n 4 --gpus-per-task=1": {"gpus_per_node": 4},
    "--gpus-per-node=2 --ntasks-per-gpu=1": {"gpus_per_node": 2},
    "-c 8 --mem=64G -t 90": {"cpus_per_task": 8, "mem": "64G", "time": "90"},
    "-t 1-2": {"time": "1-2"},
    "--time 0:30:0 -p a,b -A lab -q high": {"time": "0:30:0", "partition": "a,b"},
    "--constraint=a100&nvlink -x n[1-3]": {"constraint": "a100&nvlink", "exclude": "n[1-3]"},
    "--exclusive -L fs:1 --hint=nomultithread": {
        "sbatch": {"exclusive": True, "licenses": "fs:1", "hint": "nomultithread"}
    },
    "--mem-per-gpu=20G --nice=10": {"sbatch": {"mem-per-gpu": "20G", "nice": 10}},
    "--constrain=haswell": {"constraint": "haswell"},
    "--dependency=singleton": {"sbatch": {"dependency": "singleton"}},
    "--gres=nvme:2,gpu:1": {"gpus_per_node": 1, "sbatch": {"gres": "nvme:2"}},
    "--cpus-per-gpu=6 --gpus=1": {"cpus_per_task": 6},
}


@pytest.mark.parametrize(("options", "wanted"), OPTIONS.items())
def test_an_option_of_sbatch_goes_to_its_key(options: str, wanted: dict[str, Any]) -> None:
    found = spec_of(job("srun python train.py", options=options))["resources"]
    assert {key: found.get(key) for key in wanted} == wanted


@pytest.mark.parametrize(
    ("option", "fate", "words"),
    [
        ("--output=x.log", NOT_NEEDED, "logs"),
        ("--requeue", NOT_NEEDED, "requeues by itself"),
        ("--signal=B:TERM@60", NOT_NEEDED, "hears"),
        ("--open-mode=append", NOT_NEEDED, "appends"),
        ("--export=ALL", NOT_NEEDED, "environment.variables"),
        ("--dependency=afterok:12", LEFT, "names a job"),
        ("--comment=mine", LEFT, "hpcrun keeps it"),
        ("--image=pytorch", LEFT, "knows no option --image"),
        ("--account=<yours>", LEFT, "found '<yours>'"),
        ("--time=UNLIMITED", LEFT, "length of time"),
        ("--mail-type=END", LEFT, "no --mail-user"),
        ("--gres=gpu:tesla:v100:2", LEFT, "found 'gpu:tesla:v100:2'"),
        ("--ntasks-per-node=4(x2)", LEFT, "found '4(x2)'"),
        ("--cpus-per-task=8x", LEFT, "found '8x'"),
        ("--clusters=other", LEFT, "one cluster"),
        ("--array=0-x", LEFT, "found '0-x'"),
        ("--array=0-3", LEFT, "nothing in the program's line differs"),
        ("--no-requeue", CARRIED, "recovery.requeue"),
        ("--signal=USR1@60", CARRIED, "recovery.stop_signal"),
        ("--mail-user=a@b.org", CARRIED, "notify.mail"),
        ("--export=ALL,FOO=1", CARRIED, "environment.variables"),
    ],
)
def test_the_fate_of_an_option(option: str, fate: str, words: str) -> None:
    ((found, what),) = what_of(job("srun python train.py", options=option), 2)
    assert found == fate
    assert words in what


def test_a_part_of_an_option_is_left() -> None:
    options = "-N 2|--gpus=5|--mail-user=a@b.org|--mail-type=END,BOGUS|--export=ALL,FOO=1,BAR"
    left = [*map(str, made(job("srun python t.py", options=options)).of(LEFT))]
    assert [one[:6] for one in left] == ["line 3", "line 5", "line 6"]
    wanted = ["5 GPUs on 2 nodes", "found BOGUS", "name BAR there"]
    assert all(words in one for words, one in zip(wanted, left, strict=True))


def test_the_last_of_two_lines_counts_and_later_ones_do_not() -> None:
    text = job("srun python train.py", "#SBATCH --nodes=9", options="--nodes=2|--nodes=3")
    assert spec_of(text)["resources"]["nodes"] == 3
    assert "the last one counts" in what_of(text, 2)[0][1]
    assert "after the first command" in what_of(text, 5)[0][1]


# --- launch lines

LAUNCHES: dict[str, tuple[str, dict[str, Any]]] = {
    "python": ("python train.py", {"entry": "train.py"}),
    "python -u": ("srun -u python3 -u train.py", {"entry": "train.py"}),
    "module": ("srun python -m a.b --x 1", {"entry": ["python", "-m", "a.b"]}),
    "warnings": ("python -W ignore train.py", {"entry": ["python", "-W", "ignore", "train.py"]}),
    "own Python": (
        "/opt/py/bin/python train.py",
        {"environment": {"python": "/opt/py/bin/python"}},
    ),
    "torchrun module": ("torchrun -m a.b --x=1", {"entry": ["python", "-m", "a.b"]}),
    "distributed": (
        "python -m torch.distributed.launch --use_env --nproc_per_node=2 train.py --x=1",
        {"entry": "train.py", "config": {"x": 1}},
    ),
    "deepspeed": (
        "deepspeed --num_gpus 2 train.py --deepspeed_config=ds.json",
        {"framework": "deepspeed", "deepspeed_config": "ds.json"},
    ),
    "accelerate": (
        "accelerate launch --multi_gpu --use_fsdp --fsdp_offload_params true --mixed_precision "
        "bf16 train.py",
        {"framework": "accelerate", "entry": "train.py"},
    ),
    "mpirun": ("mpirun -np 4 -x FOO=1 python train.py", {"entry": "train.py"}),
    "singularity": (
        "srun singularity exec --nv -B /a:/a x.sif python train.py",
        {"entry": [*["singularity", "exec", "--nv", "-B", "/a:/a", "x.sif", "python", "train.py"]]},
    ),
    "bash -c": ("srun bash -c 'source x.sh; exec python train.py --a 1'", {"entry": "train.py"}),
    "numactl": (
        "srun numactl -N 0 python train.py",
        {"entry": ["numactl", "-N", "0", "python", "train.py"]},
    ),
    "uv": ("uv run python train.py", {"entry": ["uv", "run", "python", "train.py"]}),
    "assignments": (
        "FOO=1 MASTER_PORT=2 srun env BAR=2 python train.py",
        {"environment": {"variables": {"FOO": "1", "BAR": "2"}}},
    ),
    "program": ("srun ./a.out --n 3", {"entry": ["a.out"], "config": {"n": 3}}),
    "time": ("time nohup srun python train.py &\nwait", {"entry": "train.py"}),
    "eval": ("CMD='python train.py --a 1'\neval $CMD", {"entry": "train.py"}),
    "function": ("go() { python train.py --a $1; }\ngo 7", {"config": {"a": 7}}),
    "hydra": (
        "python train.py a.b=1 c=x",
        {"flags": "key=value", "config": {"a": {"b": 1}, "c": "x"}},
    ),
    "twice": ("python train.py --x 1 --x 2", {"args": ["--x", "1", "--x", "2"]}),
    "text": (
        "python train.py --lr=1e-4 --on=yes --v=0x1 --n=007",
        {"config": {"lr": "1e-4", "on": "yes", "v": "0x1", "n": "007"}},
    ),
    "chdir": ("cd sub\npython train.py", {"entry": "sub/train.py"}),
    "shell variable": ("D=${DATA:-/d}\npython t.py --d $D", {"config": {"d": "${oc.env:DATA,/d}"}}),
    "scratch": ("python t.py --tmp $TMPDIR/x", {"config": {"tmp": "${hpcrun:scratch}/x"}}),
    "argument": ("python t.py --lr $1", {"config": {"lr": "???"}}),
    "interpolation": ("python t.py --x='${y}'", {"config": {"x": "\\${y}"}}),
}


@pytest.mark.parametrize(("lines", "wanted"), LAUNCHES.values(), ids=LAUNCHES.keys())
def test_a_line_that_starts_a_program(lines: str, wanted: dict[str, Any]) -> None:
    found = spec_of(job(*lines.split("\n")))
    assert {key: found.get(key) for key in wanted} == wanted


def test_what_accelerate_launch_sets_is_set() -> None:
    found = spec_of(job(LAUNCHES["accelerate"][0]))["environment"]["variables"]
    assert found == {
        "ACCELERATE_USE_FSDP": "true",
        "FSDP_OFFLOAD_PARAMS": "true",
        "ACCELERATE_MIXED_PRECISION": "bf16",
    }


SHAPES: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "launcher's ranks share its CPUs": (
        "-N2 --ntasks-per-node=1 --gres=gpu:4 -c 32",
        "srun torchrun --nproc_per_node=4 --nnodes=2 train.py",
        {"nodes": 2, "gpus_per_node": 4, "cpus_per_task": 8},
        "",
    ),
    "one process with all GPUs": (
        "--gres=gpu:4",
        "python train.py",
        {"nodes": 1, "gpus_per_node": 4},
        "",
    ),
    "without srun": (
        "-N4 -n8 -c2",
        "python train.py",
        {"nodes": 1, "cpus_per_task": 4},
        "first of",
    ),
    "fewer ranks than GPUs": (
        "--gres=gpu:4 -n 2",
        "srun python train.py",
        {"gpus_per_node": 2},
        "one rank a GPU",
    ),
    "more ranks than GPUs": (
        "--gres=gpu:2 -n 8",
        "srun python train.py",
        {"gpus_per_node": 2},
        "shared the 2 GPUs",
    ),
    "CPUs alone": ("-N2", "srun torchrun --nproc_per_node 3 t.py", {"ntasks_per_node": 3}, ""),
    "a node too many": (
        "-N2 --gres=gpu:1",
        "torchrun --nnodes=1 --nproc_per_node=1 t.py",
        {"nodes": 1},
        "uses 1",
    ),
    "mpirun": ("-N2 -n8", "mpirun -np 8 python t.py", {"nodes": 2, "ntasks_per_node": 4}, ""),
    "srun's own": ("-N4 -n16", "srun -N2 -n4 python t.py", {"nodes": 2, "ntasks_per_node": 2}, ""),
}


@pytest.mark.parametrize(("options", "line", "wanted", "lost"), SHAPES.values(), ids=SHAPES.keys())
def test_the_shape_of_a_run(options: str, line: str, wanted: dict[str, Any], lost: str) -> None:
    done = made(job(line, options=options))
    found = yaml.safe_load(done.spec)["resources"]
    assert {key: found.get(key) for key in wanted} == wanted
    assert lost in " ".join(done.lost)
    assert bool(lost) == bool(done.lost)


# --- the rest of a script

LINES: dict[str, tuple[str, str, str]] = {
    "module": ("module load cuda", CARRIED, "environment.setup"),
    "source": ("source env.sh", CARRIED, "environment.setup"),
    "venv": ("source v/bin/activate", CARRIED, "environment.python"),
    "ulimit": ("ulimit -n 4096", CARRIED, "environment.setup"),
    "variable": ("export FOO=bar", CARRIED, "environment.variables.FOO"),
    "path": ("export PATH=/x/bin:$PATH", CARRIED, "environment.setup"),
    "if": ("if [ -f ~/x ]; then source ~/x; fi", CARRIED, "environment.setup"),
    "address": ("export MASTER_ADDR=$(hostname)", NOT_NEEDED, "what they need to meet"),
    "fabric": ("export NCCL_IB_HCA=mlx5_0", NOT_NEEDED, "fabric.hca"),
    "hosts": ("scontrol show hostnames > hostfile", NOT_NEEDED, "no hostfile"),
    "trap": ("trap 'scontrol requeue $SLURM_JOB_ID' USR1", NOT_NEEDED, "recovery"),
    "echo": ("echo hello", NOT_NEEDED, "prints"),
    "again": ("sbatch $0", NOT_NEEDED, "submits no job"),
    "next": ("sbatch next.sh", LEFT, "submits no job"),
    "copy": ("cp data.tar $TMPDIR", LEFT, "runs nothing before"),
    "install": ("pip install x", LEFT, "installed once"),
    "secret": ("export HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz0123456789", LEFT, "is a secret"),
    "login": ("wandb login 0123456789abcdef", LEFT, "runs nothing before"),
    "document": ("cat > c.yaml <<X\na: 1\nX", LEFT, "writes a file"),
    "in place": ("sed -i s/a/b/ c.yaml", LEFT, "changes a file"),
    "compiler": ("gcc -O3 -shared -o l.so f.c", LEFT, "changes a file"),
    "version": ("gcc --version", NOT_NEEDED, "prints"),
    "tee": ("tee ds.json <<X\n{}\nX", LEFT, "changes a file"),
    "list": ("ls *.tar > files.txt\necho files.txt", LEFT, "writes a file"),
    "text log": ("nvidia-smi > gpus.txt", NOT_NEEDED, "prints"),
    "second": ("python evaluate.py", LEFT, "second program"),
    "rank": ("export SEED=$SLURM_PROCID", LEFT, "from rank to rank"),
    "undecided": ("if [ -d x ]; then Y=2; fi", LEFT, "only a job can tell"),
}


@pytest.mark.parametrize(("line", "fate", "words"), LINES.values(), ids=LINES.keys())
def test_the_fate_of_a_line(line: str, fate: str, words: str) -> None:
    text = job(*line.split("\n"), "srun torchrun train.py")
    found = what_of(text, 2)
    assert any(one == fate and words in what for one, what in found), found


def test_secrets_are_neither_quoted_nor_carried() -> None:
    token = "hf_abcdefghijklmnopqrstuvwxyz0123456789"
    done = made(
        job(
            f"export HF_TOKEN={token}",
            f"export URL=https://me:{token}@host/x",
            f"huggingface-cli login --token {token}",
            f"wandb login {token}",
            "srun python train.py",
        )
    )
    told = done.spec + json.dumps(done.to_data())
    assert token not in told


def test_a_resumed_run_gets_the_flag_that_the_script_gave() -> None:
    text = job(
        'if [ -e out/last.ckpt ]; then R="--resume out/last.ckpt"; fi', "srun python train.py $R"
    )
    resume = spec_of(text)["recovery"]["resume"]
    assert resume == {"when": "out/last.ckpt", "args": ["--resume", "${hpcrun:newest}"]}


def test_tasks_that_differ_in_an_environment_variable_are_told() -> None:
    done = made(job("export SEED=$SLURM_ARRAY_TASK_ID", "python train.py", options="--array=1-3"))
    assert any("SEED differs from task to task" in one for one in done.lost)


def test_a_positional_argument_is_swept() -> None:
    found = spec_of(job("python train.py $SLURM_ARRAY_TASK_ID x", options="--array=1,4,9%2"))
    assert found["entry"] == ["python", "train.py"]
    assert found["args"] == ["${config.task_1}", "x"]
    assert found["sweep"] == {"grid": {"config.task_1": [1, 4, 9]}, "max_parallel": 2}


def test_values_that_go_together_are_zipped() -> None:
    text = job(
        "case $SLURM_ARRAY_TASK_ID in",
        "0) LR=0.1; N=8;;",
        "*) LR=0.5; N=16;;",
        "esac",
        "python train.py --lr $LR --n $N",
        options="--array=0-1",
    )
    assert spec_of(text)["sweep"] == {"zip": {"config.lr": [0.1, 0.5], "config.n": [8, 16]}}


# --- what is joined, chosen and not followed

LR = "srun python train.py --lr $LR"
FOLLOWED: dict[str, tuple[str, dict[str, Any]]] = {
    "and": ('LR=1;[ "$SLURM_NNODES" -gt 5 ] && LR=9;' + LR, {"config": {"lr": 1}}),
    "or": ('LR=1;[ "$SLURM_NNODES" -gt 1 ] || LR=8;' + LR, {"config": {"lr": 1}}),
    "and or": ("[[ $SLURM_NNODES -gt 1 ]] && LR=1 || LR=2;" + LR, {"config": {"lr": 1}}),
    "test": ("LR=1;test 1 = 2 && { LR=3; };" + LR, {"config": {"lr": 1}}),
    "within bash -c": (
        "srun bash -c 'LR=1; [ 1 = 2 ] && LR=3; python train.py --lr $LR'",
        {"config": {"lr": 1}},
    ),
    "not decided": ("LR=1;[ -d x ] && LR=3;" + LR, {"config": {"lr": 1}}),
    "cd": ("cd x && python train.py", {"entry": "x/train.py"}),
    "resume": (
        '[ -f a.ckpt ] && R="--resume a.ckpt";srun python train.py $R',
        {"recovery": {"resume": {"when": "a.ckpt", "args": ["--resume", "${hpcrun:newest}"]}}},
    ),
    "environment": (
        "[ -f ~/x ] && source ~/x;python train.py",
        {"environment": {"setup": ["[ -f ~/x ] && source ~/x"]}},
    ),
    "env": ("env X=1 python train.py --lr 3;python post.py", {"entry": "train.py"}),
    "condition": (
        "if srun python train.py; then echo ok; else scontrol requeue 1; fi;python eval.py",
        {"entry": "train.py"},
    ),
    "conda's Python": (
        'CMD="/x/miniconda3/bin/python train.py";python prep.py;eval $CMD',
        {"entry": "train.py", "environment": {"python": "/x/miniconda3/bin/python"}},
    ),
    "octal": ("LR=$((010+1));" + LR, {"config": {"lr": 9}}),
    "ten": ("I=08;LR=$((10#$I+1));" + LR, {"config": {"lr": 9}}),
    "subshell": ("LR=1;(LR=2; cd x);" + LR, {"config": {"lr": 1}, "entry": "train.py"}),
    "back": ("cd data;cd -;python train.py", {"entry": "train.py"}),
    "submitted": ("cd data;cd $SLURM_SUBMIT_DIR;python train.py", {"entry": "train.py"}),
    "shift": ("go() {;shift;python train.py --lr $1;};go 7 8", {"config": {"lr": 8}}),
    "plus": ("LR=1;((LR++));((LR += 3));" + LR, {"config": {"lr": 5}}),
    "side effect": ("N=1;LR=$((++N));" + LR, {"config": {"lr": "???"}}),
    "read": ("LR=1;read LR <<< 0.9;" + LR, {"config": {"lr": "???"}}),
    "while read": (
        "while read lr wd; do;srun python train.py --lr $lr;done < params.txt",
        {"config": {"lr": "???"}},
    ),
    "environment elsewhere": (
        "cd /me;source env/bin/activate;source setup.sh;srun python train.py",
        {"environment": {"python": "/me/env/bin/python", "setup": ["source /me/setup.sh"]}},
    ),
    "dot": (
        ". v/bin/activate;. ~/x;python train.py",
        {"environment": {"python": "v/bin/python", "setup": [". ~/x"]}},
    ),
    "default": (": ${LR:=0.3};" + LR, {"config": {"lr": "${oc.env:LR,0.3}"}}),
    "module": (
        "command -v module && module load x;python train.py",
        {"environment": {"setup": ["command -v module && module load x"]}},
    ),
    "not": ("! srun python train.py || echo failed", {"entry": "train.py"}),
}


@pytest.mark.parametrize(("lines", "wanted"), FOLLOWED.values(), ids=FOLLOWED.keys())
def test_what_is_followed(lines: str, wanted: dict[str, Any]) -> None:
    found = spec_of(job(*re.split(r";(?! )", lines), options="-N 2"))
    assert {key: found.get(key) for key in wanted} == wanted


# Lines, the number of the one that is left, and words that tell it.
UNFOLLOWED: dict[str, tuple[str, int, str]] = {
    "undecided": ("[ -d x ] && LR=3\npython train.py --lr $LR", 2, "only a job can tell"),
    "asked": ("grep -q x y && LR=3\npython train.py --lr $LR", 2, "only a job can tell"),
    "failed": ("cp a b || LR=3\npython train.py --lr $LR", 2, "only a job can tell"),
    "long braces": ("for i in {1..1000000}; do\n:\ndone\npython train.py", 2, "more than 5,000"),
    "while": (
        "i=0\nwhile [ $i -lt 5 ]; do\nsrun python train.py --seed $i\n((i++))\ndone",
        3,
        "steps are not followed",
    ),
    "while read": ("while read a; do\nsrun python train.py $a\ndone < x", 2, "steps are not"),
    "read": ("read LR <<< 0.9\npython train.py --lr $LR", 2, "only a job can tell"),
    "continue": (
        "for i in 1 2; do\n[ $i = 1 ] && continue\nsrun python train.py --seed $i\ndone",
        3,
        "leave out steps",
    ),
    "long seq": ("for i in $(seq 1 10000); do\necho $i\ndone\npython train.py", 2, "seq gives"),
}


@pytest.mark.parametrize(("lines", "line", "words"), UNFOLLOWED.values(), ids=UNFOLLOWED.keys())
def test_what_cannot_be_followed_is_left(lines: str, line: int, words: str) -> None:
    found = what_of(job(*lines.split("\n")), line)
    assert any(one == LEFT and words in what for one, what in found), found


def test_the_input_and_output_of_the_program_are_lost() -> None:
    lost = made(job("srun python train.py < in.txt > result.json 2> x.err")).lost
    assert "> out.json" in made(job("{ srun python train.py; } > out.json")).lost[0]
    assert ["< in.txt" in lost[0], "> result.json" in lost[1], len(lost)] == [True, True, 2]


@pytest.mark.timeout(20)
def test_long_lines_and_large_arrays_end_soon() -> None:
    loop = ["for i in {1..900}; do", "X=$i", "done"]
    done = made(job(*loop, "python train.py --n $SLURM_ARRAY_TASK_ID", options="--array=0-1999"))
    assert any("too many to follow; write the sweep" in str(one) for one in done.of(LEFT))
    line = "a;" * 15_000
    assert made(f"#!/bin/bash\n#SBATCH{' ' * 100_000}x\n{line}\npython train.py\n").fates


def test_a_loop_that_tries_again_is_not_needed() -> None:
    text = job("until srun python train.py --lr 1; do", "sleep 1", "done")
    assert (NOT_NEEDED, "hpcrun starts a run again by itself (recovery)") in what_of(text, 2)


def test_what_cannot_be_followed_within_bash_is_lost() -> None:
    line = "srun bash -c 'LR=1; [ -d x ] && LR=3; python train.py --lr $LR'"
    assert any("LR=3: it stands beside" in one for one in made(job(line)).lost)
