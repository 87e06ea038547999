"""hpcrun imported from its archive, which is read once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hpcrun.submission.code import own_package
from tests.support.place import REPOSITORY

# Once the archive is torn, what is imported can only come from memory.
PROGRAM = """
import os, sys
import hpcrun
from hpcrun.run import own_archive

{first}
if sys.argv[1:]:
    open(sys.argv[1], "wb").write(b"torn")
from hpcrun.run import agent, worker
print(agent.__file__)

"""


def run(directory: Path, path: Path, first: str, *argv: Path) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", PROGRAM.format(first=first), *map(str, argv)]
    return subprocess.run(
        program,
        cwd=directory,
        env={"PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "first",
    [
        "own_archive.read_once()",
        "own_archive.read_once(); own_archive.read_once()",
        # As a rank's own program does.
        "hpcrun.session",
    ],
)
def test_what_is_imported_later_comes_from_memory(tmp_path: Path, first: str) -> None:
    archive = tmp_path / "hpcrun.zip"
    own_package.write(archive)
    done = run(tmp_path, archive, first, archive)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [f"{archive}/hpcrun/run/agent.pyc"]


def test_without_it_each_module_is_read_when_it_is_imported(tmp_path: Path) -> None:
    archive = tmp_path / "hpcrun.zip"
    own_package.write(archive)
    assert run(tmp_path, archive, "pass", archive).returncode == 1


def test_other_archives_are_opened_as_before(tmp_path: Path) -> None:
    archive, other = tmp_path / "hpcrun.zip", tmp_path / "other.zip"
    own_package.write(archive)
    other.write_bytes(archive.read_bytes())
    first = f"own_archive.read_once(); sys.path.insert(0, {str(other)!r}); import zipimport; "
    first += f"print(len(zipimport.zipimporter({str(other)!r}).get_data('hpcrun/errors.py')) > 9)"
    done = run(tmp_path, archive, first)
    assert done.stdout.startswith("True\n"), done.stderr


def test_nothing_changes_where_hpcrun_is_no_archive(tmp_path: Path) -> None:
    first = "import zipimport; before = zipimport._io; own_archive.read_once(); "
    first += "assert zipimport._io is before"
    done = run(tmp_path, REPOSITORY, first)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [f"{REPOSITORY}/hpcrun/run/agent.py"]


def test_an_archive_that_cannot_be_read_is_the_next_imports_matter(tmp_path: Path) -> None:
    archive = tmp_path / "hpcrun.zip"
    own_package.write(archive)
    first = "os.unlink(sys.argv.pop()); own_archive.read_once(); print('goes on')"
    done = run(tmp_path, archive, first, archive)
    assert done.stdout == "goes on\n"
    assert "FileNotFoundError" in done.stderr or "zipimport" in done.stderr, done.stderr
