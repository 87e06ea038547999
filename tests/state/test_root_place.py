"""The default root, the one of before, and a checkout of hpcrun in the place of a root."""

from pathlib import Path

import pytest

from hpcrun.errors import UsageError
from hpcrun.state import root_place


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("HPCRUN_ROOT", raising=False)
    return tmp_path


def _experiment(root: Path, name: str) -> None:
    directory = root / name / "submissions" / "1"
    directory.mkdir(parents=True)
    (directory / "plan.json").write_text("{}")


def _checkout(place: Path) -> None:
    place.mkdir()
    (place / "pyproject.toml").write_text('[project]\nname = "hpcrun"\n')
    (place / ".gitignore").write_text("demo-runs/\n")


def test_default_is_no_name_that_a_clone_has(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert root_place.default_root() == home / "hpcrun-runs"
    monkeypatch.setenv("HPCRUN_ROOT", "~/mine")
    assert root_place.default_root() == home / "mine"


def test_earlier_root_is_told_where_the_default_is_meant(home: Path) -> None:
    told: list[str] = []
    root_place.tell_of_earlier(home / "hpcrun-runs", told.append)
    assert told == []
    _experiment(home / "hpcrun", "study")
    for root in (home / "hpcrun", home / "elsewhere"):
        root_place.tell_of_earlier(root, told.append)
    assert told == []
    root_place.tell_of_earlier(home / "hpcrun-runs", told.append)
    assert "holds 1 experiment (study)" in told[0]
    assert "export HPCRUN_ROOT=~/hpcrun " in told[0]


def test_experiment_of_the_earlier_root_does_not_begin_anew(home: Path) -> None:
    _experiment(home / "hpcrun", "study")
    root_place.check_not_earlier(home / "hpcrun-runs", "other")
    root_place.check_not_earlier(home / "elsewhere", "study")
    with pytest.raises(UsageError, match="all of its runs would begin anew") as caught:
        root_place.check_not_earlier(home / "hpcrun-runs", "study")
    assert "--root ~/hpcrun " in str(caught.value.hint)
    _experiment(home / "hpcrun-runs", "study")
    root_place.check_not_earlier(home / "hpcrun-runs", "study")


@pytest.mark.parametrize(
    ("root", "with_experiments", "answer"),
    [
        ("runs", False, None),
        ("hpcrun", False, "refused"),
        ("hpcrun", True, "said"),
        ("hpcrun/runs", False, "said"),
        ("hpcrun/demo-runs", False, None),
    ],
)
def test_checkout_is_no_root(
    home: Path, root: str, with_experiments: bool, answer: str | None
) -> None:
    _checkout(home / "hpcrun")
    if with_experiments:
        _experiment(home / root, "study")
    told: list[str] = []
    if answer == "refused":
        with pytest.raises(UsageError, match="is a checkout of hpcrun"):
            root_place.check_no_checkout(home / root, told.append)
    else:
        root_place.check_no_checkout(home / root, told.append)
    assert bool(told) == (answer == "said")
