"""Commands that take a program in SPEC's place."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import yaml

from hpcrun.cli.main import main
from hpcrun.state.layout import experiment
from tests.support.experiment import path_with, slurm_shim

PARSED = """\
import argparse
import time
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--partition")
print(parser.parse_args())
"""
# A line, what its spec has on stderr, and what is told beside that.
LINES = [
    ("plan -N 2 --gpus-per-node 8 -- torchrun train.py --lr 0.1", "framework: torchrun", ""),
    ("plan -N 2 torchrun train.py", "nodes: 2", ""),
    ("plan -n 4 -N 1 train.py", "ntasks_per_node: 4", ""),
    ("submit -n train.py", "entry: train.py", "1 run (1 new)"),
    ("submit --dry-run -n 4 -N 2 -q high train.py", "qos: high", ""),
    ("plan resources.time=5 train.py", "entry: train.py", ""),
    ("plan -o x.log train.py", "entry: train.py", "see `hpcrun logs`"),
    ("plan --sweep lr=1,2 train.py --lr 3", "config: {lr: 3}", ""),
    ("plan train.py --out ${now:%H} ${HOME} --x ${hpcrun:work}", "out: [", ""),
    ("plan train.py --lr 1,2", 'lr: "1,2"', "--sweep lr=1,2 sweeps over it"),
    ("plan -- parsed.py -t 10", "args: [-t", "-t behind the program is the program's"),
    ("plan parsed.py --partition gpu", "partition: gpu", ""),
    ("plan --sweep a.lr=1,2 hydrated.py b=3", "flags: key=value", "the program gets a.lr=…"),
    ("plan --sweep lr=1,2 hydrated.py", "config: {lr: null}", "the program gets lr=…"),
    ("plan hydrated.py name=x b=[1,2]", "args: [name=x", "name=x behind the program"),
    ("plan -- nosuchprogram --x 1", "entry: [nosuchprogram", "is not on PATH here"),
    ("plan -- python -m train a b", "args: [a, b]", ""),
]
REFUSED = [
    ("plan trian.py --lr 1", "there is no program 'trian.py'", "did you mean 'train.py'?"),
    ("plan -- torchrun trian.py", "there is no program 'trian.py'", "did you mean 'train.py'?"),
    ("plan -t foo train.py", "resources.time", "-t 1:00:00"),
    ("run train.py --lr 1 --sweep seed=1,2", "--sweep behind the program", "two dashes"),
    ("run parsed.py --lr 1 cluster=local", "has no such key", "hpcrun run cluster=local parsed.py"),
    ("run parsed.py time=5 --lr 1", "has no such key", "hpcrun run time=5 parsed.py --lr 1"),
    ("run parsed.py --lr 1 -t 10", "has no such option", "hpcrun run -t 10 parsed.py --lr 1"),
    ("run parsed.py --new --lr 1", "has no such option", "hpcrun run --new parsed.py --lr 1"),
    ("run hydrated.py -m a.lr=1,2 b=3", "-m: Hydra", "hpcrun run --sweep a.lr=1,2 hydrated.py b=3"),
    ("run hydrated.py +lr=1,2", "+lr=1,2: Hydra", "hpcrun run --sweep lr=1,2 hydrated.py"),
    ("run hydrated.py hydra/launcher=submitit b=3", "hydra/launcher", "run hydrated.py b=3"),
    ("plan --mem 32 GB train.py", "GB stands between", "--mem 32GB"),
    ("plan --mem 32 nowhere run train.py", "nowhere stands between", "-- nowhere run train.py"),
    ("plan --time=1h train.py", "accepted are minutes", "-t 1:00:00"),
    ("plan -N 2 --lr 0.1 train.py", "--lr is no option", "hpcrun plan … train.py --lr 0.1"),
    ("plan s.yaml train.py", "found 'train.py'", "entry=train.py"),
    ("run -m lr=1,2 train.py", "-m is sbatch's --distribution", "a sweep is --sweep lr=1,2"),
    ("run echo", "there is no spec 'echo'", "hpcrun run -- echo"),
    (
        "plan --sweep lr=1,2 train.py --arch x --lr 0.1 data",
        "--lr is followed by 0.1 data",
        "before the options: data --arch x --lr 0.1",
    ),
    (
        "plan --sweep pre=true,false train.py --pre data --n 1",
        "--pre is followed by data",
        "data --pre --n 1",
    ),
    ("submit exp.yml", "there is no spec 'exp.yml'", "there are s.yaml"),
    ("run --name foo train.py", "--name is no option", "type -J foo"),
    ("plan --lr 0.1 train.py", "--lr is no option", "options of train.py stand behind it"),
    ("plan --nnodes=2 train.py", "--nnodes is no option", "type resources.nodes=2"),
    ("submit --partitoin gpu train.py", "--partitoin is no option", "mean --partition?"),
    ("submit --wrap 'train.py'", "the program stands at the end", "-- 'train.py'"),
    ("submit -N 2 job.sbatch", "is a script for sbatch", "hpcrun init --from job.sbatch"),
    ("plan --save e.yaml s.yaml", "--save writes the spec", "train.py --lr 0.1"),
    ("plan --save s.yaml train.py", "s.yaml is there already", "another file"),
    ("plan --save /tmp/hpcrun-x.yaml train.py", "lies elsewhere", "--save hpcrun-x.yaml"),
    ("plan --save e.txt train.py", "found e.txt", "--save e.yaml"),
    ("plan --save e.yaml -t long train.py", "-t long", ""),
]


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "desk"
    directory.mkdir()
    (directory / "train.py").write_text("import sys\nprint('got', *sys.argv[1:])\n")
    (directory / "parsed.py").write_text(PARSED)
    (directory / "hydrated.py").write_text("import hydra\n@hydra.main()\ndef main(c): pass\n")
    (directory / "s.yaml").write_text("entry: train.py\n")
    (directory / "job.sbatch").write_text("#!/bin/bash\n#SBATCH -N 2\ntrue\n")
    slurm_shim(tmp_path / "shim")
    monkeypatch.setenv("PATH", path_with(tmp_path / "shim"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HPCRUN_ROOT", str(tmp_path / "root"))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.chdir(directory)
    return directory


def _type(line: str, capfd: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    told = capfd.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, told.out, told.err


@pytest.mark.parametrize(("line", "spec", "told"), LINES)
def test_a_program_is_taken_and_its_spec_is_shown(
    line: str, spec: str, told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    code, out, err = _type(line, capfd)
    assert code == 0, err
    assert "the spec, --save FILE writes it:" in err
    assert spec in err
    assert told in err
    assert "made of the command line" in out


@pytest.mark.parametrize(("line", "read", "hint"), REFUSED)
def test_a_line_that_means_nothing_is_refused(
    line: str, read: str, hint: str, desk: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, out, err = _type(line, capfd)
    assert (code, out) == (2, "")
    assert read in err
    assert hint in err
    assert not (desk / "e.yaml").exists()


def test_a_program_is_run_once_and_its_spec_is_kept(
    desk: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, out, err = _type("run train.py --lr 0.1", capfd)
    assert code == 0, err
    assert "got --lr 0.1" in out
    paths = experiment(desk.parent / "root", "train")
    kept = paths.submissions()[0].spec
    assert yaml.safe_load(kept.read_text())["config"] == {"lr": 0.1}
    code, out, err = _type("run train.py --lr 0.1", capfd)
    assert (code, out) == (0, "")
    assert "1 completed already" in err
    code, out, err = _type("run train.py --lr 0.2", capfd)
    assert "got --lr 0.2" in out
    _, out, _ = _type("list --json", capfd)
    assert json.loads(out)[0]["spec"] == str(paths.submissions()[-1].spec)
    code, _, err = _type("run s.yaml name=train", capfd)
    assert "came from another spec, made of a command line" in err


def test_save_writes_a_spec_that_is_the_same_experiment(
    desk: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert _type("run --save e.yaml train.py --lr 0.1", capfd)[0] == 0
    code, out, err = _type("run e.yaml", capfd)
    assert (code, out) == (0, ""), err
    assert "1 completed already" in err


def test_a_saved_spec_says_what_was_typed_beside_the_program(
    desk: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    line = '--sweep lr=1,2 --sweep x={"range":[3]} time=5 +config.y=[a] '
    line += "notify.events=[failed] train.py"
    code, _, err = _type(f"run {line} --lr 0.1", capfd)
    assert code == 0, err
    assert _type(f"plan --save e.yaml {line} --lr 0.1", capfd)[0] == 0
    saved = yaml.safe_load((desk / "e.yaml").read_text())
    assert saved["config"] == {"lr": 0.1, "x": None, "y": ["a"]}
    assert saved["resources"] == {"time": 5}
    assert saved["notify"] == {"events": ["failed"]}
    assert saved["sweep"] == {"grid": {"config.lr": [1, 2], "config.x": {"range": [3]}}}
    code, out, err = _type("run e.yaml", capfd)
    assert (code, out) == (0, ""), err
    assert "6 completed already" in err
    assert "another spec" not in err


def test_what_it_wrote_is_named_and_what_failed_is_told_to_the_quiet_too(
    desk: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (desk / "w.py").write_text("open('model.pt', 'w')\nimport sys\nsys.exit(len(sys.argv) - 1)\n")
    code, _, err = _type("run w.py", capfd)
    kept = experiment(desk.parent / "root", "w").run(0).work
    assert code == 0
    assert f"files that it wrote: {kept}" in err
    assert (kept / "model.pt").exists()
    code, out, err = _type("run -q w.py 3", capfd)
    assert (code, out) == (1, "")
    assert "w/1: failed" in err


@pytest.mark.parametrize(("answer", "code"), [("n", 130), ("y", 4)])
def test_ranks_that_nothing_joins_are_asked_about_on_a_terminal(
    answer: str, code: int, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = io.StringIO(f"{answer}\n")
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdin", terminal)
    ended, _, err = _type("submit -N 2 train.py", capfd)
    assert "nothing in train.py joins its 2 ranks" in err
    assert "Submit all the same?" in err
    assert ended == code, err


def test_ranks_that_nothing_joins_are_told_where_nobody_can_be_asked(
    capfd: pytest.CaptureFixture[str],
) -> None:
    for line in ("submit -N 2 train.py", "submit -y -N 2 train.py", "plan -N 2 train.py"):
        _, _, err = _type(line, capfd)
        assert "nothing in train.py joins its 2 ranks" in err
        assert "all the same" not in err
