"""The mistakes of users at the front door, each a whole command line.

To add one, add a row to ``TABLE``: the line that is typed and three things that its message has to
name: what was ``read``, what is ``accepted``, and what to ``type`` instead. The files and the two
experiments that a line may use are those of `desk`. ``spec`` holds top-level lines in place of
those of ``finetune.yaml``, for a line that names ``edited.yaml``. The exit code is 2; with
``exit=0`` the command did its work, and says on stderr how it took what was typed.

What is wrong inside a spec, field by field, is in tests/compile/spec/test_checks.py.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hpcrun.cli.main import main
from tests.support.experiment import Experiment, path_with, slurm_shim

SPEC = {
    "entry": "train.py",
    "cluster": "slurm",
    "config": "{lr: 1.0e-3, steps: 100, model: {layers: 2}, optimizer: adam, bf16: true, seed: 0}",
    "flags": '"key=value"',
    "deepspeed_config": "ds.json",
    "resources": '{nodes: 2, ntasks_per_node: 2, time: "12:00:00"}',
}
DEEPSPEED = {"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"betas": [0.9, 0.9]}}}


@dataclass(frozen=True)
class Mistake:
    """A command line, and what its message names."""

    id: str
    line: str
    read: str
    accepted: str
    type: str
    spec: dict[str, str] = field(default_factory=dict)
    exit: int = 2


TABLE = [
    # hpcrun and its commands
    Mistake("a command that is none", "hpcrun sumbit finetune.yaml",
            read="no command 'sumbit'", accepted="Commands: plan, submit", type="'submit'"),
    # the spec
    Mistake("a misspelt spec", "hpcrun plan finetun.yaml",
            read="there is no spec 'finetun.yaml'", accepted="experiments that ship",
            type="did you mean 'finetune.yaml'?"),
    Mistake("a directory for a spec", "hpcrun plan .",
            read=". is a directory", accepted="the path of a spec", type="finetune.yaml"),
    # key=value
    Mistake("no key of that name", "hpcrun plan finetune.yaml config.lrr=1e-4",
            read="there is no key config.lrr", accepted="config has lr, steps",
            type="did you mean 'lr'?"),
    Mistake("a word for a number", "hpcrun plan finetune.yaml resources.nodes=two",
            read="a string ('two')", accepted="a whole number", type="resources.nodes"),
    Mistake("a DeepSpeed key that is none", "hpcrun plan finetune.yaml deepspeed.zero_opt.stage=2",
            read="there is no key deepspeed.zero_opt", accepted="deepspeed",
            type="+deepspeed.zero_opt.stage=VALUE adds it"),
    # --sweep
    Mistake("a sweep of nothing", "hpcrun plan finetune.yaml --sweep config.lr",
            read="found 'config.lr'", accepted="accepted is key=a,b", type="--sweep"),
    Mistake("a sweep of no key", "hpcrun plan finetune.yaml --sweep config.lrr=1,2",
            read="there is no key config.lrr", accepted="config has lr, steps",
            type="did you mean 'lr'?"),
    Mistake("a value twice", "hpcrun plan finetune.yaml --sweep config.lr=0.1,1e-1",
            read="the value 0.1 is given twice", accepted="config.lr", type="remove one"),
    # the time
    Mistake("a time without quotes", "hpcrun plan edited.yaml",
            spec={"resources": "{time: 12:00:00}"},
            read="is the number 43200 in YAML", accepted="12:00:00", type='quote it: "12:00:00"'),
    # choosing runs
    Mistake("an experiment that is none", "hpcrun status stduy",
            read="'stduy'", accepted="study", type="study"),
]  # fmt: skip


def _write(path: Path, spec: dict[str, str]) -> None:
    path.write_text("".join(f"{key}: {text}\n" for key, text in spec.items()))


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with ``finetune.yaml``, its files and data, and a root with two experiments.

    Of ``study`` runs 0 and 1 (lr 0.1, 0.2) completed, and 2 (lr 0.3) failed in its second attempt;
    ``single`` has one run, which completed. No Slurm answers.
    """
    directory, root = tmp_path / "desk", tmp_path / "root"
    for made in (directory, tmp_path / "home"):
        made.mkdir()
    _write(directory / "finetune.yaml", SPEC)
    (directory / "train.py").write_text("import sys\nprint(sys.argv)\n")
    (directory / "ds.json").write_text(json.dumps(DEEPSPEED))
    study = Experiment(root)
    study.submit((0, 1, 2), swept={n: {"config.lr": (n + 1) / 10} for n in range(3)})
    for number in range(3):
        study.start(number)
        study.log(number, 1, 0, "trained\n")
        study.metrics(number, 1, range(1, 4), loss=lambda step: 1 / step)
        if number < 2:
            study.end(number)
    study.end(2, outcome="failed", kind="rank_crash", message="rank 0 exited with 1")
    study.start(2, attempt=2)
    study.end(2, attempt=2, outcome="failed", kind="rank_crash", message="rank 0 exited with 1")
    single = Experiment(root, "single")
    single.submit(job_id="200")
    single.start(job_id="200")
    single.end()
    monkeypatch.setenv("PATH", path_with(tmp_path / "shim"))
    slurm_shim(tmp_path / "shim")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home" / "cache"))
    monkeypatch.setenv("HPCRUN_ROOT", str(root))
    for name in ("HPCRUN_CLUSTERS", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(directory)
    return directory


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in TABLE])
def test_a_mistake_is_told_with_what_to_type(
    case: Mistake, desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if case.spec:
        _write(desk / "edited.yaml", {**SPEC, **case.spec})
    program, *arguments = shlex.split(case.line)
    assert program == "hpcrun"

    with pytest.raises(SystemExit) as ended:
        main(arguments)

    told = capsys.readouterr()
    assert ended.value.code == case.exit, told.err
    for named in (case.read, case.accepted, case.type):
        assert named in told.err, told.err
    assert "Traceback" not in told.err
    assert bool(told.out.strip()) == (case.exit == 0)


def test_no_two_rows_are_one_mistake() -> None:
    lines = [(case.line, *case.spec.items()) for case in TABLE]
    assert len({case.id for case in TABLE}) == len(TABLE) == len(set(lines))


def test_without_a_mistake_nothing_is_said(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["plan", "finetune.yaml", "--sweep", "config.lr=0.1,0.2"])
    told = capsys.readouterr()
    assert (ended.value.code, told.err) == (0, "")
    assert "2 runs" in told.out
