"""WHERE as it is typed: the same words in every command that reads or acts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpcrun.cli.main import main
from tests.support.experiment import T0, Experiment, path_with, slurm_shim


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of ``study`` run 0 completed, 1 failed, and 2 and 3 wait; ``other`` is newer."""
    monkeypatch.setenv("PATH", path_with(slurm_shim(tmp_path / "shim")))
    monkeypatch.setenv("HPCRUN_ROOT", str(tmp_path / "root"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    study = Experiment(tmp_path / "root")
    lr = {n: {"config.lr": [1e-3, 3e-4][n % 2]} for n in range(4)}
    study.submit(range(4), swept=lr, job_id=None)
    for number in (0, 1):
        study.start(number)
        study.metrics(number, 1, range(1, 4), loss=number + 1.0)
        study.log(number, 1, 0, f"line of {number}\n")
    study.end(0)
    study.end(1, outcome="failed", kind="out_of_memory", message="CUDA out of memory")
    Experiment(tmp_path / "root", "other").submit((0,), job_id=None, when=T0 + 10)
    return tmp_path / "root"


Captured = pytest.CaptureFixture[str]


def _typed(capsys: Captured, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    told = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, told.out, told.err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["study", "state=failed"], ["study/1"]),
        (["*", "state=failed,completed"], ["study/0", "study/1"]),
        (["study", "--where", "state=failed"], ["study/1"]),
        (["s*", "lr>=1e-3", "and", "not", "state=completed"], ["study/2"]),
        (["study", "(metric.loss<1.5", "or", "attempts=0)", "lr=1e-3"], ["study/0", "study/2"]),
        (["study/0-2", "cause=out_of_memory"], ["study/1"]),
    ],
)
def test_every_reader_takes_it(
    root: Path, capsys: Captured, words: list[str], expected: list[str]
) -> None:
    code, out, _ = _typed(capsys, "status", "--json", *words)
    assert code == 0
    assert [f"{one['experiment']}/{one['run']}" for one in json.loads(out)] == expected
    assert [row["run"] for row in json.loads(_typed(capsys, "results", "--json", *words)[1])] == (
        expected
    )
    told = json.loads(_typed(capsys, "why", "--json", *words)[1])
    assert [f"{one['experiment']}/{one['run']}" for one in told] == expected
    code, out, _ = _typed(capsys, "cancel", "--dry-run", *words)
    assert (code, [line.partition(":")[0] for line in out.splitlines()]) == (0, expected)


def test_readers_of_one_run(root: Path, capsys: Captured) -> None:
    assert _typed(capsys, "show", "--path", "study", "state=failed")[1] == f"{root}/study/runs/1\n"
    assert "line of 1" in _typed(capsys, "logs", "study", "state=failed")[1]
    code, out, _ = _typed(capsys, "diff", "state=completed", "state=failed", "--root", str(root))
    assert code == 2  # of the newest experiment, which has no such run
    code, out, _ = _typed(capsys, "diff", "study/0-1", "study/2-3", "--where", "lr=1e-3")
    assert (code, "1 run with the same values" in out) == (0, True), out


def test_a_condition_alone_is_of_the_newest_experiment(root: Path, capsys: Captured) -> None:
    code, out, err = _typed(capsys, "status", "--json", "state=planned")
    assert (code, [one["experiment"] for one in json.loads(out)]) == (0, ["other"])
    assert err == "among the runs of other, your newest experiment; '*' is all of them\n"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["state=failed"], "hint: in all experiments: '*' state=failed"),
        (["study", "state=cancelled"], None),
        (["study", "lr=1e-3", "lr=3e-4"], "hint: for runs with either: 'lr=1e-3 or lr=3e-4'"),
        (["study", "lr=1e-3", "--where", "lr=3e-4"], "for runs with either: 'lr=1e-3 or lr=3e-4'"),
        (["study", "lr=5", "lr=3e-4"], None),
        (["study", "lr=1e-3", "state=cancelled"], None),
        (["state=planned", "state=failed"], "experiments: '*' 'state=planned state=failed'"),
    ],
)
def test_what_finds_nothing_is_told_with_what_would(
    root: Path, capsys: Captured, words: list[str], hint: str | None
) -> None:
    code, out, err = _typed(capsys, "results", *words)
    assert (code, out) == (2, "")
    assert hint in err if hint else "hint" not in err


def test_actions_name_what_a_pattern_means_before_they_ask(root: Path, capsys: Captured) -> None:
    code, out, err = _typed(capsys, "cancel", "s*", "state=planned")
    assert (code, out) == (2, "")
    assert "this would cancel 2 runs: study/2-3; there is no terminal to ask on" in err
    # One run that was not named is asked about too; one that was named is not.
    code, _, err = _typed(capsys, "cancel", "s*/3")
    assert (code, "cancel 1 run: study/3;" in err) == (2, True)
    assert _typed(capsys, "cancel", "study/3")[0] == 0
    assert _typed(capsys, "cancel", "s*/2", "--yes")[0] == 0


