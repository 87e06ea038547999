"""``hpcrun top``: the state of runs on a live screen, with keys that show and act."""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from hpcrun.cli.options import Output, common
from hpcrun.cli.status import looker
from hpcrun.cli.where import select, where_argument
from hpcrun.errors import UsageError
from hpcrun.text import Say

if TYPE_CHECKING:
    from hpcrun.observe.read.selection import Selected
    from hpcrun.observe.status.status import RunStatus

_INSTALL = "pip install 'hpcrun[top]'"


@dataclass(frozen=True, eq=False)
class _Collected(Output):
    """Collects messages, which would be written across the screen."""

    told: list[str] = field(default_factory=list)

    def say(self, message: str) -> None:
        self.told.append(message)


@click.command("top")
@where_argument
@common
def command(where: tuple[str, ...], conditions: tuple[str, ...], output: Output) -> int:
    """Runs on a live screen: curves, queue, nodes; logs, why, cancel and requeue by keys.

    {where or newest}. ? lists the keys; q leaves, and the runs go on.
    """
    if output.json:
        raise UsageError("top is a screen and has no JSON", hint="hpcrun status --json")
    if importlib.util.find_spec("textual") is None:
        raise UsageError("top needs the library textual, which is not installed", hint=_INSTALL)
    # textual reads keys from stdin, and draws on stderr.
    streams = (sys.stdin, sys.stdout, sys.stderr)
    if not all(stream.isatty() for stream in streams) or os.environ.get("TERM") == "dumb":
        raise UsageError("top needs a terminal to draw on", hint="hpcrun status prints the same")
    collected = _Collected(output.root, False, output.verbosity, output.color)
    # What names no run is told before there is a screen.
    select(collected, where, conditions)
    follow = looker(collected, where, conditions, follows=True)

    def look(warn: Say) -> tuple[list[Selected], list[RunStatus]]:
        collected.told.clear()
        found = follow(warn)
        for message in collected.told:
            warn(message)
        return found

    from hpcrun.tools.top.top_app import TopApp

    if not output.color:
        os.environ["NO_COLOR"] = "1"
    app = TopApp(look)
    error = app.run(mouse=False)
    if error is not None:
        raise error
    return app.exit_code
