"""The arguments of every command that takes a spec: SPEC, overrides and sweeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Function = TypeVar("Function", bound=Callable[..., Any])


def spec_arguments(function: Function) -> Function:
    """Add ``SPEC [key=value …] [--sweep key=a,b …]``.

    Passes ``spec: str``, ``overrides: tuple[str, ...]`` and ``sweeps: tuple[str, ...]``, as
    ``hpcrun.compile.compile_spec`` takes them.
    """
    decorators = [
        click.argument("spec", metavar="SPEC"),
        click.argument("overrides", nargs=-1, metavar="[key=value | +key=value]..."),
        click.option(
            "--sweep",
            "sweeps",
            multiple=True,
            metavar="key=a,b",
            help="Sweep a key over values; may be given several times.",
        ),
    ]
    decorated: Any = function
    for decorator in reversed(decorators):
        decorated = decorator(decorated)
    return decorated  # type: ignore[no-any-return]
