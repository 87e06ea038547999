"""``hpcrun completion``: the completion script of a shell."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
from collections.abc import Iterator

import click
from click.shell_completion import get_completion_class

from hpcrun.cli.main import COMPLETE, group

_INSTALL = {
    "bash": 'add to ~/.bashrc:  eval "$(hpcrun completion bash)"',
    "zsh": 'add to ~/.zshrc:  eval "$(hpcrun completion zsh)"',
    "fish": "hpcrun completion fish > ~/.config/fish/completions/hpcrun.fish",
}


# Seconds that an answer to TAB may take.
PATIENCE = 2.0


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
    """Print the completion script of SHELL (bash, zsh or fish)."""
    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(group, {}, "hpcrun", COMPLETE).source())
    if sys.stdout.isatty():
        click.echo(f"\nhint: {_INSTALL[shell]}", err=True)