def test_an_experiment_that_is_called_as_a_condition(root: Path, capsys: Captured) -> None:
    Experiment(root, "lr=3").submit((0,), job_id=None, when=T0 - 10)
    code, _, err = _typed(capsys, "status", "lr=3")
    assert (code, "'lr=3' is a condition and an experiment" in err) == (2, True)
    assert "write lr=3/ for the experiment, --where lr=3 for the condition" in err
    for word in ("lr=3/", "lr=3/0", str(root / "lr=3")):
        code, out, _ = _typed(capsys, "status", "--json", word)
        assert (code, [one["experiment"] for one in json.loads(out)]) == (0, ["lr=3"])


def test_columns_show_what_differs(root: Path, capsys: Captured) -> None:
    spec = {"config": {"depth": 9, "lr": 0.5}, "flags": "none"}
    Experiment(root, "deep").submit((0,), job_id=None, spec=spec)
    code, out, err = _typed(capsys, "status", "study/0", "deep")
    header, first, second = (line.split() for line in out.splitlines())
    assert header[:2] == ["RUN", "lr"]
    assert (first[1], second[1]) == ("0.001", "0.5")
    assert "config.depth" in header
    assert "--columns all shows all" in err
    code, out, err = _typed(capsys, "status", "study/0", "deep", "--columns", "lr")
    assert (out.split()[:3], "--columns" in err) == (["RUN", "lr", "STATE"], False)
    code, out, err = _typed(capsys, "results", "study/0", "deep", "--columns", "run,config.depth")
    assert (code, out.split()[:2]) == (0, ["run", "config.depth"])


def test_only_takes_the_same_language(root: Path, tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "study.yaml").write_text(
        "entry: [sh, -c, 'true']\ncluster: local\nconfig: {x: 0}\n"
        "sweep: {grid: {config.x: [1, 2, 3, 4]}}\n"
    )

    def chosen(*words: str) -> list[int]:
        only = [part for word in words for part in ("--only", word)]
        code, out, err = _typed(capsys, "submit", "study.yaml", "--dry-run", "--json", *only)
        assert code == 0, err
        return [run["number"] - 4 for run in json.loads(out)["runs"]]

    # Runs 0-3 of `study` are of another spec, and so these are runs 4-7.
    assert chosen() == [0, 1, 2, 3]
    assert chosen("x>2") == [2, 3]
    assert chosen("x<2 or x=4") == [0, 3]
    assert chosen("not x=2", "study/4-5") == [0]
    assert chosen("*/[67]") == [2, 3]
    assert chosen("state=planned and x!=1") == [1, 2, 3]
    assert chosen("new", "x=3") == [2]


def test_a_sweep_that_has_an_earlier_runs_values_is_told(
    root: Path, tmp_path: Path, capsys: Captured
) -> None:
    spec = "entry: [sh, -c, 'true']\ncluster: local\nconfig: {x: 0, y: 0}\n"
    (tmp_path / "once.yaml").write_text(spec)
    Experiment(root, "once").submit((0,), job_id=None)
    assert _typed(capsys, "submit", "once.yaml", "--wait", "--new")[0] == 0
    code, _, err = _typed(capsys, "submit", "once.yaml", "--dry-run", "--sweep", "config.x=0,1")
    assert code == 0
    assert "once: new runs have the values of earlier ones, and train again: " in err
    assert "`hpcrun diff once/1 once/2` compares two" in err
    assert "run 2 those of run 1 (" in err
    # Other values, and the same sweep again, are no news.
    for words in (["--sweep", "config.x=2,3"], []):
        assert "train again" not in _typed(capsys, "submit", "once.yaml", "--dry-run", *words)[2]


def test_two_specs_of_one_name_are_told(root: Path, tmp_path: Path, capsys: Captured) -> None:
    places = [tmp_path / "a", tmp_path / "b"]
    for place in places:
        place.mkdir()
        (place / "twin.yaml").write_text(
            "entry: [sh, -c, 'true']\ncluster: local\nconfig: {x: 0}\n"
        )
    plan = Experiment(root, "twin").submit((0,), job_id=None).plan
    plan.write_text(plan.read_text().replace("/home/someone/twin.yaml", f"{places[0]}/twin.yaml"))
    again = _typed(capsys, "submit", "a/twin.yaml", "--dry-run")
    assert (again[0], "another spec" in again[2]) == (0, False)
    code, _, err = _typed(capsys, "submit", "b/twin.yaml", "--dry-run")
    assert code == 0
    assert f"twin: run 0 of it came from another spec, {places[0]}/twin.yaml" in err
    assert f"hpcrun submit {places[1]}/twin.yaml name=twin-2" in err
    # A file that was moved is the same spec.
    (places[0] / "twin.yaml").unlink()
    assert "another spec" not in _typed(capsys, "submit", "b/twin.yaml", "--dry-run")[2]
