"""This machine's processes and user."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from hpcrun.host import current_user, expand_home, process_stat, start_ticks


def test_a_process_is_known_by_its_start() -> None:
    before = start_ticks(os.getpid())
    with subprocess.Popen(["sleep", "60"]) as child:
        assert before is not None
        assert (start_ticks(child.pid) or 0) >= before
        child.kill()
        child.wait()
        assert start_ticks(child.pid) is None


def test_a_name_may_hold_anything(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("12 (a) b (c)) S 1 12\n")
    assert process_stat(tmp_path) == ["S", "1", "12"]


def test_a_user_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: (_ for _ in ()).throw(KeyError("uid")))
    assert current_user() == str(os.getuid())


def test_homes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    assert expand_home("~/x") == Path("/home/ada/x")
    assert expand_home("a/~") == Path("a/~")
    # `Path.expanduser` would raise.
    assert expand_home("~nobody-of-this-name/x") == Path("~nobody-of-this-name/x")
