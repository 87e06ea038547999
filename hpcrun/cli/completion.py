"""``hpcrun completion``: the completion script of a shell."""

from __future__ import annotations

import sys

import click
from click.shell_completion import get_completion_class

VARIABLE = "_HPCRUN_COMPLETE"

_INSTALL = {
    "bash": 'add to ~/.bashrc:  eval "$(hpcrun completion bash)"',
    "zsh": 'add to ~/.zshrc:  eval "$(hpcrun completion zsh)"',
    "fish": "hpcrun completion fish > ~/.config/fish/completions/hpcrun.fish",
}


@click.command("completion")
@click.argument("shell", type=click.Choice(list(_INSTALL)))
def command(shell: str) -> None:
    """Print the completion script of SHELL (bash, zsh or fish)."""
    from hpcrun.cli.main import group

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(group, {}, "hpcrun", VARIABLE).source())
    if sys.stdout.isatty():
        click.echo(f"\nhint: {_INSTALL[shell]}", err=True)
