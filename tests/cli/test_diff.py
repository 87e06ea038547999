"""``hpcrun diff``: experiments that were submitted for real, on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_submit import PYTHON, Place
from tests.support.command import hpcrun
from tests.support.experiment import Experiment


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Two experiments of one script, which has changed between them."""
    made = Place(tmp_path_factory.mktemp("diff"))
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HPCRUN_ROOT", "SLURM_JOB_ID"):
            patch.delenv(name, raising=False)
        _submit_twice(made)
        yield made


def _submit_twice(made: Place) -> None:
    for name, values, more in (("a", [1, 2, 3], {"old": True}), ("b", [2, 3, 4], {"lr": 0.5})):
        (made.code / "work.py").write_text(f"import sys\n\n\nprint({name!r})\n")
        (made.code / "a.txt").unlink(missing_ok=True)
        (made.code / f"{name}.txt").write_text("there\n")
        made.spec(
            [PYTHON, "work.py"],
            config={"x": 0, **more},
            sweep={"grid": {"config.x": values}},
        )
        submitted = made.hpcrun("submit", "cluster=local", f"name={name}", "--wait")
        assert submitted.returncode == 0, submitted.stderr


def _diff(place: Place, *arguments: str) -> Any:
    done = place.hpcrun("diff", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_two_experiments(place: Place) -> None:
    found = _diff(place, "a", "b", "--code")
    assert found["changed"] == [
        {
            "runs": ["x=2", "x=3"],
            "values": [{"key": "config.old", "before": True}, {"key": "config.lr", "after": 0.5}],
        }
    ]
    assert (found["only_before"], found["only_after"]) == (["x=1"], ["x=4"])
    assert found["code"] == {
        "added": ["b.txt"],
        "removed": ["a.txt"],
        "changed": ["e.yaml", "work.py"],
    }
    assert "-print('a')\n+print('b')\n" in found["patch"]

    said = place.hpcrun("diff", "a", "b").stdout.splitlines()
    assert said[:6] == [
        "2 runs (x=2; x=3):",
        "  config.old: true -> (absent)",
        "  config.lr: (absent) -> 0.5",
        "only in A: x=1",
        "only in B: x=4",
        "code + b.txt",
    ]


def test_two_runs_are_compared_whatever_they_are_called(place: Place) -> None:
    found = _diff(place, "a/0", "a/2")
    assert found["changed"] == [
        {"runs": ["x=1"], "values": [{"key": "config.x", "before": 1, "after": 3}]}
    ]
    assert place.hpcrun("diff", "a/0", "a/2").stdout == "  config.x: 1 -> 3\nthe same code\n"


def test_nothing_changed(place: Place) -> None:
    assert place.hpcrun("diff", "a", "a").stdout == "3 runs with the same values\nthe same code\n"


def test_keys_that_only_one_version_knew(tmp_path: Path) -> None:
    """A plan of hpcrun 0.1.0 has no `progress`; what its absence means is no change."""
    old, new = Experiment(tmp_path, "old"), Experiment(tmp_path, "new")
    old.submit((0,), spec={"recovery": {"requeue": True, "resume": None}})
    progress = {"source": "auto", "directory": None, "pattern": None, "saved": None, "total": 9}
    recovery = {"requeue": True, "hang_after": "00:05:00", "resume": {"recipe": "nanogpt"}}
    new.submit((0,), spec={"progress": progress, "recovery": {**recovery, "warm_after": None}})
    said = hpcrun("diff", "old", "new", root=tmp_path).stdout.splitlines()
    assert said[:4] == [
        "  recovery.resume: null -> (absent)",
        "  progress.total: (absent) -> 9",
        "  recovery.hang_after: (absent) -> 00:05:00",
        "  recovery.resume.recipe: (absent) -> nanogpt",
    ]
    assert said[4] == (
        "5 keys that only one of the two hpcruns knew, at their defaults: "
        "recovery.warm_after, progress.source, progress.directory, progress.pattern and 1 more"
    )
    data = json.loads(hpcrun("diff", "new", "old", "--json", root=tmp_path).stdout)
    assert "progress.saved" in data["of_one_version"]


def test_code_that_is_gone(place: Place) -> None:
    (place.root / "b/code").rename(place.root / "b/gone")
    done = place.hpcrun("diff", "a", "b")
    (place.root / "b/gone").rename(place.root / "b/code")
    assert (done.returncode, "code" in done.stdout) == (0, False)
    assert "the code was not compared: the frozen code" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "found none\n\nhint: such as hpcrun diff NAME/0 NAME/1"),
        (("a/0",), "found 'a/0' alone\n\nhint: such as hpcrun diff a/0 a/1"),
        (("b/*",), "hint: such as hpcrun diff b/0 b/1"),
        (("c",), "matches 'c'"),
    ],
)
def test_with_one_of_two_an_example_is_told(
    place: Place, arguments: tuple[str, ...], message: str
) -> None:
    done = place.hpcrun("diff", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


def test_wrong_input(place: Place) -> None:
    done = place.hpcrun("diff", "a", "c")
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
