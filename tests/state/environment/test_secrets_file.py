"""The reader of the file of secrets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcrun.errors import HpcrunError
from hpcrun.state.environment import secrets_file


def _secrets(tmp_path: Path, text: str, mode: int = 0o600) -> str:
    path = tmp_path / "secrets"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_secrets_are_read(tmp_path: Path) -> None:
    text = "# mine\n\nA=1\nexport B = 'two words'\nC=\"x=y\"\nD=\nE='\n"
    expected = {"A": "1", "B": "two words", "C": "x=y", "D": "", "E": "'"}
    assert secrets_file.read(_secrets(tmp_path, text)) == expected
    assert secrets_file.read(None) == {}


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = _secrets(tmp_path, "TOKEN=hidden", mode)
    with pytest.raises(HpcrunError, match="can be read by others") as caught:
        secrets_file.read(path)
    assert f"chmod 600 {path}" in str(caught.value)


@pytest.mark.parametrize("line", ["hidden", "=hidden", "A B=hidden", "1A=hidden"])
def test_a_line_that_is_none_is_named_but_not_shown(tmp_path: Path, line: str) -> None:
    path = _secrets(tmp_path, f"A=1\n{line}\n")
    with pytest.raises(HpcrunError) as caught:
        secrets_file.read(path)
    assert f"{path}:2 is not NAME=value" in str(caught.value)
    assert "hidden" not in str(caught.value)


def test_a_file_that_is_not_on_this_node(tmp_path: Path) -> None:
    with pytest.raises(HpcrunError, match=f"cannot be read on {os.uname().nodename}: No such"):
        secrets_file.read(str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("data", "reason"),
    [(b"A=1\nB=\xff\n", ":2 is not UTF-8"), (b"A=x\0y", ":1 is not NAME=value")],
)
def test_bytes_that_no_environment_takes(tmp_path: Path, data: bytes, reason: str) -> None:
    path = Path(_secrets(tmp_path, ""))
    path.write_bytes(data)
    with pytest.raises(HpcrunError) as caught:
        secrets_file.read(str(path))
    assert str(caught.value) == f"environment.secrets_file: {path}{reason}"
