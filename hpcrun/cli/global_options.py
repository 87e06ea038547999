"""Options that every command takes, before its name or after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Function = TypeVar("Function", bound=Callable[..., Any])


def global_options(root_variable: str | None) -> Callable[[Function], Function]:
    """Add ``--root``, ``--json``, ``-q``, ``-v`` and ``--no-color``.

    ``root_variable`` is the environment variable that stands for ``--root``.
    """

    def decorate(function: Function) -> Function:
        for option in (
            click.option("--no-color", is_flag=True, help="No colours (NO_COLOR does the same)."),
            click.option("-v", "--verbose", count=True, help="Say more."),
            click.option("-q", "--quiet", is_flag=True, help="Errors only."),
            click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout."),
            click.option(
                "--root",
                type=click.Path(),
                envvar=root_variable,
                help="Where experiments live. Default: HPCRUN_ROOT, else the cluster profile's "
                "root for commands that take a SPEC, and ~/hpcrun-runs for all others.",
            ),
        ):
            function = option(function)
        return function

    return decorate


def value_of(context: click.Context, name: str) -> Any:
    """Return the value of a global option: what was typed after the command, or else before it."""
    before = context.find_root().params.get(name)
    own = context.params.get(name)
    typed = context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    return own if typed or not before else before
