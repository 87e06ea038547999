"""SPEC where none is typed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.command import hpcrun
from tests.support.needs_tool import needs_tool
from tests.support.users import STRANGER, needs_root

SPEC = "name: mine\nentry: ['true']\nframework: none\ncluster: local\nconfig: {lr: 1}\n"
DRILL = pytest.param(["drill", "-n", "--fault", "kill-rank"], marks=needs_tool("drill"))


@pytest.mark.parametrize("command", [["plan"], ["submit", "-n"], DRILL], ids=" ".join)
def test_the_spec_of_the_directory_is_taken_and_said(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "experiment.yaml").write_text(SPEC)
    done = hpcrun(*command, root=tmp_path / "root", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("spec: experiment.yaml of this directory\n")
    named = hpcrun(*command, "experiment.yaml", root=tmp_path / "root", cwd=tmp_path)
    assert named.stdout == done.stdout
    assert "of this directory" not in named.stderr


@pytest.mark.parametrize("typed", ["config.lr=3", "+config.new=3", "lr=3"])
def test_key_and_value_may_come_first(typed: str, tmp_path: Path) -> None:
    (tmp_path / "experiment.yaml").write_text(SPEC)
    done = hpcrun("plan", typed, "--sweep", "config.seed=1", cwd=tmp_path)
    assert done.returncode == 2
    assert "there is no key config.seed" in done.stderr
    done = hpcrun("plan", typed, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "3" in done.stdout


def test_a_file_of_such_a_name_is_a_spec(tmp_path: Path) -> None:
    (tmp_path / "lr=3.yaml").write_text(SPEC)
    (tmp_path / "experiment.yaml").write_text("entry: 3")
    assert hpcrun("plan", "lr=3.yaml", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize("typed", [[], ["config.lr=3"]], ids=str)
def test_without_one_the_next_step_is_named(typed: list[str], tmp_path: Path) -> None:
    done = hpcrun("submit", *typed, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "error: no SPEC was typed" in done.stderr
    assert f"no experiment.yaml in {tmp_path}" in done.stderr
    assert "hint: `hpcrun init` writes one" in done.stderr
    # A directory of that name is none, nor is what is typed wrongly in its place.
    (tmp_path / "experiment.yaml").mkdir()
    assert hpcrun("submit", *typed, cwd=tmp_path).returncode == 2


@needs_root
def test_nobody_runs_what_somebody_else_has_put_there(tmp_path: Path) -> None:
    spec = tmp_path / "experiment.yaml"
    spec.write_text(SPEC)
    shutil.chown(spec, STRANGER.uid)
    done = hpcrun("plan", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"is {STRANGER.name}'s, whose code you would run" in done.stderr
    assert hpcrun("plan", "./experiment.yaml", cwd=tmp_path).returncode == 0
