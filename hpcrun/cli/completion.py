"""``hpcrun completion``: the completion script of a shell, and the answers that it asks for."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import shlex
import sys
from collections.abc import Iterator
from typing import Any

import click
from click.shell_completion import (
    CompletionItem,
    ShellComplete,
    add_completion_class,
    split_arg_string,
)

from hpcrun import resources
from hpcrun.text import one_line, shortened

_INSTALL = {
    "bash": 'add to ~/.bashrc:  eval "$(hpcrun completion bash)"',
    "zsh": 'add to ~/.zshrc, after compinit:  eval "$(hpcrun completion zsh)"',
    "fish": "hpcrun completion fish > ~/.config/fish/completions/hpcrun.fish",
}
# Seconds that an answer to TAB may take.
PATIENCE = 2.0
# A word to which more is added, so that no space follows it.
PART = "part"
# What a shell that is given it unquoted takes as one word, and executes nothing of.
_SAFE = re.compile(r"[\w.+,/=@:%-]+", re.ASCII)
# The same of a condition: < and > are quoted by zsh, fish and bash's script; in quotes that were
# typed, blanks and brackets are part of a word too.
_CONDITION = re.compile(r"[\w.+,/=@:%<>-]+", re.ASCII)
_QUOTED = re.compile(r"[\w.+,/=@:%<> ()-]+", re.ASCII)
_CURSOR = "\x1f"
_LONGEST_HELP = 60


class Condition(CompletionItem):
    """A part of a condition such as ``lr>=1e-3``."""


def is_in_quotes(line: str) -> bool:
    """Check whether a line ends inside quotes."""
    lexer: Any = shlex.shlex(line, posix=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        list(lexer)
    except ValueError:
        return bool(lexer.state in ("'", '"'))
    return False


class _Answer(ShellComplete):
    """One row an answer: its kind, the word and what it is about, with tabs between.

    Kinds are ``plain``, `PART`, and ``yaml`` and ``file``, which the shell itself looks for. The
    shell passes its line up to the cursor as COMP_WORDS. bash completes only what comes after the
    last ``=`` or ``:``, and passes that as COMP_CURRENT.
    """

    def get_completion_args(self) -> tuple[list[str], str]:
        words = split_arg_string(os.environ["COMP_WORDS"] + _CURSOR)
        return words[1:-1], words[-1].replace(_CURSOR, "")

    def complete(self) -> str:
        args, incomplete = self.get_completion_args()
        name, equals, _ = incomplete.partition("=")
        head = name + equals if equals and name.startswith("-") else ""
        current = os.environ.get("COMP_CURRENT", incomplete)
        cut = len(incomplete) - len(current) if incomplete.endswith(current) else 0
        safe = _QUOTED if is_in_quotes(os.environ["COMP_WORDS"]) else _CONDITION
        rows = []
        for item in self.get_completions(args, incomplete):
            kind = item.type if item.type in ("plain", PART, "yaml") else "file"
            word = head + str(item.value)
            if kind in ("yaml", "file"):
                rows.append(f"{kind}\t\t")
            elif (safe if isinstance(item, Condition) else _SAFE).fullmatch(word):
                about = shortened(one_line(item.help or ""), _LONGEST_HELP)
                rows.append(f"{kind}\t{word[cut:]}\t{about.replace(chr(9), ' ')}")
        return "\n".join(rows)


for _shell in _INSTALL:
    add_completion_class(type(f"_{_shell}", (_Answer,), {"name": _shell}))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Answer the shell in time or not at all: the person typed TAB, and wants no message."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
        # Ends this process from a thread that needs no lock of Python's.
        faulthandler.dump_traceback_later(PATIENCE, exit=True, file=nowhere)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()


@click.command("completion")
@click.argument("shell", type=click.Choice(list(_INSTALL)))
def command(shell: str) -> None:
    """Print the completion script of SHELL (bash, zsh or fish).

    It completes commands, options, files, names of runs, keys of a spec and their values. Its first
    lines say how it is installed.
    """
    script = resources.directory("templates") / "completion" / f"hpcrun.{shell}"
    click.echo(script.read_text(), nl=False)
    if sys.stdout.isatty():
        click.echo(f"\nhint: {_INSTALL[shell]}", err=True)
