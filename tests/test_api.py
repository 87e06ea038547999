"""hpcrun's calls in a program of somebody's: a spec is submitted, waited for and read."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hpcrun
from hpcrun.errors import SpecError, UsageError
from hpcrun.state import layout
from hpcrun.submission.local import processes

SOURCE = Path(hpcrun.__file__).parent.parent
FIT = """\
import json, os, sys, time
lr = float(sys.argv[1].partition("=")[2])
print("fits", lr, flush=True)
with open(os.environ["HPCRUN_METRICS_FILE"], "a") as file:
    print(json.dumps({"step": 1, "loss": 2 * lr}), file=file)
if lr == 3:
    sys.exit("three is too much")
while lr == 9:
    time.sleep(0.1)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HPCRUN_ROOT", str(tmp_path / "root"))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    (tmp_path / "fit.py").write_text(FIT)
    spec = {
        **{"name": "fit", "entry": "fit.py", "config": {"lr": 1}, "cluster": "local"},
        **{"resources": {"ntasks_per_node": 1}, "objective": {"metric": "loss", "mode": "min"}},
        **{"environment": {"python": sys.executable}, "recovery": {"max_failures": 1}},
    }
    (tmp_path / "fit.yaml").write_text(json.dumps(spec))
    yield tmp_path
    for submission in layout.experiment(tmp_path / "root", "fit").submissions():
        processes.kill_all(submission.directory)


def test_a_program_submits_waits_and_reads(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    one = hpcrun.submit("fit.yaml", {"config.lr": 1.5}, say=said.append)
    assert (one.name, one.directory) == ("fit", place / "root" / "fit")
    assert [run.state for run in one.wait()] == ["completed"]
    two = hpcrun.submit(place / "fit.yaml", sweeps={"config.lr": [1.5, 2.5, 3]}, say=said.append)
    assert said == [
        "fit: 1 run (1 new); on this machine, 1 at a time",
        "fit: new runs have the values of earlier ones, and train again: run 1 those of run 0 "
        "(swept otherwise, they are others); `hpcrun diff fit/0 fit/1` compares two, and "
        "sweep.exclude leaves points out",
        "fit: 3 runs (3 new); on this machine, 1 at a time",
    ]
    assert [run.state for run in two.wait(timeout=60)] == [*["completed"] * 3, "failed"]
    rows = two.results("state=completed")
    assert [(row["config.lr"], row["loss.best"]) for row in rows] == [(1.5, 3), (1.5, 3), (2.5, 5)]
    again = hpcrun.experiment("fit")
    assert [run.run for run in again.runs("state=failed")] == [3]
    lines = [*again.logs(rank=0)]
    assert [(line.run, line.rank, line.line) for line in lines if "fits" in line.line] == [
        (0, 0, "fits 1.5"),
        (1, 0, "fits 1.5"),
        (2, 0, "fits 2.5"),
        (3, 0, "fits 3.0"),
    ]
    assert [line.line for line in again.logs(3, tail=1, grep="much")] == ["three is too much"]
    assert capfd.readouterr().out == ""


def test_a_wait_that_is_too_short_and_a_run_that_goes_on(place: Path) -> None:
    one = hpcrun.submit("fit.yaml", ["lr=9"])
    with pytest.raises(TimeoutError, match=r"after 2 s, fit/0 (running|waiting)"):
        one.wait(timeout=2)
    assert [run.over for run in one.runs()] == [False]


def test_what_is_wrong_is_told(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpecError, match=r"did you mean .lr.\?"):
        hpcrun.submit("fit.yaml", {"config.lrr": 1})
    with pytest.raises(UsageError, match="wanted are values by key"):
        hpcrun.submit("fit.yaml", "lr=1")
    with pytest.raises(UsageError, match="'lr' cannot be written into a spec"):
        hpcrun.submit("fit.yaml", {"lr": {1, 2}})
    with pytest.raises(UsageError, match="fit"):
        hpcrun.experiment("fit")
    assert not (place / "root").exists()
    one = hpcrun.submit("fit.yaml")
    with pytest.raises(UsageError, match="no run 7: it has 0 to 0"):
        one.wait([7])
    with pytest.raises(UsageError, match="stream='ranks' is none of worker"):
        one.logs(stream="ranks")
    with pytest.raises(UsageError, match="is not a regular expression"):
        one.logs(grep="(")
    with pytest.raises(UsageError, match="state=failed"):
        one.runs("state=failed")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match="has no pandas"):
        one.frame()
    one.wait()


def test_hours_that_the_profile_asks_about_want_a_yes(place: Path) -> None:
    (place / "configs" / "clusters").mkdir(parents=True)
    (place / "configs" / "clusters" / "local.yaml").write_text(
        "executor: local\nconfirm_above: {cpu_hours: 0.5}\n"
    )
    hours = {"resources.time": "02:00:00", "resources.cpus_per_task": 1}
    with pytest.raises(UsageError, match=r"CPU-hours.*\n\nhint: say yes=True"):
        hpcrun.submit("fit.yaml", hours)
    assert [run.over for run in hpcrun.submit("fit.yaml", hours, yes=True).wait()] == [True]


@pytest.mark.skipif("HPCRUN_THOROUGH" not in os.environ, reason="20 s; `make lint` checks it, too")
def test_the_calls_are_typed_for_programs_elsewhere(tmp_path: Path) -> None:
    assert (SOURCE / "hpcrun" / "py.typed").is_file()
    shutil.copy(Path(__file__).parent / "support" / "typed_search.py", tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "typed_search.py"],
        **{"cwd": tmp_path, "text": True, "capture_output": True, "check": False},
        env={"MYPYPATH": str(SOURCE), "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_calls_import_no_torch() -> None:
    program = (
        "import sys, hpcrun; hpcrun.submit, hpcrun.experiment; "
        "print([name for name in ('torch', 'deepspeed', 'submitit') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=SOURCE, text=True, capture_output=True, check=True
    )
    assert done.stdout == "[]\n"
