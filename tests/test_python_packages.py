"""The packages of a Python, and a change between two starts of a run."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from hpcrun.python_packages import MOST_DIFFERENT, difference, installed, read
from hpcrun.state import layout
from hpcrun.submission.local import processes
from tests.support import command


def _package(site: Path, name: str, version: str, commit: str | None = None) -> None:
    for old in site.glob(f"{name}-*.dist-info"):
        for file in old.iterdir():
            file.unlink()
        old.rmdir()
    place = site / f"{name}-{version}.dist-info"
    place.mkdir(parents=True)
    (place / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    if commit:
        told = {"url": "https://example.org/x", "vcs_info": {"vcs": "git", "commit_id": commit}}
        (place / "direct_url.json").write_text(json.dumps(told))


def test_packages_are_those_that_an_import_finds_first(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    _package(one, "some_thing", "1.0")
    _package(two, "some_thing", "2.0")
    _package(two, "from_git", "0.1.dev0", "0123456789abcdef")
    (two / "broken-3.dist-info").write_text("a file")
    found = installed([str(tmp_path / "gone"), str(one), str(two)])
    version = "{}.{}.{}".format(*sys.version_info[:3])
    assert found == {
        **{"python": version, "some-thing": "1.0", "broken": "3"},
        "from-git": "0.1.dev0 0123456789ab",
    }
    assert installed(sys.path)["pytest"] == pytest.__version__


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        ({"a": "1"}, {"a": "1"}, []),
        ({"a": "1", "b": "2"}, {"a": "1.1", "c": "3"}, ["a 1 -> 1.1", "b 2 is gone", "c 3 is new"]),
    ],
)
def test_a_difference_in_words(before: dict[str, str], now: dict[str, str], told: object) -> None:
    assert difference(before, now) == told


def test_a_long_difference_is_cut() -> None:
    found = difference({}, {str(number): "1" for number in range(MOST_DIFFERENT + 3)})
    assert (len(found), found[-1]) == (MOST_DIFFERENT + 1, "and 3 more")


@pytest.mark.parametrize("data", [None, {}, [], {"a": 1}, {1: "a"}, "a", {"a": ["1"]}])
def test_what_is_no_list_of_packages_is_none(data: object) -> None:
    assert read(data) is None


def test_a_change_between_two_starts_is_told(tmp_path: Path) -> None:
    """The program itself makes it, and its second attempt is the first to have it."""
    site = tmp_path / "site"
    _package(site, "precise", "1.0")
    (tmp_path / "change.py").write_text(
        "import os, pathlib, sys\n"
        f"site = pathlib.Path({str(site)!r})\n"
        "if os.environ['HPCRUN_ATTEMPT'] == '1':\n"
        "    (site / 'precise-1.0.dist-info').rename(site / 'precise-1.1.dist-info')\n"
        "    sys.exit('again')\n"
    )
    spec = {
        **{"name": "e", "cluster": "local", "entry": "change.py"},
        "environment": {"python": sys.executable, "variables": {"PYTHONPATH": str(site)}},
        **{"resources": {"ntasks_per_node": 1}, "recovery": {"max_failures": 2}},
    }
    (tmp_path / "e.yaml").write_text(json.dumps(spec))
    environment = {**os.environ, "HPCRUN_ROOT": str(tmp_path / "root")}
    try:
        done = command.hpcrun("submit", "e.yaml", "--wait", cwd=tmp_path, env=environment)
        assert done.returncode == 0, done.stderr
    finally:
        for submission in layout.experiment(tmp_path / "root", "e").submissions():
            processes.kill_all(submission.directory)
    told = command.hpcrun("why", "e/0", cwd=tmp_path, env=environment).stdout
    (line,) = [line for line in told.splitlines() if "packages" in line]
    assert line == "  Its Python had other packages than at submission: precise 1.0 -> 1.1."
    assert told.index(line) > told.index("Attempt 2")
