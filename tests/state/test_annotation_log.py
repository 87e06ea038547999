"""Tags and notes on disk: several writers, records of others, and what they come to."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from hpcrun.state import annotation_log, files, history, journal
from hpcrun.state.annotation_log import MOST_NOTE, MOST_NOTES, MOST_TAGS, Annotation, is_tag
from tests.support.experiment import Experiment


@pytest.fixture
def study(tmp_path: Path) -> Experiment:
    study = Experiment(tmp_path)
    study.submit((0, 1), spec={"tags": ["base"], "notes": "as planned"})
    return study


def tags(study: Experiment) -> dict[int, tuple[str, ...]]:
    found = history.read(study.paths).annotations
    return {run: one.tags for run, one in found.items()}


def texts(study: Experiment, run: int = 0) -> list[str]:
    return [note.text for note in history.read(study.paths).annotations[run].notes]


def test_what_the_spec_says_is_changed_by_records_in_the_order_of_time(study: Experiment) -> None:
    assert tags(study) == {0: ("base",), 1: ("base",)}
    annotation_log.append(study.paths, [1], add=["good", "paper"], remove=["base"])
    annotation_log.append(study.paths, None, add=["all"])
    annotation_log.append(study.paths, [1], remove=["good"])
    assert tags(study) == {0: ("base", "all"), 1: ("paper", "all")}
    annotation_log.append(study.paths, [0], note="diverged")
    assert texts(study) == ["as planned", "diverged"]
    annotation_log.append(study.paths, [0], clear=True, note="it was the data")
    assert texts(study) == ["it was the data"]
    assert texts(study, 1) == ["as planned"]


def test_a_later_submission_keeps_them_and_brings_its_own(study: Experiment) -> None:
    annotation_log.append(study.paths, [0], add=["good"], remove=["base"])
    annotation_log.append(study.paths, None, add=["all"])
    study.submit((0, 1, 2), spec={"tags": ["base", "second"]})
    assert tags(study) == {
        0: ("second", "good", "all"),
        1: ("base", "second", "all"),
        2: ("base", "second", "all"),
    }


def test_writers_at_once_lose_nothing(study: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes on each of two hosts."""

    def write(writer: int) -> None:
        host = SimpleNamespace(nodename=f"login{writer % 2}")
        monkeypatch.setattr(os, "uname", lambda: host)
        for number in range(40):
            annotation_log.append(study.paths, [0], note=f"{writer} {number}")
        os._exit(0)

    children = []
    for writer in range(4):
        child = os.fork()
        if not child:
            write(writer)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert len(list(study.paths.annotations.iterdir())) == 2
    expected = {f"{writer} {number}" for writer in range(4) for number in range(40)}
    assert {*texts(study)} == {"as planned", *expected}


def test_what_no_hpcrun_wrote_is_passed_over(study: Experiment) -> None:
    annotation_log.append(study.paths, [0], add=["good"])
    place = study.paths.annotations
    lines = [
        {"time": 1, "runs": [0], "add": "text"},
        {"runs": [0], "add": ["no-time"]},
        {"time": 2, "runs": [0], "add": ["a b", "$(reboot)", "x" * 65, "-minus", "fine"]},
        {"time": 3, "runs": [0], "add": [f"many{number}" for number in range(500)]},
        {"time": 4, "runs": [0], "note": "n" * 10_000},
        {"time": 5, "runs": [7, -1], "add": ["other"]},
    ]
    files.append(place / "elsewhere-4711.jsonl", *lines)
    (place / "torn.jsonl").write_text('{"time": 6, "runs": [0], "add": ["torn')
    (place / "notes.txt").write_text('{"time": 7, "runs": [0], "add": ["no-journal"]}\n')
    os.mkfifo(place / "pipe.jsonl")
    (place / "directory.jsonl").mkdir()
    with open(place / "huge.jsonl", "wb") as stream:
        stream.truncate(1 << 30)
    told: list[str] = []
    found = history.read(study.paths, told.append).annotations[0]
    assert [line.split(": ")[1].rpartition("/")[2] for line in told] == [
        "directory.jsonl",
        "huge.jsonl",
        "pipe.jsonl",
    ]
    assert found.tags[:3] == ("base", "fine", "many0")
    assert len(found.tags) == MOST_TAGS
    assert [len(note.text) for note in found.notes] == [len("as planned"), MOST_NOTE]


def test_a_run_that_was_deleted_takes_its_tags_along(study: Experiment) -> None:
    annotation_log.append(study.paths, [0], add=["good"])
    journal.write_deleted(study.paths.submissions()[-1], [0])
    found = history.read(study.paths)
    assert (sorted(found.runs), found.deleted, sorted(found.submissions)) == ([1], {0}, [1])
    # A plan has all runs of a spec; a run is there again once it is asked for.
    paths = study.submit((0, 1), job_id=None)
    assert sorted(history.read(study.paths).runs) == [1]
    journal.write(paths, journal.SUBMITTING, 0, [0])
    journal.write(paths, journal.SUBMITTED, 0, [0], job_id="200")
    found = history.read(study.paths)
    assert (sorted(found.runs), found.deleted) == ([0, 1], set())
    assert 0 not in found.annotations
    assert {run: job.job_id for run, job in journal.newest_jobs(study.paths).items()} == {
        0: "200",
        1: "100_1",
    }


def test_hostile_numbers_are_bounded(study: Experiment) -> None:
    """What is about thousands of runs, again and again, ends all the same."""
    study.submit(range(3_000), job_id="200")
    place = study.paths.annotations
    place.mkdir()
    lines = "".join(f'{{"time": {moment}, "note": "{moment}"}}\n' for moment in range(4_000))
    (place / "elsewhere-1.jsonl").write_text(lines)
    began = time.process_time()
    told: list[str] = []
    found = history.read(study.paths, told.append).annotations
    assert time.process_time() - began < 20
    assert "passed over: the newest tags and notes" in told[0]
    assert [len(found[run].notes) for run in (0, 2_999)] == [MOST_NOTES] * 2


@pytest.mark.parametrize("text", ["good", "v1.2", "owner:me", "a/b", "2024-11", "A_b", "x" * 64])
def test_tags(text: str) -> None:
    assert is_tag(text)


@pytest.mark.parametrize(
    "text", ["", "a b", "-wip", "+good", "a,b", "a=b", "~x", "x" * 65, "ä", "a\n", "(a)", "a'b"]
)
def test_no_tags(text: str) -> None:
    assert not is_tag(text)


def test_nothing_said_is_plain_data() -> None:
    assert Annotation().to_data() == {"tags": [], "notes": []}
