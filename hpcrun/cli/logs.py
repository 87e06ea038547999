"""``hpcrun logs``: the output of runs, ranks and attempts; ``-f`` follows it."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import click

from hpcrun.cli.options import Output, common
from hpcrun.cli.where import select, where_argument
from hpcrun.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, UsageError
from hpcrun.text import listed, shortened, whole_number

if TYPE_CHECKING:
    from hpcrun.observe.logs.tail import Source, Tail
    from hpcrun.observe.read.selection import Selected


@click.command("logs")
@where_argument
@click.option("-f", "--follow", is_flag=True, help="Go on as lines come, until the runs are over.")
@click.option(
    "-r",
    "--rank",
    metavar="RANKS",
    help="Only these ranks, such as 0,4-7; under torchrun its nodes.",
)
@click.option(
    "--role", metavar="ROLE", help="Only the ranks of this role, which --rank then counts from 0."
)
@click.option("--node", metavar="NODE", help="Only this node: its name, or its index in the run.")
@click.option(
    "-a", "--attempt", metavar="A|all", help="This attempt, or all (default: the newest)."
)
@click.option("--since", metavar="T", help="What was written since then: 90s, 10m, 2h, or a time.")
@click.option("--timestamps", is_flag=True, help="When each line was written, as far as is known.")
@click.option(
    "-t", "--tail", type=click.IntRange(min=0), metavar="N", help="The last N lines of each."
)
@click.option(
    "-g", "--grep", metavar="RE", help="Only lines that this regular expression is found in."
)
@click.option("--exclude", metavar="RE", help="No lines that this is found in.")
@click.option("--highlight", metavar="RE", help="Show what this finds in reverse.")
@click.option("--no-fold", is_flag=True, help="Every line: of each rank, of progress bars.")
@click.option("--raw", is_flag=True, help="The bytes as they are: no prefix, nothing folded.")
@click.option(
    "--exit-with-run", is_flag=True, help="With -f: leave with 1 unless all runs completed."
)
@click.option(
    "--stream",
    type=click.Choice(["worker", "agent", "batch", "other", "all"]),
    default="worker",
    show_default=True,
    help="Ranks, the nodes' agents, the batch step, or trackers and all else.",
)
@common
def command(
    where: tuple[str, ...],
    conditions: tuple[str, ...],
    follow: bool,
    rank: str | None,
    role: str | None,
    node: str | None,
    attempt: str | None,
    since: str | None,
    timestamps: bool,
    tail: int | None,
    grep: str | None,
    exclude: str | None,
    highlight: str | None,
    no_fold: bool,
    raw: bool,
    exit_with_run: bool,
    stream: str,
    output: Output,
) -> int:
    """Output of runs, with the run and the rank before each line where there are several.

    {where or newest}. Lines that several ranks wrote alike are shown once, with the ranks; of the
    updates of a progress bar, the last. A run that has no output of ranks shows what its agents and
    its batch step said.
    """
    from hpcrun.observe.logs import log_files
    from hpcrun.observe.logs.log_files import (
        LogChoice,
        check,
        parse_ranks,
        ranks_of_role,
        sources,
    )
    from hpcrun.observe.logs.log_places import LogPlaces
    from hpcrun.observe.logs.render import LineFilter, Presenter, Printer, read
    from hpcrun.observe.logs.watch import Watch

    if exit_with_run and not follow:
        raise UsageError("--exit-with-run is for -f, which waits for the runs to end")
    if raw and output.json:
        raise UsageError("--raw gives bytes and --json gives records; choose one")
    selected = select(output, where, conditions)
    ranks = parse_ranks(rank) if rank else None
    choice = LogChoice(
        streams=stream,
        ranks=ranks_of_role(selected, role, ranks) if role else ranks,
        node=node,
        attempt=_attempt(attempt or ("all" if since else None)),
    )
    fold = not (no_fold or raw or output.json or timestamps)
    moment = log_files.parse_moment(since) if since else None
    begin = _beginning(tail, moment, timestamps, bars=fold and not follow and grep is None)
    chosen = LineFilter(_pattern("--grep", grep), _pattern("--exclude", exclude))
    marked = _pattern("--highlight", highlight)
    if rank and any(one.run.entry.framework == "torchrun" for one in selected):
        output.say(
            "--rank counts torchrun's own processes, one a node: each log holds all ranks that it "
            "started there; torchrun --tee=3 marks their lines ([default1]: its second), which "
            "--grep finds"
        )
    if dropped := check(selected, choice, follow=follow):
        output.say(dropped)
    printer = Printer(
        selected,
        color=output.color,
        as_json=output.json,
        raw=raw,
        timestamps=timestamps,
        highlight=marked,
    )
    if follow:
        _announce(selected, output)
        watch = Watch(selected, choice, warn=output.say, places=LogPlaces.wanted())
        presenter = Presenter(printer, chosen, watch.ranks if fold else None)
        try:
            watch.show(presenter, sys.stdout.buffer, begin=begin, raw=raw)
        except KeyboardInterrupt:
            return EXIT_INTERRUPTED
        # An attempt that might have come, and did not.
        check(selected, choice)
        return EXIT_FAILED if exit_with_run and watch.not_completed() else EXIT_OK
    found = sources(selected, choice)
    try:
        some = _write(read(found, printer, chosen, begin=begin, fold=fold, raw=raw))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    if not some:
        output.say("no lines" + (" match" if grep or exclude else " yet"))
    elif quiet := _without_logs(selected, found):
        output.say(f"no output of {listed(quiet, 4)}")
    return EXIT_OK


def _without_logs(selected: Sequence[Selected], found: Iterable[Source]) -> list[str]:
    """Return the names of the runs that have no log file."""
    there = {(source.experiment, source.run) for source in found}
    return [one.name for one in selected if (one.experiment.name, one.run.number) not in there]


def _write(parts: Iterable[bytes]) -> bool:
    some = False
    for part in parts:
        sys.stdout.buffer.write(part)
        some = True
    sys.stdout.buffer.flush()
    return some


def _beginning(
    tail: int | None, since: float | None, timestamps: bool, *, bars: bool
) -> Callable[[Tail], object] | None:
    """Return what sets where to begin in a file, and the times of its lines.

    With ``bars``, the updates of a progress bar count as one line.
    """
    from hpcrun.observe.logs import log_files

    def begin(one: Tail) -> None:
        if tail is not None:
            one.begin_with(tail, bars=bars)
        if since is not None:
            one.begin_at(log_files.offset_since(one.source, since))
        if timestamps:
            one.marks.extend(log_files.marks_until_now(one.source))

    return None if tail is None and since is None and not timestamps else begin


def _attempt(text: str | None) -> int | str | None:
    if text is None or text == "all":
        return text
    if not (number := whole_number(text)):
        shown = shortened(text, 200)
        raise UsageError(f"--attempt {shown!r} is neither a number from 1 nor 'all'")
    return number


def _pattern(option: str, text: str | None) -> re.Pattern[str] | None:
    if text is None:
        return None
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        shown = f"{shortened(text, 200)!r} is not a regular expression"
        raise UsageError(f"{option} {shown}: {error}") from None


def _announce(selected: Sequence[Selected], output: Output) -> None:
    """Print which runs have not begun, and so show nothing yet."""
    from hpcrun.observe.read.selection import have_begun

    there = have_begun(selected)
    quiet = [one.name for one, is_there in zip(selected, there, strict=True) if not is_there]
    if quiet:
        runs = "1 run that has" if len(quiet) == 1 else f"{len(quiet)} runs that have"
        output.say(f"waiting for {runs} not begun ({listed(quiet, 4, rest=', …')})")
