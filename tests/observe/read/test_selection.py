"""WHERE and ``--where``: what matches, and what is said when nothing does."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcrun.errors import UsageError
from hpcrun.observe.read.filter import narrow
from hpcrun.observe.read.selection import Finder
from hpcrun.state import history
from tests.support import users
from tests.support.experiment import T0, Experiment


@pytest.fixture
def finder(tmp_path: Path) -> Finder:
    study = Experiment(tmp_path / "root", "study")
    grid = {
        number: {"config.lr": [1e-3, 3e-4][number % 2], "config.model.name": f"m{number // 2}"}
        for number in range(4)
    }
    study.submit(range(4), swept=grid, job_id="100", when=T0)
    study.submit((4,), job_id="101", when=T0 + 50)
    study.start(1, job_id="100_1")
    Experiment(tmp_path / "root", "other").submit((0,), job_id="local:7", when=T0 + 10)
    return Finder(tmp_path / "root")


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (["study"], [0, 1, 2, 3, 4]),
        (["study/3"], [3]),
        (["study/1-2"], [1, 2]),
        (["study/0,2-3"], [0, 2, 3]),
        (["study/2-99"], [2, 3, 4]),
        (["100"], [0, 1, 2, 3]),
        (["100_2"], [2]),
        (["101"], [4]),
        (["study/3", "100_2", "study/2"], [3, 2]),
    ],
)
def test_forms(finder: Finder, where: list[str], expected: list[int]) -> None:
    assert [one.run.number for one in finder.resolve(where)] == expected


def test_directories_under_any_root(finder: Finder, tmp_path: Path) -> None:
    elsewhere = Finder(tmp_path / "nowhere")
    study = finder.root / "study"
    assert len(elsewhere.resolve([str(study)])) == 5
    assert [one.name for one in elsewhere.resolve([str(study / "runs/1")])] == ["study/1"]
    inside = study / "runs/1/attempts/1"
    assert [one.name for one in elsewhere.resolve([str(inside)])] == ["study/1"]


def test_relative_directory(finder: Finder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(finder.root / "study" / "runs")
    assert [one.name for one in Finder(Path("/nowhere")).resolve(["./1"])] == ["study/1"]


def test_none_means_my_newest(finder: Finder) -> None:
    assert {one.experiment.name for one in finder.resolve([])} == {"study"}
    with pytest.raises(UsageError, match="wants to be told"):
        finder.resolve([], default_newest=False)


@users.needs_root
def test_a_strangers_experiment_is_not_mine_whatever_it_says(finder: Finder) -> None:
    theirs = Experiment(finder.root, "theirs")
    theirs.submit(when=T0 + 1000)
    users.STRANGER.owns(theirs.paths.directory)
    assert {one.experiment.name for one in finder.resolve([])} == {"study"}


def test_job_ids_come_from_the_journal(finder: Finder) -> None:
    found = {one.run.number: one.job_id for one in finder.resolve(["study"])}
    assert found == {0: "100_0", 1: "100_1", 2: "100_2", 3: "100_3", 4: "101"}
    assert finder.resolve(["other"])[0].job_id == "local:7"


def test_newer_plans_win_and_older_ones_supply_the_rest(finder: Finder) -> None:
    Experiment(finder.root, "study").submit((1,), job_id="300", spec={"marker": "new"})
    found = {one.run.number: one for one in Finder(finder.root).resolve(["study"])}
    assert sorted(found) == [0, 1, 2, 3, 4]
    assert found[1].run.spec["marker"] == "new"
    assert found[1].job_id == "300"
    assert found[0].job_id == "100_0"
    assert [one.run.number for one in Finder(finder.root).resolve(["100_1"])] == [1]


def test_a_refused_resubmission_does_not_hide_the_job_before_it(finder: Finder) -> None:
    from hpcrun.state import files

    paths = Experiment(finder.root, "study").submit((1,), job_id=None)
    files.append(paths.journal, {"event": "refused", "time": T0, "runs": [1], "message": "no"})
    assert Finder(finder.root).resolve(["study/1"])[0].job_id == "100_1"


@pytest.mark.parametrize(
    ("where", "message", "hint"),
    [
        ("stdy", "nothing under", "did you mean study"),
        ("study/9", "study has no run 9; its runs are 0-4", None),
        ("study/7-9", "study has no run 7-9", None),
        ("study/3-1", "the range 3-1 runs backwards", None),
        # A user that there is not, digits that are no run's, more of them than any number has.
        ("~nobody-of-this-name", "nothing under", None),
        ("study/²", "is not a run of study", None),
        ("study/٣", "is not a run of study", None),
        ("9" * 5000, "nothing under", None),
        ("study/x", "is not a run of study; its runs are 0-4", "study/0-3"),
        ("study/1-", "is not a run of study", None),
        ("999", "no run under .* was submitted as job 999", "hpcrun list"),
        ("100_77", "as job 100_77", None),
        ("zzzzzz/4", "nothing under", "experiments there: other, study"),
        ("../../nowhere", "nothing under", None),
        ("a b;c", "nothing under", None),
        ("", "nothing under|neither an experiment", None),
    ],
)
def test_errors(finder: Finder, where: str, message: str, hint: str | None) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        finder.resolve([where])
    assert caught.value.exit_code == 2
    if hint:
        assert hint in (caught.value.hint or "")


def test_a_directory_that_is_no_experiment(finder: Finder, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    with pytest.raises(UsageError, match="neither an experiment nor a run"):
        finder.resolve([str(tmp_path / "plain")])
    with pytest.raises(UsageError) as caught:
        finder.resolve([str(finder.root)])
    assert "--root" in (caught.value.hint or "")


def test_empty_roots(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="you have no experiment"):
        Finder(tmp_path).resolve([])
    for where, said in (([], "you have no experiment"), (["study"], "nothing"), (["7"], "no run")):
        with pytest.raises(UsageError, match=rf"{said} under .*missing \(no such directory\)"):
            Finder(tmp_path / "missing").resolve(where)


@pytest.mark.parametrize(
    "content", [b"{", b"[]", b'{"format": 99}', b'{"format": 2}', b"\xff\xfe", b"null", b""]
)
def test_corrupt_plans(finder: Finder, content: bytes) -> None:
    plan = finder.root / "other" / "submissions" / "1" / "plan.json"
    plan.write_bytes(content)
    with pytest.raises(UsageError, match=r"plan\.json"):
        finder.resolve(["other"])
    newest = Experiment(finder.root, "study").submit((1,))
    newest.plan.write_bytes(content)
    said: list[str] = []
    assert len(Finder(finder.root, said.append).resolve(["study"])) == 5
    assert len(said) == 1
    assert str(newest.plan) in said[0]


def test_submission_without_a_plan_yet(finder: Finder) -> None:
    (finder.root / "fresh" / "submissions" / "1").mkdir(parents=True)
    with pytest.raises(UsageError, match="holds no plan yet"):
        finder.resolve(["fresh"])
    assert history.last_submission(Experiment(finder.root, "fresh").paths)[0] > 0


def test_torn_journal(finder: Finder) -> None:
    journal = finder.root / "study" / "submissions" / "2" / "journal.jsonl"
    with open(journal, "ab") as stream:
        stream.write(b'{"event": "submitted"}\n[1]\n{"event": "ended"}\n{"ev')
    assert finder.resolve(["study/4"])[0].job_id == "101"


def test_a_journal_with_a_record_that_no_submit_wrote_hides_no_other_run(finder: Finder) -> None:
    said: list[str] = []
    finder.warn = said.append
    journal = finder.root / "study" / "submissions" / "2" / "journal.jsonl"
    with open(journal, "ab") as stream:
        stream.write(b'{"event": "submitted", "runs": "x"}\n')
    before, after = finder.resolve(["study/0", "study/4"])
    assert before.job_id is not None
    assert after.submission is not None
    assert after.submission.event == "broken"
    assert said == [f"passed over: {journal}:3: runs is 'x', not a list of whole numbers from 0"]


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        (["lr=3e-4"], [1, 3]),
        (["lr=0.0003"], [1, 3]),
        (["config.lr=.0003"], [1, 3]),
        (["model.name=m1"], [2, 3]),
        (["lr=1e-3", "model.name=m0"], [0]),
        (["depth=2.0"], [0, 1, 2, 3]),
        (["seed=0"], [0, 1, 2, 3]),
    ],
)
def test_where(finder: Finder, conditions: list[str], expected: list[int]) -> None:
    found = narrow(finder.resolve(["study/0-3"]), conditions)
    assert [one.run.number for one in found] == expected


@pytest.mark.parametrize(
    ("condition", "message", "hint"),
    [
        ("lr", "not of the form key=value", None),
        ("=3", "not of the form key=value", None),
        ("name=x", "ambiguous|config.model.name", None),
        ("batch=3", "no swept or configured key ends in 'batch'", None),
        ("depht=2", "ends in 'depht'", "did you mean config.model.depth"),
        ("lr=7", r"no run has config\.lr=7; its values are 0\.0003, 0\.001", None),
        ("lr=abc", r"no run has config\.lr=abc", None),
    ],
)
def test_where_errors(finder: Finder, condition: str, message: str, hint: str | None) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        narrow(finder.resolve(["study/0-3"]), [condition])
    if hint:
        assert hint in (caught.value.hint or "")


def test_ambiguous_configured_key_lists_candidates(finder: Finder) -> None:
    spec = {"config": {"lr": 1}, "deepspeed": {"optimizer": {"params": {"lr": 2}}}}
    Experiment(finder.root, "differing").submit((0,), spec=spec)
    with pytest.raises(UsageError, match=r"config\.lr, deepspeed\.optimizer\.params\.lr"):
        narrow(finder.resolve(["differing"]), ["lr=1"])
    # Which of them is meant makes no difference where they are equal.
    other = finder.resolve(["other"])
    assert narrow(other, ["lr=0.001"]) == other


def test_an_experiment_without_a_plan_costs_its_own_rows_alone(finder: Finder) -> None:
    (finder.root / "empty" / "submissions" / "1").mkdir(parents=True)
    said: list[str] = []
    finder.warn = said.append
    assert [one.name for one in finder.resolve(["empty", "study/3"])] == ["study/3"]
    assert len(said) == 1
    assert "empty holds no plan yet" in said[0]
    with pytest.raises(UsageError, match="empty holds no plan yet"):
        finder.resolve(["empty"])


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (["*"], ["other/0", *(f"study/{n}" for n in range(5))]),
        (["s*"], [f"study/{n}" for n in range(5)]),
        (["[so]t*/3"], ["study/3"]),
        (["*/0"], ["other/0", "study/0"]),
        (["s*/1-2,4"], ["study/1", "study/2", "study/4"]),
        (["study/[01]"], ["study/0", "study/1"]),
        (["study/*"], [f"study/{n}" for n in range(5)]),
        (["100_[1,3]"], ["study/1", "study/3"]),
        (["100_[0-1%2]"], ["study/0", "study/1"]),
        (["local:7"], ["other/0"]),
        (["study/"], [f"study/{n}" for n in range(5)]),
    ],
)
def test_patterns(finder: Finder, where: list[str], expected: list[str]) -> None:
    assert [one.name for one in finder.resolve(where)] == expected


@pytest.mark.parametrize(
    ("where", "message", "hint"),
    [
        ("z*", "no experiment under .* matches 'z\\*'", "experiments there: other, study"),
        ("*/9", "no run under .* matches '\\*/9'", "other has 0; study has 0-4"),
        ("FAILED", "matches 'FAILED'", "in that state: state=failed"),
        ("lr", "matches 'lr'", "config.lr is a key"),
        ("absent.yaml", "matches 'absent.yaml'", "nothing was submitted from that file"),
    ],
)
def test_patterns_and_words_that_meet_nothing(
    finder: Finder, where: str, message: str, hint: str
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        finder.resolve([where])
    assert hint in (caught.value.hint or "")


def test_a_pattern_passes_over_what_cannot_be_read(finder: Finder) -> None:
    said: list[str] = []
    finder.warn = said.append
    (finder.root / "other" / "submissions" / "1" / "plan.json").write_bytes(b"{")
    assert {one.experiment.name for one in finder.resolve(["*"])} == {"study"}
    assert len(said) == 1


@users.needs_root
def test_a_pattern_that_acts_is_of_my_own_experiments(finder: Finder) -> None:
    theirs = Experiment(finder.root, "theirs")
    theirs.submit(when=T0 + 1000)
    users.STRANGER.owns(theirs.paths.directory)
    said: list[str] = []
    own = Finder(finder.root, said.append, own=True)
    assert {one.experiment.name for one in own.resolve(["*"])} == {"other", "study"}
    assert said == ["left out, as they are another user's: theirs"]
    assert "theirs/0" in [one.name for one in finder.resolve(["*"])]
    with pytest.raises(UsageError, match="no experiment of yours under") as caught:
        own.resolve(["the*"])
    assert caught.value.hint == "to see those of others: hpcrun status --all-users"


def test_an_experiment_that_is_called_as_something_else_is_reachable(finder: Finder) -> None:
    for name in ("100", "777", "fine.yaml"):
        Experiment(finder.root, name).submit((0,), job_id=None)
    with pytest.raises(
        UsageError, match=r"'100' is an experiment and a job of study/0-3"
    ) as caught:
        finder.resolve(["100"])
    assert "100/ for the experiment, study/0-3 for the job" in (caught.value.hint or "")
    assert [one.name for one in finder.resolve(["100/"])] == ["100/0"]
    assert [one.name for one in finder.resolve(["100/0"])] == ["100/0"]
    assert [one.name for one in finder.resolve(["777"])] == ["777/0"]
    assert [one.name for one in finder.resolve(["fine.yaml"])] == ["fine.yaml/0"]


def test_spec_files(finder: Finder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of a file is enough wherever it is typed; a file that is there means itself."""
    monkeypatch.chdir(tmp_path)
    everything = [f"study/{n}" for n in range(5)]
    assert [one.name for one in finder.resolve(["/home/someone/study.yaml"])] == everything
    assert [one.name for one in finder.resolve(["study.yaml"])] == everything
    with pytest.raises(UsageError, match="nothing under"):
        finder.resolve(["elsewhere/study.yaml"])
    (tmp_path / "study.yaml").write_text("")
    with pytest.raises(UsageError, match="nothing under"):
        finder.resolve(["study.yaml"])
    (tmp_path / "study.yaml").unlink()
    # Another file of that name, as another experiment.
    plan = finder.root / "other" / "submissions" / "1" / "plan.json"
    plan.write_text(plan.read_text().replace("/home/someone/other.yaml", "/home/me/study.yaml"))
    with pytest.raises(
        UsageError, match=r"other \(from /home/me/study.yaml\), study \(from"
    ) as told:
        finder.resolve(["study.yaml"])
    assert "the file with its directory" in (told.value.hint or "")
    assert [one.name for one in finder.resolve(["/home/me/study.yaml"])] == ["other/0"]


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"spec_file": [', b'"spec_file":"\\ud8', b"\xff" * 99]
)
def test_the_spec_of_a_plan_that_is_none(finder: Finder, content: bytes) -> None:
    (finder.root / "other" / "submissions" / "1" / "plan.json").write_bytes(content)
    assert len(finder.resolve(["/home/someone/study.yaml"])) == 5
