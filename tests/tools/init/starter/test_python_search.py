"""Pythons in the places where people have them; those with torch are made of names alone."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from hpcrun.submission import python_probe
from hpcrun.submission.python_probe import Probe, Unchecked
from hpcrun.tools.init.starter import python_search
from hpcrun.tools.init.starter.python_search import RUNNING, FoundPython

ANSWERS = {"torch": "2.5.1", "deepspeed": "0.19.8"}


def _environment(directory: Path, *, torch: str = "2.5.1", deepspeed: str = "0.19.8") -> Path:
    """An environment's Python, with libraries that are empty directories."""
    python = directory / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    libraries = directory / "lib" / "python3.11" / "site-packages"
    libraries.mkdir(parents=True)
    for name, version in (("torch", torch), ("deepspeed", deepspeed)):
        if version:
            (libraries / f"{name}-{version}.dist-info").mkdir()
    return python


@pytest.fixture
def home(tmp_path: Path) -> Path:
    path = tmp_path / "home"
    path.mkdir()
    return path


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Python by Python, those that would be started; each has all that it needs."""
    asked: list[str] = []

    def probe(python: str, **_options: object) -> Probe:
        asked.append(python)
        return Probe(python, "3.11.2", dict(ANSWERS))

    monkeypatch.setattr(python_probe, "probe", probe)
    return asked


def _search(home: Path, directory: Path | None = None, **environ: object) -> list[FoundPython]:
    given = {"HOME": str(home), **{name: str(value) for name, value in environ.items()}}
    return python_search.search(given, directory or home)


def test_this_python_is_asked_and_comes_first(home: Path) -> None:
    """No stand-in: the tests' own Python says what it has."""
    first = _search(home)[0]
    assert (first.origin, first.executable) == (RUNNING, sys.executable)
    assert first.version == ".".join(map(str, sys.version_info[:3]))
    assert first.problem == ""


def test_where_pythons_are_looked_for(home: Path, tmp_path: Path, started: list[str]) -> None:
    project, path = tmp_path / "project", tmp_path / "bin"
    places = {
        "$VIRTUAL_ENV": tmp_path / "active",
        ".venv of the project": project / ".venv",
        "in your home": home / "venvs" / "ml",
        "pyenv": home / ".pyenv" / "versions" / "3.11",
        "PATH": tmp_path / "tools",
    }
    for one in places.values():
        _environment(one)
    listed = _environment(tmp_path / "listed")
    (home / ".conda").mkdir()
    (home / ".conda" / "environments.txt").write_text(
        f"{listed.parent.parent}\n/none\nrelative\n/a\0b\n"
    )
    path.mkdir()
    found = _search(
        home,
        project,
        VIRTUAL_ENV=places["$VIRTUAL_ENV"],
        PATH=f"{path}:{places['PATH'] / 'bin'}:relative",
    )
    origins = {one.origin: one.executable for one in found if one.origin != RUNNING}
    expected = {origin: str(one / "bin" / "python") for origin, one in places.items()}
    assert origins == {**expected, "conda": str(listed)}
    assert {*expected.values(), str(listed)} <= {*started}


def test_a_python_without_torch_is_not_started(home: Path, started: list[str]) -> None:
    plain = _environment(home / ".pyenv" / "versions" / "plain", torch="")
    found = _search(home)
    assert str(plain) not in [*started, *(one.executable for one in found)]


def test_the_active_environment_is_told_of_even_without_torch(
    home: Path, tmp_path: Path, started: list[str]
) -> None:
    active = _environment(tmp_path / "active", torch="")
    assert str(active) in [one.executable for one in _search(home, VIRTUAL_ENV=tmp_path / "active")]
    assert str(active) in started


def test_libraries_of_a_pth_file_and_of_the_system(home: Path, tmp_path: Path) -> None:
    base = _environment(tmp_path / "base")
    shared = base.parent.parent / "lib" / "python3.11" / "site-packages"
    for name in ("linked", "system"):
        _environment(home / "venvs" / name, torch="", deepspeed="")
    (home / "venvs/linked/lib/python3.11/site-packages/other.pth").write_text(
        f"{shared}\nimport x\n"
    )
    (home / "venvs/system/pyvenv.cfg").write_text(
        f"home = {base.parent}\ninclude-system-site-packages = true\n"
    )
    found = {Path(one.executable).parent.parent.name: one for one in _search(home)}
    assert found["linked"].torch == found["system"].torch == "2.5.1"
    # They are no Pythons, and so say nothing.
    assert "is no usable Python" in found["linked"].problem
    assert not found["linked"].trains


@pytest.mark.parametrize(
    ("version", "text", "build"),
    [
        ("2.13.0+cpu", "", "cpu"),
        ("2.5.1+cu121", "", "cuda"),
        ("2.5.1+rocm6.2", "", "rocm"),
        ("2.5.1", "cuda: Optional[str] = '12.4'\nhip: Optional[str] = None\n", "cuda"),
        ("2.5.1", "cuda: Optional[str] = None\nhip: Optional[str] = '6.2.41133'\n", "rocm"),
        ("2.5.1", "cuda = None\nhip = None\n", "cpu"),
        ("2.5.1", "", ""),
    ],
)
def test_what_a_torch_is_built_for(
    version: str, text: str, build: str, home: Path, started: list[str]
) -> None:
    python = _environment(home / "venvs" / "ml", torch=version)
    if text:
        library = python.parent.parent / "lib/python3.11/site-packages/torch"
        library.mkdir()
        (library / "version.py").write_text(text)
    [found] = [one for one in _search(home) if one.executable == str(python)]
    assert found.build == build


def test_a_python_of_somebody_else_is_told_of_by_its_files(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = _environment(home / "venvs" / "theirs")

    def probe(python: str, **_options: object) -> Probe:
        if python == str(theirs):
            raise Unchecked(f"{python} belongs to swadmin")
        return Probe(python, "3.11.2", {"torch": None, "deepspeed": None})

    monkeypatch.setattr(python_probe, "probe", probe)
    found = _search(home)
    chosen = python_search.choose(found)
    assert chosen is not None
    assert (chosen.executable, chosen.is_unchecked) == (str(theirs), True)
    assert "belongs to swadmin" in chosen.problem
    assert found[0].lacks == "torch and deepspeed"


def test_those_that_answered_come_before_those_that_were_not_asked() -> None:
    asked = FoundPython("/b", "PATH", "3.11", "2", "0.19")
    unasked = FoundPython("/a", "conda", None, "2", "0.19", is_unchecked=True)
    assert python_search.choose([unasked, asked]) == asked
    assert python_search.choose([FoundPython("/c", "PATH", "3.11", "2")]) is None


def test_many_are_not_all_started(home: Path, started: list[str]) -> None:
    for number in range(20):
        _environment(home / "venvs" / f"e{number:02}")
    found = _search(home)
    assert len(started) == 12
    assert sum(one.is_unchecked for one in found) == len(found) - 12


def test_what_is_no_program_is_passed_over(home: Path, started: list[str]) -> None:
    python = _environment(home / "venvs" / "odd")
    python.chmod(stat.S_IRUSR)
    folder = home / "venvs" / "folder" / "bin" / "python"
    folder.mkdir(parents=True)
    names = [one.executable for one in _search(home)]
    assert str(folder) not in names
    assert os.geteuid() == 0 or str(python) not in names
