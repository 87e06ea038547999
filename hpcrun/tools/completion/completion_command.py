"""``hpcrun completion``: the completion script of a shell; `completion_answers` answers it."""

from __future__ import annotations

import sys

import click

from hpcrun import resources

_INSTALL = {
    "bash": 'add to ~/.bashrc:  eval "$(hpcrun completion bash)"',
    "zsh": 'add to ~/.zshrc, after compinit:  eval "$(hpcrun completion zsh)"',
    "fish": "hpcrun completion fish > ~/.config/fish/completions/hpcrun.fish",
}


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
