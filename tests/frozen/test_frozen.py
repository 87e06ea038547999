"""What hpcrun says of an old tree is what it has always said, to the byte.

`root.tar.gz` is a tree of experiments that hpcrun 0.1.0 made: runs that completed, failed, were
cancelled, lost a rank and came back, and a Slurm experiment caught half-way. `expected/` is what
each command said of it then. A change of either is a change for those who have such trees, or
scripts that read the output; `record.py` writes it anew where that is meant.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from hpcrun.cli import commands
from tests.frozen import fresh
from tests.frozen.cases import CASES
from tests.frozen.desk import EXPECTED, Case, Desk
from tests.frozen.files import FILES
from tests.support import away


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """The old tree, which no command here changes."""
    return Desk(tmp_path_factory.mktemp("frozen"))


def _expected(name: str) -> str:
    path = EXPECTED / name
    assert path.exists(), f"nothing is recorded for {name}: see tests/frozen/record.py"
    return away.without(path.read_text())


def test_each_command_has_a_name_of_its_own() -> None:
    names = [case.name for case in CASES]
    assert len(names) == len(set(names))
    recorded = {path.name for path in EXPECTED.iterdir()}
    assert recorded == {*(f"{name}.txt" for name in names), *FILES, fresh.FILE}


THERE = [case for case in CASES if case.argv[0] in commands.own_commands()]


@pytest.mark.parametrize("case", THERE, ids=lambda case: case.name)
def test_a_command_says_what_it_said(case: Case, desk: Desk) -> None:
    assert desk.run(case).text(case) == _expected(f"{case.name}.txt")


def test_reading_changes_nothing(desk: Desk) -> None:
    before = desk.contents("root")
    for words in (
        "list",
        "status half doomed",
        "why study",
        "results study",
        "clean half --dry-run",
    ):
        desk.run(Case(tuple(words.split())))
    assert desk.contents("root") == before


# Each is named by the command that writes it.
WRITTEN = [name for name in FILES if name.split("_")[1] in commands.own_commands()]


@pytest.mark.parametrize("name", WRITTEN)
def test_a_file_that_a_command_writes(name: str, tmp_path: Path) -> None:
    assert FILES[name](Desk(tmp_path / "desk")) == _expected(name)


def test_what_another_time_zone_and_place_say_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison itself does not depend on who makes it."""
    monkeypatch.setenv("TZ", "Pacific/Auckland")
    time.tzset()
    try:
        desk = Desk(tmp_path / "quite another place with spaces")
        for words in ("list", "status study", "show study/0", "why half", "plan measure.yaml"):
            case = Case(tuple(words.split()))
            assert desk.run(case).text(case) == _expected(f"{case.name}.txt")
    finally:
        monkeypatch.undo()
        time.tzset()


def test_the_names_of_the_files_of_a_submission(tmp_path: Path) -> None:
    found = json.dumps(fresh.submit(tmp_path), indent=1) + "\n"
    assert found == _expected(fresh.FILE)
