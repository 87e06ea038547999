"""``hpcrun status --cost`` as it is typed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hpcrun.state import files, ledger, permissions
from tests.support.command import hpcrun
from tests.support.experiment import T0, Experiment, path_with, slurm_shim


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run 0 crashed and was restarted; run 1 waits; run 2's program shows no step."""
    monkeypatch.setenv("PATH", path_with(slurm_shim(tmp_path / "shim")))
    study = Experiment(tmp_path / "root")
    resources = {"nodes": 2, "gpus_per_node": 4, "ntasks_per_node": None}
    study.submit(range(3), spec={"resources": resources})
    for attempt, (began, first, ended) in enumerate([(60, 120, 3600), (3660, 3690, 7260)], 1):
        paths = study.start(0, attempt, job_id="100_0", when=T0 + began)
        steps = range(10, 101, 10) if attempt == 1 else range(60, 201, 10)
        restored = 0 if attempt == 1 else 50
        files.append(
            paths.session,
            {"event": "restored", "time": T0 + first, "step": restored, "seconds": 0.0},
        )
        for index, step in enumerate(steps):
            when = T0 + first + (index + 1) * (ended - first) / len(steps)
            files.append(paths.metrics, {"step": step, "time": when, "loss": 1.0})
        outcome = {"outcome": "completed"}
        if attempt == 1:
            outcome = {"outcome": "failed", "cause": {"kind": "rank_crash", "message": "rank 1"}}
        end = {"event": ledger.ENDED, "time": T0 + ended, "attempt": attempt, **outcome}
        files.append(study.run(0).ledger, end)
    study.start(2, job_id="100_2", when=T0 + 60)
    end = {"event": ledger.ENDED, "time": T0 + 3660, "attempt": 1, "outcome": "completed"}
    files.append(study.run(2).ledger, end)
    return tmp_path / "root"


def test_text(root: Path) -> None:
    done = hpcrun("status", "--cost", root=root)
    assert done.returncode == 0, done.stderr
    rows = done.stdout.splitlines()
    assert rows[0].split() == [
        *("RUN", "UNIT", "PAID", "USEFUL%", "USEFUL", "REPLAYED", "STARTUP", "RESTORE", "SAVE"),
        *("RUNNING", "IDLE", "QUEUED", "STOPPED"),
    ]
    # 8 GPUs from second 60 to 7,260: 16 hours. Steps 60 to 100 were done twice.
    replayed = 5 * (7260 - 3690) / 15 * 8 / 3600
    first = rows[1].split()
    assert first[:3] == ["study/0", "GPU-hours", "16.00"]
    assert first[5] == f"{replayed:.2f}"
    assert first[6] == f"{(60 + 30) * 8 / 3600:.2f}"
    assert first[11] == f"{60 * 8 / 3600:.2f}"
    assert rows[2].split() == ["study/1", "GPU-hours", *["-"] * 11]
    # It took a second to start its ranks. How much of the rest was useful nobody knows.
    last = rows[3].split()
    assert last[:4] == ["study/2", "GPU-hours", "8.00", "-"]
    assert last[9] == f"{3599 * 8 / 3600:.2f}"
    told = "\n".join(rows[4:])
    assert "study: 24.00 GPU-hours, 54 % of them useful, of 8.00 that is not known" in told
    assert f"{(60 + 30) * 8 / 3600 + replayed:.2f}" in told.partition("lost to ends")[2]
    assert "rank_crash" in told
    assert "do not tell" not in done.stderr


def test_json(root: Path) -> None:
    found = json.loads(hpcrun("status", "--cost", "--json", root=root).stdout)
    (total,) = found["experiments"]
    assert (total["paid"], found["runs"][0]["paid"]) == (24.0, 16.0)
    assert total["run"] is None
    parts = ("useful", "replayed", "startup", "restore", "save", "running", "idle")
    assert round(sum(total[part] for part in parts), 2) == 24.0
    assert found["runs"][2]["share"] is None
    assert list(total["causes"]) == ["rank_crash"]


def test_not_together_with_watch(root: Path) -> None:
    done = hpcrun("status", "--cost", "--watch", root=root)
    assert done.returncode == 2
    assert "--cost and --watch do not go together" in done.stderr


DAY = 86400.0


