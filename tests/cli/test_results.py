"""``hpcrun results`` as it is typed."""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
from pathlib import Path

import pytest

from hpcrun.observe import results
from hpcrun.observe.read.selection import Finder
from hpcrun.observe.status.status import statuses
from hpcrun.state import ledger
from tests.support.command import hpcrun
from tests.support.experiment import Experiment, path_with, slurm_shim

RATES = (1e-3, 3e-4)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two learning rates by three seeds; run 6 never began."""
    slurm_shim(tmp_path / "shim")
    monkeypatch.setenv("PATH", path_with(tmp_path / "shim"))
    study = Experiment(tmp_path / "root")
    swept = {n: {"config.lr": RATES[n // 4], "config.seed": n % 3} for n in range(1, 7)}
    study.submit(range(1, 7), swept=swept)
    for run in range(1, 6):
        study.start(run, job_id=f"100_{run}")
        dip = {1: 9.0, 2: 0.5 * run, 3: 1.0 * run}
        study.metrics(run, 1, [1, 2, 3], loss=lambda step, dip=dip: dip[step], accuracy=run / 10)
        study.end(run)
    return tmp_path / "root"


def test_table(root: Path) -> None:
    done = hpcrun("results", "study/1-6", root=root)
    header, first, *_, last = done.stdout.splitlines()
    assert header.split() == [
        *("run", "config.lr", "config.seed", "state", "step", "loss.first", "loss", "loss.best"),
        *("loss.best_step", "accuracy"),
    ]
    assert first.split() == "study/1 0.001 1 completed 3 9 1 0.5 2 0.1".split()  # noqa: SIM905
    assert last.split()[3:] == ["unknown", *["-"] * 6]


def test_json_and_csv_agree(root: Path) -> None:
    data = json.loads(hpcrun("results", "--json", root=root).stdout)
    assert json.loads(hpcrun("results", "--format", "json", root=root).stdout) == data
    rows = list(csv.DictReader(io.StringIO(hpcrun("results", "--format", "csv", root=root).stdout)))
    assert len(rows) == len(data) == 6
    for row, one in zip(rows, data, strict=True):
        assert {key: row[key] for key in ("run", "state")} == {k: one[k] for k in ("run", "state")}
        assert row["loss"] == ("" if one["loss"] is None else repr(one["loss"]))
    assert data[5]["loss"] is None


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        ("-loss", [5, 4, 3, 2, 1, 6]),
        ("loss.best", [1, 2, 3, 4, 5, 6]),
        ("seed", [3, 6, 1, 4, 2, 5]),
    ],
)
def test_sort(root: Path, sort: str, expected: list[int]) -> None:
    data = json.loads(hpcrun("results", "--json", "--sort", sort, root=root).stdout)
    assert [int(one["run"].partition("/")[2]) for one in data] == expected


def test_group_by(root: Path) -> None:
    first, second = json.loads(
        hpcrun("results", "--json", "--group-by", "lr", "study/1-5", root=root).stdout
    )
    assert (first["config.lr"], first["runs"], second["runs"]) == (1e-3, 3, 2)
    values = [1.0, 2.0, 3.0]
    assert first["loss"] == statistics.mean(values)
    assert math.isclose(first["loss.se"], statistics.stdev(values) / math.sqrt(3))


def test_group_of_one_has_no_error(root: Path) -> None:
    data = json.loads(
        hpcrun("results", "--json", "--group-by", "lr,seed", "study/1", root=root).stdout
    )
    assert (data[0]["loss"], data[0]["loss.se"]) == (1.0, None)


def test_groups_say_when_runs_are_not_complete(root: Path) -> None:
    done = hpcrun("results", "--group-by", "lr", root=root)
    assert "1 of 6 runs is not completed" in done.stderr


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        (["loss<2.5"], [1, 2]),
        (["loss>=2", "loss <= 4"], [2, 3, 4]),
        (["state!=completed"], [6]),
        (["loss=null"], [6]),
        (["lr=3e-4", "state==completed"], [4, 5]),
        (["loss.best>1e0", "seed=2"], [5]),
        # As --where has it.
        (["loss<2.5 or metric.loss>=4"], [1, 2, 4, 5]),
        (["lr=1e-3,3e-4 state=compl*"], [1, 2, 3, 4, 5]),
        (["loss.best<2.5, best_step=2"], [1, 2, 3, 4]),
    ],
)
def test_filter(root: Path, conditions: list[str], expected: list[int]) -> None:
    options = [word for condition in conditions for word in ("--filter", condition)]
    data = json.loads(hpcrun("results", "--json", *options, root=root).stdout)
    assert [int(one["run"].partition("/")[2]) for one in data] == expected


def test_a_filter_comes_before_the_means(root: Path) -> None:
    done = hpcrun("results", "--json", "--group-by", "lr", "--filter", "state=completed", root=root)
    assert [one["runs"] for one in json.loads(done.stdout)] == [3, 2]
    assert done.stderr == ""


def test_columns(root: Path) -> None:
    done = hpcrun("results", "--columns", "loss,best_step,run", "--sort", "-step", root=root)
    assert done.stdout.splitlines()[0].split() == ["loss", "loss.best_step", "run"]
    grouped = hpcrun(
        "results", "--format=latex", "--group-by=lr", "--columns=lr,loss", "study/1-5", root=root
    ).stdout
    assert grouped.splitlines()[2:5] == [
        "config.lr & loss \\\\",
        "\\midrule",
        "0.001 & $2 \\pm 0.57735$ \\\\",
    ]


def test_a_further_fact_is_a_column_and_no_metric(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(results._FACTS, "why", lambda status: status.last_cause)
    selected = Finder(root).resolve(["study/1-5"])
    known, keys = statuses(selected), ["config.lr", "config.seed"]
    found = results.collect(selected, known)
    assert found.columns[3:6] == ("state", "step", "why")
    assert found.to_data()[0]["why"] is None
    grouped = results.group(found, ["lr"], keys)
    assert {"step", "step.se"} <= {*grouped.columns}
    assert "why" not in grouped.columns


def test_over_repeats(tmp_path: Path) -> None:
    for name, offset in (("a", 0), ("b", 100)):
        study = Experiment(tmp_path, name)
        swept = {n: {"config.lr": RATES[n // 2], "config.seed": n % 2} for n in range(4)}
        study.submit(range(4), swept=swept, job_id=None, repeats=("config.seed",))
        for run in range(4):
            study.start(run)
            study.metrics(run, 1, [1], loss=offset + run)
            study.end(run)
    data = json.loads(hpcrun("results", "--json", "--over-repeats", "a", root=tmp_path).stdout)
    assert [(one["config.lr"], one["runs"], one["loss"]) for one in data] == [
        (1e-3, 2, 0.5),
        (3e-4, 2, 2.5),
    ]
    data = json.loads(hpcrun("results", "--json", "--over-repeats", "a", "b", root=tmp_path).stdout)
    assert [(one["experiment"], one["loss"]) for one in data] == [
        ("a", 0.5),
        ("a", 2.5),
        ("b", 100.5),
        ("b", 102.5),
    ]
    done = hpcrun("results", "--over-repeats", "--group-by=lr", "a", root=tmp_path)
    assert "--over-repeats and --group-by exclude each other" in done.stderr


def test_latex(root: Path) -> None:
    text = hpcrun("results", "--format", "latex", root=root).stdout
    assert text.startswith("\\begin{tabular}{lrrlrrrrrr}\n\\toprule\nrun & config.lr")
    assert "loss.best\\_step" in text
    assert text.endswith("\\bottomrule\n\\end{tabular}\n")
    grouped = hpcrun("results", "--format", "latex", "--group-by", "lr", root=root).stdout
    assert "$2 \\pm 0.57735$" in grouped


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--sort", "nope"), "there is no column 'nope'"),
        (("--group-by", "nope"), "there is no swept key 'nope'"),
        (("--group-by", "loss"), "there is no swept key 'loss'"),
        (("--group-by", ","), "--group-by ',' names no key"),
        (("--columns", "nope"), "there is no column 'nope'\n\nhint: there are run, config.lr"),
        (("--over-repeats",), "study was swept without `sweep.repeat`"),
        (("--filter", "loss"), "--filter 'loss' is not of the form key=value"),
        (("--filter", "nope=1"), "key ends in 'nope'"),
        (("--filter", "loss<low"), "found 'low' after <; accepted is a number"),
        (("--filter", "loss<0.5"), "no run has metric.loss<0.5; its values are 1.0, 2.0"),
        (("--filter", "state=gone"), "there is no state 'gone'"),
        (("--format", "xml"), "--format"),
    ],
)
def test_wrong_input(root: Path, arguments: tuple[str, ...], message: str) -> None:
    done = hpcrun("results", *arguments, root=root)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stdout == ""


def test_no_metrics_at_all(tmp_path: Path) -> None:
    study = Experiment(tmp_path)
    study.submit((1,), job_id=None)
    done = hpcrun("results", root=tmp_path)
    assert done.stdout.splitlines()[0].split() == ["run", "state", "step"]


def test_a_metric_with_a_slash_and_max(tmp_path: Path) -> None:
    study = Experiment(tmp_path)
    study.submit((1,), spec={"objective": {"metric": "eval/accuracy", "mode": "max"}})
    study.start(1)
    values = {1: 0.5, 2: 0.9, 3: float("nan")}
    study.metrics(1, 1, values, **{"eval/accuracy": lambda step: values[step]})
    study.end(1)
    data = json.loads(hpcrun("results", "--json", "--sort", "accuracy", root=tmp_path).stdout)[0]
    assert data["eval/accuracy.best"] == 0.9
    assert data["eval/accuracy.best_step"] == 2
    assert data["eval/accuracy"] is None


def test_metrics_that_are_printed_and_not_read_are_told(tmp_path: Path) -> None:
    study = Experiment(tmp_path)
    study.submit((1,))
    study.start(1)
    study.log(1, 1, 0, "".join(f"step {n}/3 loss 0.{n}\n" for n in (1, 2, 3)))
    study.end(1)
    for sort in ((), ("--sort", "loss")):
        done = hpcrun("results", *sort, root=tmp_path)
        assert "study/1 prints steps that hpcrun does not read; with this line" in done.stderr
        assert r"progress: {pattern: 'step +(?P<step>\d+)/(?P<total>\d+)" in done.stderr
    assert (done.returncode, "there is no column 'loss'" in done.stderr) == (2, True)


def test_runs_that_had_smaller_micro_batches_are_named(root: Path) -> None:
    batch = {"micro_batch": 2, "accumulation": 8, "planned_micro_batch": 4}
    study = Experiment(root)
    for run in (2, 4):
        ledger.write(study.run(run), ledger.STARTED, 2, job_id=f"100_{run}", **batch)
        study.end(run, 2)
    said = hpcrun("results", "study", root=root).stderr
    told = "micro batches of 2 (8 accumulated) in place of 4: memory ran out"
    assert f"study/2, study/4: {told}" in said
