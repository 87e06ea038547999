"""Options and output of every command: data goes to stdout, messages to stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Output:
    """The common options of a command."""

    root: Path | None
    """Where experiments live, from ``--root`` or HPCRUN_ROOT; None leaves it to the profile of the
    spec, and is ~/hpcrun for commands that read."""
    json: bool
    """Print one JSON document on stdout instead of text."""
    verbosity: int
    """-1 quiet, 0 normal, 1 and more verbose."""
    color: bool
    """Allow ANSI colours on stdout."""

    def say(self, message: str) -> None:
        """Print a message on stderr, unless ``-q`` was given."""
        if self.verbosity >= 0:
            click.echo(message, err=True)

    def data(self, value: Any) -> None:
        """Print a JSON document on stdout."""
        click.echo(json.dumps(value, indent=2, default=str))


def command_line() -> list[str]:
    """Return the command as it was typed, for the record."""
    return [Path(sys.argv[0]).name, *sys.argv[1:]]


def common(function: Function) -> Function:
    """Add ``--root``, ``--json``, ``-q``, ``-v`` and ``--no-color``; pass ``output: Output``."""

    def wrapper(
        *args: Any,
        root: Path | None,
        as_json: bool,
        quiet: bool,
        verbose: int,
        no_color: bool,
        **kwargs: Any,
    ) -> Any:
        color = sys.stdout.isatty() and not no_color and "NO_COLOR" not in os.environ
        output = Output(
            root=Path(os.path.realpath(root.expanduser())) if root else None,
            json=as_json,
            verbosity=-1 if quiet else verbose,
            color=color,
        )
        return function(*args, output=output, **kwargs)

    wrapper.__doc__ = function.__doc__
    wrapper.__name__ = function.__name__
    for name in ("__click_params__",):
        if hasattr(function, name):
            setattr(wrapper, name, getattr(function, name))
    decorators = [
        click.option(
            "--root",
            type=click.Path(path_type=Path),
            envvar="HPCRUN_ROOT",
            help="Where experiments live. Default: HPCRUN_ROOT, else the cluster profile's root "
            "for commands that take a SPEC, and ~/hpcrun for all others.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout."),
        click.option("-q", "--quiet", is_flag=True, help="Errors only."),
        click.option("-v", "--verbose", count=True, help="Say more."),
        click.option("--no-color", is_flag=True, help="No colours (NO_COLOR does the same)."),
    ]
    decorated: Any = wrapper
    for decorator in reversed(decorators):
        decorated = decorator(decorated)
    return decorated  # type: ignore[no-any-return]
