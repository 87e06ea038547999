"""``hpcrun tag`` and ``hpcrun note`` as they are typed, and what the readers make of them."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from hpcrun.cli.only import chooser
from hpcrun.state import history
from tests.support.experiment import Experiment, path_with, slurm_shim
from tests.support.needs_tool import needs_tool
from tests.support.typed import Keyboard


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Experiment:
    monkeypatch.setenv("PATH", path_with(slurm_shim(tmp_path / "shim")))
    study = Experiment(tmp_path / "root")
    study.submit((0, 1, 2), swept={run: {"config.seed": run} for run in (0, 1, 2)})
    for run in (0, 1, 2):
        study.start(run, job_id=f"100_{run}")
        study.end(run)
    return study


@pytest.fixture
def keyboard(study: Experiment, capsys: pytest.CaptureFixture[str]) -> Keyboard:
    return Keyboard(study.paths.root, capsys)


def test_tags_are_put_on_shown_and_taken_away(keyboard: Keyboard) -> None:
    assert "no tags; to put one on: hpcrun tag NAME/3 +good" in keyboard.type("tag", "study").err
    done = keyboard.type("tag", "study/0-1", "+good", "+v1.2")
    assert done.out == "study/0  good v1.2\nstudy/1  good v1.2\n"
    assert keyboard.type("tag", "study/1", "-v1.2", "+wip").out == "study/1  good wip\n"
    assert keyboard.type("tag", "study/1", "--remove", "wip").out == "study/1  good\n"
    keyboard.type("tag", "study/1", "+x")
    assert keyboard.type("tag", "study/1", "-x").out == "study/1  good\n"
    assert keyboard.type("tag", "seed=2", "study", "+late").out == "study/2  late\n"
    assert keyboard.type("tag").out == "study/0  good v1.2\nstudy/1  good\nstudy/2  late\n"
    found = json.loads(keyboard.type("tag", "study/0", "--json").out)
    assert found == [{"experiment": "study", "run": 0, "tags": ["good", "v1.2"]}]


def test_a_whole_experiments_tags_are_those_of_its_later_runs(
    study: Experiment, keyboard: Keyboard
) -> None:
    keyboard.type("tag", "study", "+paper")
    keyboard.type("tag", "study/0-2", "+old")
    study.submit((0, 1, 2, 3), job_id="200")
    assert keyboard.type("tag", "study/2-3").out == "study/2  paper old\nstudy/3  paper\n"


def test_notes_are_written_shown_and_cleared(keyboard: Keyboard) -> None:
    assert "no notes; to write one" in keyboard.type("note", "study").err
    keyboard.type("note", "study/0", "the loss spikes at 400")
    keyboard.type("note", "study/0-1", "-m", "data")
    lines = keyboard.type("note", "study").out.splitlines()
    assert [line.split()[0] for line in lines] == ["study/0", "study/0", "study/1"]
    assert lines[0].endswith("  the loss spikes at 400")
    [first] = json.loads(keyboard.type("note", "study/1", "--json").out)
    assert [note["text"] for note in first["notes"]] == ["data"]
    keyboard.type("note", "study/0", "--clear")
    assert json.loads(keyboard.type("note", "study/0", "--json").out)[0]["notes"] == []


def test_conditions(keyboard: Keyboard) -> None:
    keyboard.type("tag", "study/0-1", "+good")
    keyboard.type("tag", "study/1", "+wip")
    keyboard.type("note", "study/2", "Diverged after the bump")

    def runs(*words: str) -> list[int]:
        return [one["run"] for one in json.loads(keyboard.type("status", *words, "--json").out)]

    assert runs("tag=good") == runs("tags=good") == [0, 1]
    assert runs("study", "tag=good,wip", "tag!=wip") == [0]
    assert runs("not tag=good") == [2]
    assert runs("tag=null or note~diverged") == [2]
    assert runs("--where", "note~'the bump'") == runs("notes~BUMP") == [2]
    assert runs("(tag~oo)", "and", "seed>=1") == [1]
    assert (
        "no run has tag=godo; its values are good, wip"
        in keyboard.type("status", "tag=godo", code=2).err
    )
    assert "compares numbers; tag is good, wip" in keyboard.type("status", "tag>3", code=2).err


@needs_tool("completion")
def test_tab_offers_tags(keyboard: Keyboard, monkeypatch: pytest.MonkeyPatch) -> None:
    keyboard.type("tag", "study", "+good", "+paper")
    keyboard.type("note", "study", "-m", "text")
    from hpcrun.tools.completion import completion_answers

    monkeypatch.setenv("HPCRUN_ROOT", str(keyboard.root))

    def offered(line: str) -> list[str]:
        return [row.split("\t")[1] for row in completion_answers.rows(line)]

    assert offered("hpcrun tag +p") == ["+paper"]
    assert offered("hpcrun tag st") == ["study"]
    assert offered("hpcrun status --where ta") == ["tag="]
    assert offered("hpcrun status --where tag=") == ["tag=good", "tag=paper"]
    assert offered("hpcrun status --where no") == ["note~"]


def test_only_knows_tags(study: Experiment, keyboard: Keyboard) -> None:
    keyboard.type("tag", "study/1", "+good")
    plan = json.loads(keyboard.type("status", "study", "--json").out)
    assert plan[1]["tags"] == ["good"]
    choose = chooser(["tag=good"], lambda message: None)
    runs = [run for _, run in history.read(study.paths).runs.values()]
    assert choose(study.paths, runs) == {1}


def test_columns_json_results_and_list(keyboard: Keyboard) -> None:
    before = keyboard.type("status", "study").out.splitlines()[0].split()
    assert "tags" not in before
    assert "TAGS" not in keyboard.type("list").out
    keyboard.type("tag", "study/0", "+good", "+paper")
    keyboard.type("note", "study/0", "-m", "one")
    keyboard.type("note", "study/0", "-m", "two")
    head, first, *_ = keyboard.type("status", "study").out.splitlines()
    assert head.split()[:3] == ["RUN", "seed", "tags"]
    assert first.split()[:3] == ["study/0", "0", "good,paper"]
    head, first, *_ = keyboard.type("status", "study", "--columns", "notes,tag").out.splitlines()
    assert head.split()[:3] == ["RUN", "notes", "tags"]
    assert "one; two" in first
    data = json.loads(keyboard.type("status", "study", "--json").out)
    assert [one["tags"] for one in data] == [["good", "paper"], [], []]
    assert [note["text"] for note in data[0]["notes"]] == ["one", "two"]
    rows = json.loads(keyboard.type("results", "study", "--json").out)
    assert [row["tags"] for row in rows] == ["good,paper", None, None]
    assert "tags        good, paper" in keyboard.type("show", "study/0").out
    [one] = json.loads(keyboard.type("list", "--json").out)
    assert one["tags"] == ["good", "paper"]
    assert keyboard.type("list").out.splitlines()[0].split()[-1] == "TAGS"


@needs_tool("export")
def test_an_archive_has_them(keyboard: Keyboard, tmp_path: Path) -> None:
    keyboard.type("tag", "study/0", "+good")
    archive = tmp_path / "study.tar.gz"
    keyboard.type("export", "study", "-o", archive)
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path / "unpacked", filter="data")
    assert "good" in (tmp_path / "unpacked/study/results.csv").read_text()
    elsewhere = Keyboard(tmp_path / "unpacked", keyboard.capture)
    assert elsewhere.type("tag", "study/0").out == "study/0  good\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("tag", "+good"), "this command wants to be told which runs"),
        (("tag", "study/0", "good"), "to put a tag on runs: hpcrun tag study/0 +good; -good takes"),
        (("tag", "study/0", "+a b"), "found 'a b'; accepted are letters, digits"),
        (("tag", "study/0", "-wip"), "none of 1 run has the tag wip"),
        (("tag", "nothing", "+good"), "nothing under"),
        (("note", "-m", "text"), "this command wants to be told which runs"),
        (("note", "study/0", "word"), "a note stands behind -m: hpcrun note study/0 -m word"),
        (("note", "study/0", "-m", " "), "a note of 0 characters; accepted are 1 to 4,000"),
    ],
)
def test_mistakes(keyboard: Keyboard, words: tuple[str, ...], told: str) -> None:
    done = keyboard.type(*words, code=2)
    assert told in done.err
    assert done.out == ""


def test_what_was_written_begins_no_line(study: Experiment, keyboard: Keyboard) -> None:
    keyboard.type("note", "study/0", "-m", "one\nstudy/1  forged \x1b[31mred")
    assert len(keyboard.type("note", "study").out.splitlines()) == 1
    assert "\x1b" not in keyboard.type("status", "study", "--columns", "notes").out
