"""``hpcrun help``, each command's help with its examples, and what options are called."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import subprocess
from collections import defaultdict
from pathlib import Path

import click
import pytest

from hpcrun import resources
from hpcrun.cli import commands
from hpcrun.cli.help import _TOPICS, parts, topics
from hpcrun.cli.main import group
from hpcrun.command import GROUPS
from tests.support.command import argv, hpcrun

LINES = [line for one in commands.own_commands().values() for line in one.examples]


def _command(name: str) -> click.Command:
    found = group.get_command(click.Context(group), name)
    assert found is not None
    return found


def test_every_command_is_in_a_group_and_has_an_example() -> None:
    every = commands.own_commands()
    assert sum(map(len, commands.groups().values())) == len(every)
    assert [
        one.name
        for one in every.values()
        if not any(f"hpcrun {one.name}" in line for line in one.examples)
    ] == []


def _above() -> click.Context:
    """The group's context: a command keeps the help option of the first context that it sees."""
    return click.Context(group, info_name="hpcrun", **group.context_settings)


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith("hpcrun")])
def test_an_example_is_understood(line: str) -> None:
    _, name, *arguments = shlex.split(line.partition(" > ")[0])
    with _command(name).make_context(name, arguments, parent=_above()) as context:
        assert context.params


@pytest.mark.parametrize("name", commands.own_commands())
def test_help_shows_the_examples(name: str) -> None:
    command = _command(name)
    text = command.get_help(click.Context(command, info_name=name, parent=_above()))
    for line, what in commands.own_commands()[name].examples.items():
        assert f"  {line}" in text
        assert what in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_short_option_means_one_thing() -> None:
    long: dict[str, set[str]] = defaultdict(set)
    for name in commands.own_commands():
        for option in _command(name).params:
            for opt in option.opts:
                if re.fullmatch("-[A-Za-z]", opt):
                    long[opt].add(option.opts[-1])
    assert {"-n", "-f", "-w", "-W", "-y", "-s", "-t"} <= long.keys()
    assert {short: names for short, names in long.items() if len(names) > 1} == {}


def test_help_lists_commands_and_topics() -> None:
    done = hpcrun("help")
    assert done.returncode == 0
    titles = [f"Topics, {part.lower()}" for part in parts()]
    for name in (*GROUPS, *commands.own_commands(), *titles, *topics()):
        assert re.search(rf"^ *{name}\b", done.stdout, re.MULTILINE), name


def test_help_of_a_command_is_its_help() -> None:
    assert hpcrun("help", "submit").stdout == hpcrun("submit", "--help").stdout != ""


@pytest.mark.parametrize("topic", topics())
def test_a_topic_is_a_page(topic: str) -> None:
    page = resources.directory("docs") / f"{topics()[topic][0]}.md"
    assert page.is_file()
    assert topic not in commands.own_commands()


def test_a_page_has_one_topic() -> None:
    pages = [stem for stem, _ in topics().values()]
    assert len(pages) == len(set(pages))
    assert _TOPICS.keys() <= set(pages)


def test_a_page_in_a_pipe_and_by_the_name_of_its_file() -> None:
    done = hpcrun("help", "specs")
    assert done.stdout.startswith("# Specs\n")
    assert "resources.nodes" in done.stdout
    assert hpcrun("help", "spec.md").stdout == done.stdout


def test_an_unknown_topic_is_answered_with_the_near_one() -> None:
    assert "(hpcrun help glossary)" in hpcrun("help", "glosary").stdout.splitlines()[0]
    nothing = hpcrun("help", "--json", "xyzzyx")
    assert (nothing.returncode, nothing.stdout) == (2, "")
    assert json.loads(nothing.stderr)["error"]["hint"] == "hpcrun help lists all"


def test_a_page_on_a_terminal_is_paged(tmp_path: Path) -> None:
    pager = tmp_path / "pager"
    pager.write_text("#!/bin/sh\necho paged\ncat\n")
    pager.chmod(0o755)
    ours, theirs = pty.openpty()
    program = subprocess.Popen(
        argv("help", "glossary"),
        **{"stdin": theirs, "stdout": theirs, "stderr": theirs, "close_fds": True},
        env={**os.environ, "PAGER": str(pager), "TERM": "xterm", "COLUMNS": "80"},
    )
    os.close(theirs)
    seen = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # Linux: nobody has the other end any more
            break
        seen += part
        if not part:
            break
    os.close(ours)
    assert program.wait(60) == 0
    assert seen.startswith(b"paged")
    assert b"straggler" in seen
    assert b"| straggler |" not in seen
