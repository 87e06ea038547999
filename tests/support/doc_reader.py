"""A reader of the documentation, with an empty directory, who types what it shows."""

from __future__ import annotations

import io
import os
import pty
import re
import shlex
import subprocess
import sys
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpcrun.cli import main
from hpcrun.resources import configs
from tests.support.doc_blocks import Block
from tests.support.experiment import slurm_shim
from tests.support.operators import PATH
from tests.support.slurm_shim import Shim

_RECORDED = Path(__file__).parent.parent / "site" / "recorded"
# What a page writes for what is the reader's own: each is this here.
OWN = {"/path/to/venv/bin/python": sys.executable, "/shared/team": "{home}/hpcrun-runs"}
# Commands that start programs get a process of their own, as they do in a shell.
_STARTS = {"drill", "requeue", "run", "submit"}
# A laptop has no Slurm: with one on PATH, these would still not use it.
_HERE = {"drill", "run"}
_PLAIN = re.compile(r"(cd ~)?[\w\s./:=,+@%-]*")
_QUOTED = re.compile(r"""'[^']*'|"[^"$`\\]*\"""")
# What a fragment of a spec is added to, and the program of whoever shows none.
PROGRAM = "def train(session):\n    pass\n"
BASE = """\
name: base
entry: train.py
flags: key=value
config: {lr: 1.0e-3, seed: 0, model: {layers: 2}, total_steps: 100}
deepspeed: {train_batch_size: 32, zero_optimization: {stage: 1}}
resources: {nodes: 2, time: "01:00:00"}
"""


class _Typed(io.TextIOWrapper):
    """A terminal's input, on which somebody has typed yes."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(b"y\n" * 10))

    def isatty(self) -> bool:
        return True


@dataclass(frozen=True)
class Answer:
    """What a command said, on both streams, and its exit code."""

    code: int
    output: str


class Reader:
    """Types lines in a directory of their own.

    Attributes
    ----------
    directory, home
        Where the lines are typed, and HOME.
    programs
        Where ``hpcrun`` lies, as on PATH.
    heard
        What the lines of the last block of a shell have printed.
    """

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory, self.home, self.programs = place / "here", place / "home", place / "bin"
        self._slurm = place / "slurm"
        for path in (self.directory, self.home, self.programs, self._slurm):
            path.mkdir(parents=True)
        slurm_shim(self._slurm)
        Shim(self._slurm).answer("sbatch", {"out": "Submitted batch job 100\n"})
        self._program(self.programs, "hpcrun", f'exec {sys.executable} -m hpcrun "$@"')
        self._program(self.programs, "curl", 'printf "%s\\n" "$@"')
        for name in [name for name in os.environ if name.startswith(("HPCRUN_", "SLURM_"))]:
            if name != "HPCRUN_PROGRESS":
                monkeypatch.delenv(name)
        monkeypatch.setenv("HOME", str(self.home))
        monkeypatch.setenv("USER", "ada")
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.chdir(self.directory)
        self._patch = monkeypatch
        self.heard = ""

    def has_cluster(self) -> None:
        """Have Slurm describe the cluster as a real one did."""
        for program, what in (("scontrol", "controller"), ("sacctmgr", "accounting")):
            text = (_RECORDED / f"{what}-24.11.txt").read_text()
            Shim(self._slurm).answer(program, {"out": text})

    def _program(self, directory: Path, name: str, text: str) -> None:
        (directory / name).write_text(f"#!/bin/sh\n{text}\n")
        (directory / name).chmod(0o755)

    def write(self, file: str, text: str) -> Path:
        """Save what a page shows as a file; what is for all users of a machine, for this one."""
        file = file.replace("/etc/hpcrun/", "~/.config/hpcrun/")
        path = self.home / file[2:] if file.startswith("~/") else self.directory / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self._own(text))
        if text.startswith("#!"):
            path.chmod(0o755)
        return path

    def save(self, block: Block) -> Path:
        """Save a block that is a file, or more of one."""
        assert block.file
        before = self.directory / block.file
        text = before.read_text() + block.text if block.adds else block.text
        return self.write(block.file, text)

    def _own(self, text: str) -> str:
        for word, own in OWN.items():
            text = text.replace(word, own.format(home=self.home))
        return text

    def lay_out(self, spec: dict[str, Any]) -> None:
        """Make the files that a spec names and no page shows."""
        entry = spec.get("entry") or []
        words = [entry.partition(":")[0]] if isinstance(entry, str) else entry
        config = str(spec.get("deepspeed_config") or "")
        files = [str(word) for word in words if re.fullmatch(r"[\w/.-]+\.(py|sh)", str(word))]
        wanted = {name: PROGRAM if name.endswith(".py") else "" for name in files}
        if config and config not in configs("deepspeed"):
            wanted[config] = '{"train_batch_size": "auto"}\n'
        for name, text in wanted.items():
            if not (self.directory / name).exists():
                self.write(name, text)
        for name in (spec.get("code") or {}).get("link") or []:
            (self.directory / name).mkdir(parents=True, exist_ok=True)

    def plan(self, path: Path) -> Answer:
        """Plan a spec, or with a profile of a cluster the smallest of specs."""
        data = yaml.safe_load(path.read_text())
        if path.parent.name == "clusters":
            self.write("base.yaml", BASE)
            self.write("train.py", PROGRAM)
            return self.type(f"hpcrun plan base.yaml cluster={path.stem}")
        self.lay_out(data)
        return self.type(f"hpcrun plan {shlex.quote(path.name)}")

    def fragment(self, text: str) -> Path:
        """Save a part of a spec, added to the smallest of specs."""
        self.lay_out(yaml.safe_load(BASE))
        self.write("base.yaml", BASE)
        return self.write("fragment.yaml", f"extends: base.yaml\nname: fragment\n{text}")

    def type(self, line: str) -> Answer:
        """Type a line into bash; hpcrun alone, and with plain words, needs no process."""
        line = self._own(line)
        words = shlex.split(line) if _PLAIN.fullmatch(_QUOTED.sub("", line)) else []
        if words[:1] == ["cd"]:
            self.directory /= words[1].replace("~", str(self.home))
            self._patch.chdir(self.directory)
            return Answer(0, "")
        command = words[1] if words[:1] == ["hpcrun"] and len(words) > 1 else ""
        programs = [self.programs] if command in _HERE else [self.programs, self._slurm]
        self._patch.setenv("PATH", os.pathsep.join([*map(str, programs), PATH]))
        if command and command not in _STARTS:
            return _in_process(words)
        return self._in_bash(line)

    def _in_bash(self, line: str) -> Answer:
        ours, theirs = pty.openpty()
        os.write(ours, b"y\n" * 10)
        try:
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", line],
                **{"stdin": theirs, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT},
                **{"text": True, "timeout": 240, "check": False},
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        finally:
            os.close(ours)
            os.close(theirs)
        return Answer(done.returncode, done.stdout)


def _in_process(words: list[str]) -> Answer:
    printed = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    code: Any = 0
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", words)
        patch.setattr(sys, "stdin", _Typed())
        stack.enter_context(redirect_stdout(printed))
        stack.enter_context(redirect_stderr(printed))
        try:
            # Not `main.main`, which sets up the process for one command.
            main._main(words[1:])
        except SystemExit as end:
            code = end.code
    assert isinstance(printed.buffer, io.BytesIO)
    return Answer(int(code or 0), printed.buffer.getvalue().decode())