def spent(
    root: Path,
    name: str,
    began: float,
    hours: float,
    runs: int = 1,
    prices: dict[str, object] | None = None,
) -> None:
    """An experiment each of whose runs held four GPUs for so many hours, and logged steps."""
    study = Experiment(root, name)
    resources = {"nodes": 1, "gpus_per_node": 4, "ntasks_per_node": None}
    paths = study.submit(range(runs), spec={"resources": resources}, when=began)
    plan = json.loads(paths.plan.read_text())
    plan["cluster"] |= {"prices": prices} if prices else {}
    paths.plan.write_text(json.dumps(plan))
    for run in range(runs):
        attempt = study.start(run, job_id=f"100_{run}" if runs > 1 else "100", when=began)
        files.append(attempt.metrics, {"step": 1, "time": began + 60, "loss": 1.0})
        end = {"event": ledger.ENDED, "time": began + 3600 * hours, "attempt": 1}
        files.append(study.run(run).ledger, {**end, "outcome": "completed"})


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`a` was at work over the end of a month, and has a price, `b` in that month, and has none."""
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("PATH", path_with(slurm_shim(tmp_path / "shim")))
    turn = 1_701_388_800.0  # 2023-12-01
    prices = {"currency": "EUR", "gpu_hour": 2}
    spent(tmp_path / "root", "a", turn - 3600, 3, prices=prices)
    spent(tmp_path / "root", "b", turn + DAY, 5, runs=2)
    return tmp_path / "root"


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        (("--by", "experiment"), ["b 2 40.00 -", "a 1 12.00 24.00 EUR", "in all 3 52.00 -"]),
        (("--by", "month"), ["2023-11 1 4.00 8.00 EUR", "2023-12 3 48.00 -", "in all 3 52.00 -"]),
        (
            ("--by", "month", "a"),
            ["2023-11 1 4.00 8.00 EUR", "2023-12 1 8.00 16.00 EUR", "in all 1 12.00 24.00 EUR"],
        ),
        (("--by", "month", "--cost", "run=0"), None),
        (("--by", "user"), ["ME 3 52.00", "in all 3 52.00"]),
        (("--cost", "--by", "experiment", "--all", "gpus_per_node=4", "age>30d"), 3),
    ],
)
def test_totals(shared: Path, options: tuple[str, ...], rows: list[str] | int | None) -> None:
    """What has no price in part has none in all."""
    done = hpcrun("status", *options, root=shared, env={"TZ": "UTC"})
    if rows is None:
        assert done.returncode == 2
        return
    assert done.returncode == 0, done.stderr
    header, *found = done.stdout.splitlines()
    assert header.split()[:4] == [
        options[options.index("--by") + 1].upper(),
        *("RUNS", "UNIT", "PAID"),
    ]
    if isinstance(rows, int):
        assert len(found) == rows
        return
    me = permissions.user_name(os.geteuid())
    cells = [line.replace("GPU-hours", "").split() for line in found]
    wanted = [row.replace("ME", me).split() for row in rows]
    assert [one[: len(row)] for one, row in zip(cells, wanted, strict=True)] == wanted


def test_totals_of_several_experiments_end_with_all(shared: Path) -> None:
    done = hpcrun("status", "--cost", "*", root=shared)
    told = [line for line in done.stdout.splitlines() if line.startswith(("a:", "b:", "in all:"))]
    assert [line.partition(" GPU-hours")[0] for line in told] == [
        *("a: 12.00", "b: 40.00", "in all: 52.00"),
    ]
    assert "in all" not in hpcrun("status", "--cost", "b", root=shared).stdout


def test_totals_as_json(shared: Path) -> None:
    done = hpcrun("status", "--cost", "--all", "--json", root=shared, env={"TZ": "UTC"})
    found = json.loads(done.stdout)
    assert [(one["month"], one["paid"]) for one in found["months"]] == [
        *(("2023-11", 4.0), ("2023-12", 48.0)),
    ]
    assert [(one["user"], one["runs"]) for one in found["users"]] == [
        (permissions.user_name(os.geteuid()), 3)
    ]
    (total,) = found["total"]
    assert (total["paid"], total["money"], total["runs"]) == (52.0, None, 3)
    assert [one["experiment"] for one in found["experiments"]] == ["a", "b"]


def test_by_and_watch_do_not_go_together(shared: Path) -> None:
    done = hpcrun("status", "--by", "month", "--watch", root=shared)
    assert done.returncode == 2
    assert "--by and --watch do not go together" in done.stderr
