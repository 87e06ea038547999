"""``hpcrun logs``: lines of runs, ranks and attempts; ``-f`` follows them all."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

from hpcrun.cli.options import Output, common
from hpcrun.cli.selection import select, where_argument
from hpcrun.errors import EXIT_INTERRUPTED, UsageError

if TYPE_CHECKING:
    from hpcrun.observe.follow import Line
    from hpcrun.observe.logs import Printer
    from hpcrun.observe.where import Selected


@click.command("logs")
@where_argument
@click.option("-f", "--follow", is_flag=True, help="Go on as lines come, until the runs are over.")
@click.option("--rank", metavar="RANKS", help="Only these ranks, such as 0,4-7.")
@click.option("--node", metavar="NODE", help="Only this node: its name, or its index in the run.")
@click.option("--attempt", metavar="A|all", help="This attempt, or all (default: the newest).")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="The last N lines of each.")
@click.option("--grep", metavar="RE", help="Only lines that this regular expression is found in.")
@click.option(
    "--stream",
    type=click.Choice(["worker", "agent", "batch", "all"]),
    default="worker",
    show_default=True,
    help="Ranks, the nodes' agents, or the batch step.",
)
@common
def command(
    where: tuple[str, ...],
    conditions: tuple[str, ...],
    follow: bool,
    rank: str | None,
    node: str | None,
    attempt: str | None,
    tail: int | None,
    grep: str | None,
    stream: str,
    output: Output,
) -> int:
    """Output of runs, with the run and the rank before each line where there are several.

    WHERE is an experiment (NAME), runs (NAME/3, NAME/0-3), a job id (123, 123_4) or a directory;
    without it, your newest experiment. A run that has no output of ranks shows what its agents and
    its batch step said.
    """
    from hpcrun.observe import logs

    choice = logs.Choice(
        streams=stream,
        ranks=logs.parse_ranks(rank) if rank else None,
        node=node,
        attempt=_attempt(attempt),
    )
    pattern = _pattern(grep)
    selected = select(output, where, conditions)
    printer = logs.Printer(selected, color=output.color, as_json=output.json)
    if follow:
        _announce(selected, output)
        over = logs.Over(selected)
        lines = logs.follow(selected, choice, over=over, tail=tail, idle=sys.stdout.flush).lines()
    else:
        lines = logs.read(selected, choice, tail=tail)
    try:
        some = _write(lines, printer, pattern)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    if not some and not follow:
        output.say("no lines" + (" match" if pattern else " yet"))
    return 0


def _write(lines: Iterable[Line], printer: Printer, pattern: re.Pattern[str] | None) -> bool:
    some = False
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    write = sys.stdout.write
    for line in lines:
        if pattern is None or pattern.search(line.text):
            write(printer.format(line) + "\n")
            some = True
    sys.stdout.flush()
    return some


def _attempt(text: str | None) -> int | str | None:
    if text is None or text == "all":
        return text
    if not text.isdigit() or int(text) < 1:
        raise UsageError(f"--attempt {text!r} is neither a number from 1 nor 'all'")
    return int(text)


def _pattern(text: str | None) -> re.Pattern[str] | None:
    if text is None:
        return None
    try:
        return re.compile(text)
    except re.error as error:
        raise UsageError(f"--grep {text!r} is not a regular expression: {error}") from None


def _announce(selected: Sequence[Selected], output: Output) -> None:
    """Say what is waited for, so that silence is not a riddle."""
    quiet = [one.name for one in selected if not one.paths.attempts()]
    if quiet:
        shown = ", ".join(quiet[:4]) + (", …" if len(quiet) > 4 else "")
        runs = "1 run that has" if len(quiet) == 1 else f"{len(quiet)} runs that have"
        output.say(f"waiting for {runs} not begun ({shown})")
