"""``hpcrun help``, the examples in each command's help, and what their options are called."""

from __future__ import annotations

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
from hpcrun.cli.examples import EXAMPLES
from hpcrun.cli.help import TOPICS
from hpcrun.cli.main import COMMANDS, GROUPS, group
from tests.support.command import argv, hpcrun
from tests.support.experiment import Experiment, path_with, slurm_shim

LINES = [line for examples in EXAMPLES.values() for line in examples]
# Examples that are parsed and not run, and why.
NOT_RUN = {
    "hpcrun submit finetune.yaml": "starts runs: tests/cli/test_submit.py",
    "hpcrun submit finetune.yaml --only failed": "starts runs: tests/cli/test_submit.py",
    "hpcrun run hello": "starts a run: tests/test_packaging.py",
    "hpcrun run finetune.yaml config.lr=3e-4": "starts a run: tests/cli/test_submit.py",
    "hpcrun requeue finetune/0": "starts a run: tests/cli/test_requeue.py",
    "hpcrun drill finetune.yaml --fault kill-rank": "takes a minute: tests/cli/test_drill.py",
    "hpcrun list --root /shared/team": "another root than that of the test",
    "hpcrun logs -f": "ends with the runs: tests/cli/test_logs.py",
    "hpcrun top": "needs a terminal: tests/cli/test_top.py",
    "hpcrun top finetune --where config.lr=3e-4": "needs a terminal: tests/cli/test_top.py",
    'eval "$(hpcrun completion bash)"': "a shell's: tests/cli/test_completion.py",
}


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a spec, and a root in which it has run."""
    desk = tmp_path_factory.mktemp("desk")
    (desk / "finetune.yaml").write_text(
        "name: finetune\nentry: ['true']\ncluster: local\nconfig: {lr: 1.0e-3, seed: 0}\n"
    )
    done = Experiment(desk / "root", "finetune")
    done.submit((0, 1), swept={0: {"config.lr": 1e-3}, 1: {"config.lr": 3e-4}})
    for run in (0, 1):
        done.start(run, job_id=f"100_{run}")
        done.metrics(run, 1, [1, 2], loss=0.5)
        done.log(run, 1, 0, "Error: none\n")
    done.end(0)
    done.end(1, outcome="failed", kind="out_of_memory")
    slurm_shim(desk / "shim")
    return desk


def _command(name: str) -> click.Command:
    found = group.get_command(click.Context(group), name)
    assert found is not None
    return found


def test_every_command_is_in_a_group_and_has_an_example() -> None:
    assert sum(map(len, GROUPS.values())) == len(COMMANDS)
    assert EXAMPLES.keys() == COMMANDS.keys()
    assert [
        name for name, of in EXAMPLES.items() if not any(f"hpcrun {name}" in o for o in of)
    ] == []


def _above() -> click.Context:
    """The group's context: a command keeps the help option of the first context that it sees."""
    return click.Context(group, info_name="hpcrun", **group.context_settings)


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith("hpcrun")])
def test_an_example_is_understood(line: str) -> None:
    _, name, *arguments = shlex.split(line)
    with _command(name).make_context(name, arguments, parent=_above()) as context:
        assert context.params


@pytest.mark.parametrize("line", [line for line in LINES if line not in NOT_RUN])
def test_an_example_runs(line: str, desk: Path) -> None:
    shim = {"PATH": path_with(desk / "shim")}
    done = hpcrun(*shlex.split(line)[1:], root=desk / "root", cwd=desk, env=shim)
    assert done.returncode == 0, done.stderr
    assert done.stdout + done.stderr


def test_only_what_is_an_example_is_excused() -> None:
    assert NOT_RUN.keys() <= set(LINES)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_the_examples(name: str) -> None:
    command = _command(name)
    text = command.get_help(click.Context(command, info_name=name, parent=_above()))
    for line, what in EXAMPLES[name].items():
        assert f"  {line}" in text
        assert what in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_short_option_means_one_thing() -> None:
    long: dict[str, set[str]] = defaultdict(set)
    for name in COMMANDS:
        for option in _command(name).params:
            for opt in option.opts:
                if re.fullmatch("-[A-Za-z]", opt):
                    long[opt].add(option.opts[-1])
    assert {"-n", "-f", "-w", "-W", "-y", "-o", "-s", "-t"} <= long.keys()
    assert {short: names for short, names in long.items() if len(names) > 1} == {}


def test_help_lists_commands_and_topics() -> None:
    done = hpcrun("help")
    assert done.returncode == 0
    for name in (*GROUPS, *COMMANDS, *TOPICS):
        assert re.search(rf"^ *{name}\b", done.stdout, re.MULTILINE), name


def test_help_of_a_command_is_its_help() -> None:
    assert hpcrun("help", "submit").stdout == hpcrun("submit", "--help").stdout != ""


@pytest.mark.parametrize("topic", TOPICS)
def test_a_topic_is_a_page(topic: str) -> None:
    page = resources.directory("docs") / f"{TOPICS[topic][0]}.md"
    assert page.is_file()
    assert topic not in COMMANDS


def test_a_page_in_a_pipe_and_by_the_name_of_its_file() -> None:
    done = hpcrun("help", "specs")
    assert done.stdout.startswith("# Specs\n")
    assert "resources.nodes" in done.stdout
    assert hpcrun("help", "spec.md").stdout == done.stdout


def test_an_unknown_topic_is_answered_with_the_near_one() -> None:
    done = hpcrun("help", "glosary")
    assert done.returncode == 2
    assert "did you mean 'hpcrun help glossary'?" in done.stderr
    assert "recovery" in done.stderr


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
