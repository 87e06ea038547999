"""Problems name the key, file and line of the value that they are about."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcrun.compile.source.marked_tree import Key, Reporter, SourceMark, Tree
from hpcrun.compile.source.problems import Problems, did_you_mean, kind_of, listing, nearest_file
from hpcrun.errors import Problem, SpecError


def _reporter(directory: Path = Path("/specs")) -> Reporter:
    marks: dict[Key, SourceMark] = {
        (): SourceMark("spec.yaml", 1, directory),
        ("resources",): SourceMark("spec.yaml", 2, directory),
        ("resources", "nodes"): SourceMark("spec.yaml", 3, directory),
    }
    return Reporter(Tree({"resources": {"nodes": 0}}, marks), Problems())


def test_a_problem_has_the_place_of_its_value() -> None:
    report = _reporter()
    report.at("resources.nodes", "is wrong", "fix it")
    report.at(("resources", "a.b"), "is unknown")
    assert report.problems.found == [
        Problem("spec.yaml", "resources.nodes", "is wrong", "fix it", 3),
        Problem("spec.yaml", "resources.a.b", "is unknown", None, 2),
    ]


def test_a_reporter_below_a_key_takes_keys_relative_to_it() -> None:
    report = _reporter()
    report.below("resources").at("nodes", "is wrong")
    report.below("resources").below("nodes").at((), "is wrong")
    assert report.problems.found == [Problem("spec.yaml", "resources.nodes", "is wrong", None, 3)]
    assert report.below("resources").mark("nodes").line == 3


def test_a_value_may_have_been_written_elsewhere() -> None:
    report = _reporter()
    report.at_mark(SourceMark("command line", None, Path()), "resources.nodes", "is wrong")
    assert report.problems.found == [Problem("command line", "resources.nodes", "is wrong")]


@pytest.mark.parametrize(("value", "count"), [(0, 1), (1, 0), (None, 0)])
def test_a_number_has_a_least_value(value: int | None, count: int) -> None:
    report = _reporter()
    report.at_least("resources.nodes", value, 1)
    assert [one.message for one in report.problems.found] == [
        "found 0; accepted is a whole number from 1"
    ] * count


def test_a_missing_file_has_a_hint_at_its_siblings(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "notes.txt").touch()
    report = _reporter(tmp_path)
    report.no_file("entry", "trian.py", tmp_path / "trian.py", "*.py")
    report.no_file("entry", "x.py", tmp_path / "x.py", "*.py")
    report.no_file("entry", "x.py", tmp_path / "none" / "x.py", "*.py")
    hints = [one.hint for one in report.problems.found]
    assert hints == ["did you mean 'train.py'?", "there are train.py", None]


def test_problems_are_raised_together_each_once_and_in_the_order_of_their_files() -> None:
    problems = Problems()
    late, early, other = (
        Problem("a", "x", "late", None, 9),
        Problem("a", "y", "early", None, 2),
        Problem("b", "z", "other", None, 1),
    )
    problems.add(late, early, other, late)
    problems.add(early)
    assert problems.found == [late, early, other]
    assert problems.under("x")
    assert not problems.under("resources")
    with pytest.raises(SpecError) as error:
        problems.check()
    assert error.value.problems == (early, late, other)


def test_words_of_messages() -> None:
    assert did_you_mean("node", ["nodes", "time"]) == "did you mean 'nodes'?"
    assert did_you_mean("A-B", ["a_b"]) == "did you mean 'a_b'?"
    assert did_you_mean("queue", ["nodes"]) is None
    assert did_you_mean("lr", ["steps", "learning-rate"]) == "did you mean 'learning-rate'?"
    assert did_you_mean("weight_decay", ["wd", "w"]) == "did you mean 'wd'?"
    assert did_you_mean("width", ["w"]) is None
    assert listing(["a", "b", "c"], 2) == "a, b, … (1 more)"
    assert [kind_of(one) for one in (None, True, 1, 1.5, "a", [], {})] == [
        *("nothing (null)", "true or false", "a whole number", "a number"),
        *("a string", "a list", "a mapping"),
    ]


def test_a_file_is_not_guessed_by_its_ending() -> None:
    there = ["t.yaml", "other.yaml", "train.py"]
    for name, near in (
        ("other.yml", "other.yaml"),
        ("otehr.yaml", "other.yaml"),
        ("OTHER", "other.yaml"),
        ("trian.py", "train.py"),
        ("pretrain.yaml", "train.py"),  # spelled like it; patterns keep kinds apart
        ("d.yaml", None),
        ("mine.yaml", None),
    ):
        assert nearest_file(name, there) == (near and f"did you mean '{near}'?")
    # It lies there, and was found to be no file; the root has no name.
    assert (
        nearest_file("./t.yaml", there) == "./t.yaml is a directory, or a link to what is not there"
    )
    assert nearest_file("", there) is None
