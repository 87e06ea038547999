"""``hpcrun completion``: what TAB gives at a prompt of bash, zsh and fish, in a real terminal."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcrun.compile.spec import profile_files
from hpcrun.state import permissions
from hpcrun.tools.completion import completion_answers
from hpcrun.tools.completion.completion_answers import COMPLETERS
from tests.support.command import hpcrun
from tests.support.experiment import Experiment
from tests.support.waiting import until

SHELLS = {
    "bash": ["bash", "--norc", "--noprofile"],
    "zsh": ["zsh", "-f"],
    "fish": ["fish", "--no-config"],
}
BEGIN = {
    "bash": "PS1='READY> '; eval \"$(hpcrun completion bash)\"",
    "zsh": "PS1='READY> '; autoload -U compinit; compinit -D -u; eval \"$(hpcrun completion zsh)\"",
    "fish": "set -g fish_autosuggestion_enabled 0; "
    "function fish_prompt; echo -n 'READY> '; end; hpcrun completion fish | source",
}
SPEC = """\
name: finetune
entry: ['true']
cluster: site
framework: none
config: {learning_rate: 3.0e-4, verbose: true, model: {depth: 2}}
"""


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """A directory with a spec, files with odd names, a profile, a root, and hpcrun on PATH."""
    desk = tmp_path / "desk"
    (desk / "configs" / "clusters").mkdir(parents=True)
    (desk / "finetune.yaml").write_text(SPEC)
    (desk / "my spec.yaml").write_text(SPEC)
    (desk / "notes.txt").write_text("")
    (desk / "$(touch pwned).yaml").write_text(SPEC)
    (desk / "configs" / "clusters" / "site.yaml").write_text("resources: {partition: gpu-a100}\n")
    for name in ("study", "stability"):
        swept = {1: {"config.lr": 1e-3}, 2: {"config.lr": 3e-4}}
        experiment = Experiment(tmp_path / "root", name)
        tags = {"tags": ["good", "wip"]} if name == "study" else {}
        experiment.submit((1, 2), swept=swept, spec=tags)
        experiment.start(1)
        experiment.metrics(1, 1, range(3), **{"loss": 0.5, "eval/acc": 0.9})
    kept = {"resources.partition": ["gpu-a100", "short"], "resources.constraint": ["a100", "h100"]}
    reach = [os.uname().nodename, ""]
    (tmp_path / "cache" / "hpcrun").mkdir(parents=True)
    names = tmp_path / "cache" / "hpcrun" / "site-names.json"
    names.write_text(json.dumps({"reach": reach, "names": kept}))
    (tmp_path / "other.yaml").write_text(SPEC.replace("finetune", "study"))
    (tmp_path / "root" / "$(touch pwned)").mkdir()
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "hpcrun"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m hpcrun "$@"\n')
    program.chmod(0o755)
    return desk


def answers(line: str, desk: Path, shell: str = "zsh", **variables: str) -> list[str]:
    """The words that a shell is offered for a line up to the cursor; ``<yaml>`` for files."""
    asked = {"COMP_WORDS": line, "_HPCRUN_COMPLETE": f"{shell}_complete", **variables}
    asked |= {"XDG_CACHE_HOME": str(desk.parent / "cache"), "SLURM_CONF": ""}
    done = hpcrun(root=desk.parent / "root", cwd=desk, env=asked)
    assert done.stderr == ""
    rows = [row.split("\t") for row in done.stdout.splitlines() if row]
    return [word or f"<{kind}>" for kind, word, _ in rows]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("hpcrun st", ["status", "stacks"]),
        ("hpcrun comp", ["completion"]),
        ("hpcrun cancel zz", []),
        ("hpcrun cancel zz/", []),
        ("hpcrun status st", ["stability", "study", "state=", "step>"]),
        ("hpcrun logs study/", ["study/1", "study/2"]),
        ("hpcrun submit he", ["<yaml>", "hello"]),
        ("hpcrun submit finetune.yaml conf", ["config."]),
        (
            "hpcrun submit finetune.yaml config.",
            ["config.learning_rate=", "config.verbose=", "config.model."],
        ),
        ("hpcrun submit finetune.yaml learn", ["learning_rate="]),
        ("hpcrun submit finetune.yaml learning_rate=", ["learning_rate=3.0e-4"]),
        ("hpcrun plan finetune.yaml config.verbose=f", ["config.verbose=false"]),
        ("hpcrun plan finetune.yaml framework=j", ["framework=jax"]),
        ("hpcrun plan finetune.yaml cluster=s", ["cluster=site", "cluster=slurm"]),
        ("hpcrun plan finetune.yaml resources.part", ["resources.partition="]),
        ("hpcrun plan finetune.yaml partition=", ["partition=gpu-a100", "partition=short"]),
        ("hpcrun plan finetune.yaml resources.constraint=h", ["resources.constraint=h100"]),
        ("hpcrun plan finetune.yaml deepspeed_config=zero3", ["deepspeed_config=zero3", "<file>"]),
        ("hpcrun run finetune.yaml entry=", ["<file>"]),
        ("hpcrun submit finetune.yaml --sweep learn", ["learning_rate="]),
        ("hpcrun submit finetune.yaml -s framework=jax,none", ["framework=jax,none"]),
        ("hpcrun submit finetune.yaml --sweep=framework=li", ["--sweep=framework=lightning"]),
        ("hpcrun submit --on", ["--only"]),
        ("hpcrun submit hello -n --dr", []),
        ("hpcrun --js", ["--json"]),
        ("hpcrun tag study +g", ["+good"]),
        ("hpcrun update study p", ["partition=", "priority="]),
        ("hpcrun update study/1 ti", ["time="]),
        ("hpcrun diff study/1 study/", ["study/1", "study/2"]),
        ("hpcrun diff study/1 study/2 st", []),
        ("hpcrun none st", []),
        ("hpcrun help stat", ["status"]),
        ("hpcrun report -o no", ["<file>"]),
        ("hpcrun completion z", ["zsh"]),
        (
            "hpcrun status study --where ",
            ["state=", "cause=", "attempts>", "step>", "age>", "tag=", "lr=", "metric."],
        ),
        ("hpcrun status study --where l", ["lr=", "loss<"]),
        ("hpcrun status study --where lr=", ["lr=0.001", "lr=0.0003"]),
        ("hpcrun logs --where state=c", ["state=completed", "state=cancelled"]),
        ("hpcrun why study cause=ra", ["cause=rank_crash"]),
        ("hpcrun status study ta", ["tag="]),
        ("hpcrun status study tag=g", ["tag=good"]),
        ("hpcrun results study --filter metric.", ["metric.eval/acc<", "metric.loss<"]),
        ("hpcrun status study lo", ["loss<"]),
        ("hpcrun status study lr", ["lr=", "lr<", "lr>", "lr<=", "lr>="]),
        ("hpcrun status study 'lr>=", ["lr>=0.001", "lr>=0.0003"]),
        ("hpcrun status study state=failed,com", ["state=failed,completed"]),
        ("hpcrun delete study age", ["age<", "age>", "age<=", "age>="]),
        ("hpcrun delete study 'age>3", ["age>30d"]),
        ("hpcrun status study 'state=failed and (at", ["state=failed and (attempts>"]),
        ("hpcrun submit ../other.yaml --only n", ["new"]),
        ("hpcrun submit ../other.yaml --only lr=0.00", ["lr=0.001", "lr=0.0003"]),
        ("hpcrun help reco", ["recovery", "records", "recovery-rules"]),
        ("hpcrun submit 'finetune.yaml' config.m", ["config.model."]),
        ("hpcrun submit none.yaml clu", ["cluster="]),
    ],
)
def test_what_is_offered(line: str, offered: list[str], desk: Path) -> None:
    assert answers(line, desk) == offered


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_says_how_it_is_installed(shell: str) -> None:
    done = hpcrun("completion", shell)
    comment = [line for line in done.stdout.splitlines() if line.startswith("#")]
    assert any(f"hpcrun completion {shell}" in line for line in comment)
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed: tests/testbed/install.sh")
    checked = subprocess.run(
        [shell, "-n"], input=done.stdout, capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")


def test_a_root_before_the_command_is_looked_into(desk: Path) -> None:
    other = Experiment(desk.parent / "other", "another")
    other.submit((0,))
    assert answers(f"hpcrun --root {desk.parent / 'other'} status ", desk) == ["another"]


def test_bash_is_given_what_follows_its_break(desk: Path) -> None:
    line = "hpcrun submit finetune.yaml framework=j"
    assert answers(line, desk, "bash", COMP_CURRENT="j") == ["jax"]
    line = "hpcrun submit finetune.yaml framework=jax,no"
    assert answers(f"{line} -s framework=jax,no", desk, "bash", COMP_CURRENT="jax,no") == [
        "jax,none"
    ]


@pytest.mark.parametrize(
    "text",
    [
        "&a [*a]",
        "extends: finetune.yaml\nconfig: {'$(touch pwned)': 1, fine: '$(touch pwned)', ok: '`a`'}",
        "a: &a {b: 1}\n" + "".join(f"x{n}: &x{n} {{y: *a, z: *a}}\n" for n in range(9)),
        "{" * 5000,
        "\0",
    ],
)
def test_a_hostile_spec_offers_nothing_that_acts(text: str, desk: Path) -> None:
    (desk / "hostile.yaml").write_text(text)
    found = answers("hpcrun submit hostile.yaml ", desk)
    assert "cluster=" in found
    for key in ("config.", "config.fine=", "config.ok="):
        found += answers(f"hpcrun submit hostile.yaml {key}", desk)
    assert [word for word in found if set(word) & set("$(`&; ")] == []


def test_every_completer_is_of_a_parameter_that_a_command_has() -> None:
    known = {
        f"{command}{name}"
        for command, record in completion_answers.known_commands()["commands"].items()
        for name in (one["name"] for one in record["parameters"])
        for command in ("", f"{command} ")
    }
    of_all = {one["name"] for one in completion_answers.known_commands()["options"]}
    assert set(COMPLETERS) - known - of_all == set()
    for place in COMPLETERS.values():
        module, _, function = place.partition(":")
        assert callable(
            getattr(importlib.import_module(f"hpcrun.tools.completion.{module}"), function)
        )


@pytest.mark.parametrize(
    ("words", "values", "open_option"),
    [
        (
            ["submit", "a.yaml", "-s", "b=1,2", "c=3"],
            {"sweeps": ["b=1,2"], "overrides": ["c=3"]},
            "",
        ),
        (["submit", "a.yaml", "-sb=1,2"], {"sweeps": ["b=1,2"]}, ""),
        (["submit", "a.yaml", "-qns"], {"quiet": [""], "dry_run": [""]}, "sweeps"),
        (["submit", "--sweep=b=1", "a.yaml"], {"sweeps": ["b=1"], "spec": ["a.yaml"]}, ""),
        (
            ["submit", "--", "-a.yaml", "--sweep"],
            {"spec": ["-a.yaml"], "overrides": ["--sweep"]},
            "",
        ),
        (["--root", "r", "status", "--root=s", "x"], {"root": ["r", "s"], "where": ["x"]}, ""),
        (["diff", "a", "b", "c"], {"before": ["a"], "after": ["b"]}, ""),
        (["status", "--none", "x", "-"], {"where": ["x", "-"]}, ""),
        (["none", "x"], {}, ""),
    ],
)
def test_a_line_is_read_as_its_command_reads_it(
    words: list[str], values: dict[str, list[str]], open_option: str
) -> None:
    line = completion_answers.read_line(words, completion_answers.known_commands())
    assert {name: line.values.get(name) for name in values} == values
    assert (line.open_option.name if line.open_option else "") == open_option


@pytest.mark.parametrize(
    ("line", "words", "is_in_quotes"),
    [
        ("a b", ["a", "b"], False),
        ("a 'b c", ["a", "b c"], True),
        ('a "b', ["a", "b"], True),
        ("a b\\", ["a", "b"], False),
        ("a b\\ c", ["a", "b c"], False),
        ("a '' b", ["a", "", "b"], False),
    ],
)
def test_a_line_is_split_as_a_shell_does(line: str, words: list[str], is_in_quotes: bool) -> None:
    assert completion_answers.split_line(line) == (words, is_in_quotes)


def test_a_variable_left_over_from_a_shell_is_told() -> None:
    done = hpcrun("status", env={"_HPCRUN_COMPLETE": "bash_complete"})
    assert (done.returncode, done.stdout) == (2, "")
    assert "unset _HPCRUN_COMPLETE" in done.stderr


class Prompt:
    """A shell at its prompt, in a terminal of its own."""

    def __init__(self, shell: str, desk: Path) -> None:
        for program in ("tmux", shell):
            if shutil.which(program) is None:
                pytest.skip(f"{program} is not installed: tests/testbed/install.sh")
        self.socket = f"hpcrun-{uuid.uuid4().hex[:12]}"
        environment = {
            **os.environ,
            **{"HPCRUN_ROOT": str(desk.parent / "root"), "HOME": str(desk.parent)},
            "PATH": f"{desk.parent / 'bin'}:{os.environ['PATH']}",
            **{"PYTHONPATH": str(Path.cwd()), "TERM": "xterm", "LC_ALL": "C.UTF-8"},
        }
        start = ["-f", "/dev/null", "new-session", "-d", "-x", "120", "-y", "40", "-c", str(desk)]
        self._tmux(*start, *SHELLS[shell], env=environment)
        self.type(BEGIN[shell], "Enter")
        self.wait_for("READY> ")
        self.type("clear", "Enter")
        until(lambda: self.screen().strip() == "READY>", "an empty screen")

    def _tmux(self, *words: str, env: dict[str, str] | None = None) -> str:
        command = ["tmux", "-L", self.socket, *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout

    def screen(self) -> str:
        return self._tmux("capture-pane", "-p", "-N")

    def type(self, text: str, *keys: str) -> None:
        self._tmux("send-keys", "-l", text)
        for key in keys:
            self._tmux("send-keys", key)

    def wait_for(self, text: str) -> None:
        until(lambda: text in self.screen(), text)

    def tab(self, typed: str, completed: str) -> None:
        """Type a line and TAB: it becomes ``completed``; then empty the line."""
        self.type(typed, "Tab")
        self.wait_for(f"READY> {completed.rstrip()}")
        self._tmux("send-keys", "C-u")
        until(lambda: completed not in self.screen(), "an empty line")

    def close(self) -> None:
        subprocess.run(["tmux", "-L", self.socket, "kill-server"], check=False)


@pytest.fixture(params=list(SHELLS))
def prompt(request: pytest.FixtureRequest, desk: Path) -> Iterator[Prompt]:
    found = Prompt(request.param, desk)
    yield found
    found.close()


def test_tab_at_a_prompt(prompt: Prompt, desk: Path) -> None:
    plan = "hpcrun plan finetune.yaml"
    prompt.tab("hpcrun subm", "hpcrun submit")
    prompt.tab("hpcrun submit fi", "hpcrun submit finetune.yaml")
    prompt.tab("hpcrun submit my", "hpcrun submit my\\ spec.yaml")
    prompt.tab("hpcrun submit conf", "hpcrun submit configs/")
    prompt.tab("hpcrun status stu", "hpcrun status study")
    prompt.tab("hpcrun why study cau", "hpcrun why study cause=")
    prompt.tab("hpcrun why study cause=pree", "hpcrun why study cause=preempted")
    prompt.tab("hpcrun status study 'lr>=0.001", "hpcrun status study 'lr>=0.001'")
    prompt.tab("hpcrun status study los", "hpcrun status study loss\\<")
    both = "hpcrun status study 'lr<1 and sta"
    prompt.tab(both, f"{both}te=")
    prompt.tab("hpcrun results study --filter metric.lo", "hpcrun results study --filter ")
    prompt.tab(f"{plan} config.lea", f"{plan} config.learning_rate=")
    prompt.tab(f"{plan} config.verbose=t", f"{plan} config.verbose=true")
    prompt.tab(f"{plan} -s framework=none,ja", f"{plan} -s framework=none,jax")
    # Files, where a command takes one and where hpcrun knows nothing better.
    prompt.tab("hpcrun report -o no", "hpcrun report -o notes.txt")
    prompt.tab(f"{plan} entry=no", f"{plan} entry=notes.txt")
    assert not list(desk.parent.rglob("pwned"))


def test_profiles_that_a_stranger_laid_beside_a_spec_are_not_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they are not read by the compiler."""
    (tmp_path / "configs" / "clusters").mkdir(parents=True)
    (tmp_path / "configs" / "clusters" / "evil.yaml").write_text("executor: local\n")
    tmp_path.chmod(0o777)
    assert "evil" in profile_files.available(tmp_path)
    monkeypatch.setattr(permissions, "stranger", lambda _path: "mallory")
    assert "evil" not in profile_files.available(tmp_path)
