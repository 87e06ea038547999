"""What a spec may say of object storage."""

from __future__ import annotations

import venv
from pathlib import Path

import pytest

from tests.support import command


def _plan(directory: Path, *arguments: str, entry: str = "train.py") -> tuple[int, str]:
    (directory / "train.py").write_text("import hpcrun\nhpcrun.session()\n")
    (directory / "e.yaml").write_text(f"name: study\nentry: {entry}\ncluster: local\n")
    answer = command.hpcrun("plan", str(directory / "e.yaml"), *arguments)
    return answer.returncode, answer.stdout + answer.stderr


@pytest.mark.parametrize("to", ["s3://bucket", "s3://bucket/a/b", "file:///archive/me"])
def test_places_that_are_accepted(tmp_path: Path, to: str) -> None:
    code, said = _plan(tmp_path, f"object_storage.to={to}")
    assert code == 0, said


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["object_storage.to=bucket"], "accepted is s3://BUCKET/PREFIX or file:///DIRECTORY"),
        (["object_storage.to=gs://bucket"], "other stores of fsspec are not tested"),
        (["object_storage.to=''"], "accepted is s3://BUCKET/PREFIX"),
        (["object_storage.to=s3://"], "which names no bucket"),
        (["object_storage.to=file://me"], "a path of its own"),
        (["object_storage.to=s3://b/../x"], "accepted is a plain path"),
        (["object_storage.to=s3://me:word@b/x"], "environment.secrets_file"),
        (["object_storage.to=s3://b", "+object_storage.options.secret=abc"], "is a secret"),
        (
            ["object_storage.to=s3://b", "+object_storage.options.client_kwargs.password=abc"],
            "object_storage.options.client_kwargs.password: is a secret",
        ),
        (["object_storage.to=file:///a", "+object_storage.options.anon=true"], "takes none"),
        (["object_storage.to=s3://b", "object_storage.keep=0"], "object_storage.keep"),
        (["object_storage.to=s3://b", "object_storage.wait=soon"], "accepted is a time such as"),
    ],
)
def test_what_is_refused(tmp_path: Path, arguments: list[str], expected: str) -> None:
    code, said = _plan(tmp_path, *arguments)
    assert code == 2
    assert expected in said


def test_a_command_whose_saves_would_not_be_copied_is_refused(tmp_path: Path) -> None:
    code, said = _plan(tmp_path, "object_storage.to=s3://b", entry="[python, train.py]")
    assert code == 2
    assert "the entry is a command, whose own saves would not be copied" in said


def test_without_the_library_submission_says_what_to_install(tmp_path: Path) -> None:
    _plan(tmp_path)
    spec, root = str(tmp_path / "e.yaml"), tmp_path / "root"
    venv.create(tmp_path / "bare", with_pip=False)
    to, bare = "object_storage.to=s3://b", f"environment.python={tmp_path}/bare/bin/python"
    answer = command.hpcrun("submit", spec, to, bare, "--root", root)
    assert answer.returncode == 2
    assert "which object_storage.to needs" in answer.stderr
    assert "-m pip install" in answer.stderr
    assert "s3fs" in answer.stderr
