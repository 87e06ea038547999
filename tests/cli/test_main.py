"""What holds for every command."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from hpcrun.cli import commands
from hpcrun.cli.main import group, main
from tests.support.command import argv, hpcrun
from tests.support.experiment import Experiment
from tests.support.needs_tool import needs_tool
from tests.support.waiting import until


def test_a_reader_that_leaves_early_is_no_failure() -> None:
    command = f"{sys.executable} -m hpcrun plan language-model cluster=local --json | true"
    done = subprocess.run(
        ["bash", "-c", f'{command}; exit "${{PIPESTATUS[0]}}"'],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_ctrl_c_while_modules_are_read_shows_no_traceback(tmp_path: Path) -> None:
    slow = (
        f"import pathlib, time\npathlib.Path({str(tmp_path / 'begun')!r}).touch()\ntime.sleep(60)"
    )
    (tmp_path / "click.py").write_text(slow)
    places = os.pathsep.join([str(tmp_path), *sys.path])
    process = subprocess.Popen(
        [sys.executable, "-m", "hpcrun", "list"],
        env={**os.environ, "PYTHONPATH": places},
        stderr=subprocess.PIPE,
    )
    until((tmp_path / "begun").exists)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[1] == b""
    assert process.returncode == -signal.SIGINT


def test_ctrl_c_while_a_class_is_made_is_no_bug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load(_name: str) -> click.Command:
        raise RuntimeError("Error calling __set_name__") from KeyboardInterrupt()

    monkeypatch.setattr(commands, "load", load)
    with pytest.raises(SystemExit) as left:
        main(["list"])
    assert (left.value.code, capsys.readouterr().err) == (130, "interrupted\n")


def test_a_misspelt_command_is_answered_with_the_near_one() -> None:
    done = hpcrun("statsu")
    assert done.returncode == 2
    assert "Did you mean 'status'?" in done.stderr


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        *((name, "cancel") for name in ("kill", "scancel", "stop", "cancle")),
        *((name, "status") for name in ("ps", "squeue", "staus")),
        *(("ls", "list"), ("tail", "logs"), ("sacct", "why"), ("rm", "delete")),
        *((name, "requeue") for name in ("resume", "restart")),
        *((name, "submit") for name in ("launch", "start", "sbatch")),
        pytest.param("drll", "drill", marks=needs_tool("drill")),
        ("man", "help"),
    ],
)
def test_what_other_programs_call_it_is_understood(typed: str, meant: str) -> None:
    with pytest.raises(click.UsageError) as error:
        group.resolve_command(click.Context(group), [typed])
    assert f"Did you mean '{meant}'? {commands.own_commands()[meant].about}" in str(error.value)


@pytest.mark.parametrize("typed", ["fill", "grill", "clear", "leave", "chancellor"])
def test_no_command_that_hurts_is_suggested_for_a_word_that_is_only_similar(typed: str) -> None:
    with pytest.raises(click.UsageError, match=f"no command '{typed}'") as error:
        group.resolve_command(click.Context(group), [typed])
    assert not re.search("Did you mean '(cancel|clean|drill|requeue)'", str(error.value))


def test_global_options_before_or_after_the_command(tmp_path: Path) -> None:
    for name in ("one", "two"):
        Experiment(tmp_path / name, name).submit((0,))
    there = ["--root", str(tmp_path / "one"), "--json"]
    after = hpcrun("list", *there)
    assert [found["name"] for found in json.loads(after.stdout)] == ["one"]
    # What is typed wins over the variable; what is typed last, over what was typed first.
    assert hpcrun(*there, "list", root=tmp_path / "two").stdout == after.stdout
    assert hpcrun("--root", str(tmp_path / "two"), "list", *there).stdout == after.stdout
    nothing = ["--root", str(tmp_path / "none")]
    assert "no experiments under" in hpcrun(*nothing, "list").stderr
    assert hpcrun("-q", *nothing, "list").stderr == ""


def test_closed_streams_are_no_failure_and_no_other_file(tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text("entry: ['true']\ncluster: local\n")
    for closed in (">&-", "<&- >&- 2>&-", "<&-"):
        command = f"{shlex.join(argv('plan', str(spec)))} {closed}"
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), closed
        assert ("experiment  spec" in done.stdout) == (">" not in closed)
    command = f"{shlex.join(argv('plan', str(tmp_path / 'none')))} >&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "there is no spec" in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "named"),
    [
        (["status", "nothing", "--json"], 2, "message"),
        (["--json", "plan", "nothing.yaml"], 2, "hint"),
        (["logs", "--nope", "--json"], 2, "message"),
        (["plan", "hello", "nodes=two", "--json"], 2, "problems"),
    ],
)
def test_an_error_is_json_where_json_is_asked_for(
    words: list[str], code: int, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*words, "--root", str(tmp_path)])
    told = capsys.readouterr()
    error = json.loads(told.err.splitlines()[-1])["error"]
    assert (ended.value.code, told.out) == (code, "")
    assert error["exit_code"] == code
    assert error[named]
