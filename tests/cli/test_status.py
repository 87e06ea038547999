"""``hpcrun status`` as it is typed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command import hpcrun
from tests.support.experiment import Experiment, path_with, slurm_shim

HEAVY = ("omegaconf", "jinja2", "torch", "deepspeed", "submitit", "rich", "yaml")


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Experiment:
    shim = slurm_shim(tmp_path / "shim")
    monkeypatch.setenv("PATH", path_with(shim))
    study = Experiment(tmp_path / "root")
    long = "x" * 300
    study.submit(
        range(3), swept={n: {"config.lr": 10.0**-n, "config.note": long} for n in range(3)}
    )
    study.start(0, job_id="100_0")
    study.metrics(0, 1, [100], loss=0.25)
    study.end(0)
    study.start(1, job_id="100_1")
    study.end(1, outcome="failed", kind="rank_crash", message="rank 1\nwas ended by SIGKILL")
    return study


def test_text(study: Experiment, tmp_path: Path) -> None:
    done = hpcrun("status", root=tmp_path / "root", env={"COLUMNS": "40"})
    assert done.returncode == 0
    header, *rows = done.stdout.splitlines()
    assert " ".join(header.split()) == (
        "RUN lr note STATE ATTEMPT CAUSE STEP PROGRESS loss TOK/S GPU-MEM ETA QUEUED JOB NODES "
        "UPDATED REASON"
    )
    assert len(rows) == 3
    assert "x" * 300 in rows[0]
    assert "100/100" in rows[0]
    assert rows[1].endswith("rank 1 was ended by SIGKILL")
    assert "\x1b" not in done.stdout
    assert "1 completed, 1 failed, 1 unknown" in done.stderr


def test_a_compilers_output_does_not_fill_the_table(study: Experiment, tmp_path: Path) -> None:
    """The end of a reason tells what follows, so that the middle is left out."""
    lines = "\n".join(f"cpu_adam.cpp:{line}: error: no such thing" for line in range(100))
    message = f"DeepSpeed's CPUAdamBuilder do not compile on this node:\n{lines}"
    study.start(2, job_id="100_2")
    study.end(2, outcome="failed", kind="launch", message=message)
    root = tmp_path / "root"
    done = hpcrun("status", "study/2", root=root)
    (row,) = done.stdout.splitlines()[1:]
    reason = row[row.index("DeepSpeed's CPUAdamBuilder do not compile") :]
    assert len(reason) < 300
    assert "characters more)" in reason
    assert "`hpcrun why study/2` has all of its reason" in done.stderr
    why = hpcrun("why", "study/2", root=root).stdout
    for line in (0, 50, 99):
        assert why.count(f"cpu_adam.cpp:{line}: error: no such thing") == 1
    (told,) = json.loads(hpcrun("status", "study/2", "--json", root=root).stdout)
    assert message in told["reason"]
    assert "has all of its reason" not in hpcrun("status", "study/1", root=root).stderr


def test_spare_nodes_are_told_apart(study: Experiment, tmp_path: Path) -> None:
    """They are a part of the job, and paid for."""
    study.start(2, job_id="100_2", nodes=("n1", "n2"), spares=("n3",))
    table = hpcrun("status", "study/2", root=tmp_path / "root", env={"COLUMNS": "400"}).stdout
    assert "n1,n2 (+n3 spare)" in table
    (told,) = json.loads(hpcrun("status", "study/2", "--json", root=tmp_path / "root").stdout)
    assert (told["nodes"], told["spare_nodes"]) == (["n1", "n2"], ["n3"])
    why = hpcrun("why", "study/2", root=tmp_path / "root").stdout
    assert "n3 stood by." in why
    (told,) = json.loads(hpcrun("status", "study/1", "--json", root=tmp_path / "root").stdout)
    assert told["spare_nodes"] == []


def test_json(study: Experiment, tmp_path: Path) -> None:
    done = hpcrun("status", "study/0-1", "--json", root=tmp_path / "root")
    first, second = json.loads(done.stdout)
    assert first["state"] == "completed"
    assert second["cause"]["kind"] == "rank_crash"
    assert second["metrics"] is None
    assert done.stderr == ""


def test_where(study: Experiment, tmp_path: Path) -> None:
    done = hpcrun("status", "--where", "lr=0.1", "--json", root=tmp_path / "root")
    assert [one["run"] for one in json.loads(done.stdout)] == [1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nosuch",), "nothing under"),
        (("study/9",), "study has no run 9; its runs are 0-2"),
        (("study/a-b",), "is not a run of study"),
        (("--where", "lr"), "not of the form key=value"),
        (("--nonsense",), "No such option"),
        (("77",), "was submitted as job 77"),
    ],
)
def test_wrong_input(
    study: Experiment, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = hpcrun("status", *arguments, root=tmp_path / "root")
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_unreachable_slurm_is_still_an_answer(study: Experiment, tmp_path: Path) -> None:
    slurm_shim(tmp_path / "shim", fail="Unable to contact slurm controller")
    done = hpcrun("status", root=tmp_path / "root")
    assert done.returncode == 0
    assert "as of" in done.stdout
    assert "warning: Slurm does not answer" in done.stderr


def test_watch_ends_with_the_runs(study: Experiment, tmp_path: Path) -> None:
    done = hpcrun("status", "study/0-1", "--watch", root=tmp_path / "root")
    assert done.returncode == 0


@pytest.mark.parametrize("command", ["status", "logs", "list", "results"])
def test_slow_imports_stay_out(study: Experiment, tmp_path: Path, command: str) -> None:
    code = (
        "import sys\nfrom hpcrun.cli.main import main\n"
        f"try:\n    main([{command!r}])\nexcept SystemExit as end:\n    assert not end.code\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "HPCRUN_ROOT": str(tmp_path / "root")},
        check=True,
    )
    assert done.stderr.splitlines()[-1] == "[]"
