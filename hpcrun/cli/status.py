"""``hpcrun status``: print one line a run."""

from __future__ import annotations

import contextlib
import shlex
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcrun import activity
from hpcrun.cli.options import Output, common
from hpcrun.cli.where import chooses, finder, key_names, select, where_argument
from hpcrun.errors import UsageError
from hpcrun.terminal import styled
from hpcrun.text import Say, agreeing, plural, shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hpcrun.observe.read.selection import Selected
    from hpcrun.observe.status.status import RunStatus

    Look = Callable[[Say], tuple[list[Selected], list[RunStatus]]]

# What totals of --cost are of, and the name of the last one.
_TOTALS = ("experiment", "user", "month")
INTERVAL = 2.0
# The pause after reading very many runs, as a multiple of the processor time that it took.
PAUSES = 4.0
# Seconds after which the live screen reports a slow refresh.
LONG = 2.0


@click.command("status")
@where_argument
@click.option("-w", "--watch", is_flag=True, help="A live screen, until all runs are over.")
@click.option("--all", "everything", is_flag=True, help="All runs of your experiments.")
@click.option(
    "--all-users",
    "everyone",
    is_flag=True,
    help="Without WHERE: those of everybody under the root, as a pattern has them anyhow.",
)
@click.option(
    "--cost",
    is_flag=True,
    help="Where the GPU- or CPU-hours went: by run, by experiment and by cause.",
)
@click.option(
    "--by",
    type=click.Choice(_TOTALS),
    help="Totals of --cost by this alone; without WHERE those of all your experiments.",
)
@click.option(
    "--columns",
    metavar="KEY[,KEY]|all",
    help="The values to show: of these keys, or of all in which the runs differ.",
)
@common
def command(
    where: tuple[str, ...],
    conditions: tuple[str, ...],
    watch: bool,
    everything: bool,
    everyone: bool,
    cost: bool,
    by: str | None,
    columns: str | None,
    output: Output,
) -> None:
    """State of runs: attempt, cause, progress, pace, time left and, where it waits, why.

    {where}. Without it: what is running or queued of all your experiments, then all runs of your
    newest one. What an experiment depends on is shown before it.
    """
    if (cost or by) and (watch or columns is not None):
        options = f"{'--cost' if cost else '--by'} and {'--watch' if watch else '--columns'}"
        raise UsageError(f"{options} do not go together", hint="leave one out")
    own = False
    if everything or ((by or (cost and everyone)) and not _names(where)):
        where, own = _all(where), not everyone
    if cost or by:
        _cost(select(output, where, conditions, own=own), output, by)
        return
    names = key_names("--columns", columns)
    is_overview = not (where or conditions)
    if not is_overview:
        look = looker(output, where, conditions, follows=watch, own=own)
    else:
        look = _overview(output, everyone=everyone, follows=watch)
    if watch and sys.stdout.isatty() and not output.json:
        _screen(look, output, alike=not is_overview)
    while True:
        used = time.process_time()
        # What is watched is printed every few seconds anyhow.
        with activity.tell_on(None) if watch else contextlib.nullcontext():
            selected, found = look(output.say)
        if output.json:
            output.data([status.to_data() for status in found])
        else:
            _print(selected, found, names, output, alike=not is_overview)
        if not watch or all(status.over for status in found):
            return
        _pause(used)


def _names(where: tuple[str, ...]) -> list[str]:
    """Return the words of WHERE that are no conditions."""
    from hpcrun.observe.read.expression import split_words

    return split_words(where)[0]


def _all(where: tuple[str, ...]) -> tuple[str, ...]:
    """Return WHERE for the runs of all experiments; raise UsageError if it names some."""
    if names := _names(where):
        words = shlex.join(names)
        raise UsageError(
            f"--all is all experiments, and {shortened(words, 200)} names some",
            hint="leave one of them out; conditions such as state=failed may stay",
        )
    return ("*", *where)


def _overview(output: Output, *, everyone: bool, follows: bool) -> Look:
    """Return what shows all that is running or queued, then the newest experiment, at each call.

    What was shown once stays. What is left out is said once.
    """
    from hpcrun.observe.read.selection import of_others
    from hpcrun.observe.status import overview
    from hpcrun.observe.status.slurm_cache import LastAnswers

    last_answers = LastAnswers(spares=True, follows=follows)
    kept: set[Path] = set()

    def look(warn: Say) -> tuple[list[Selected], list[RunStatus]]:
        search = finder(output)
        shown = overview.collect(search, last_answers, warn, everyone=everyone, kept=kept)
        if not kept:
            for owner, them in of_others(shown.selected).items():
                output.say(f"runs of {owner}: {', '.join(them)}")
            if shown.left_out:
                output.say(shown.left_out)
        kept.update(one.paths.directory for one in shown.selected)
        return shown.selected, shown.found

    return look


def looker(
    output: Output,
    where: tuple[str, ...],
    conditions: tuple[str, ...],
    *,
    follows: bool,
    own: bool = False,
) -> Look:
    """Return what selects the runs anew at each call, with all that they depend on before them.

    One that ``follows`` never waits long for Slurm.
    """
    from hpcrun.observe.status.slurm_cache import LastAnswers
    from hpcrun.observe.status.status import statuses

    last_answers = LastAnswers(spares=True, follows=follows)
    # What is watched stays on the screen when a condition on its state is not met any more.
    kept: set[Path] = set()

    def look(warn: Say) -> tuple[list[Selected], list[RunStatus]]:
        selected = select(output, where, conditions, ask=last_answers.ask, kept=kept, own=own)
        if any(one.plan.depends_on for one in selected) and not chooses(where, conditions):
            selected = finder(output).with_chains(selected, where)
        return selected, statuses(selected, warn=warn, ask=last_answers.ask)

    return look


def _pause(used: float) -> None:
    time.sleep(max(INTERVAL, PAUSES * (time.process_time() - used)))


def _screen(look: Look, output: Output, *, alike: bool) -> None:
    """Draw until all runs are over; the caller prints the final state.

    While Slurm or the storage does not answer, the last known state stays on the screen.
    """
    from rich.console import Console
    from rich.live import Live

    from hpcrun.observe.status.status_table import Screen
    from hpcrun.slurm.background import BackgroundCall

    console = Console(file=styled(sys.stdout), no_color=not output.color, highlight=False)
    screen = Screen(console, alike=alike)
    selected: list[Selected] = []
    found: list[RunStatus] = []
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            used = time.process_time()
            problems: list[str] = []
            looking = BackgroundCall(partial(look, problems.append))
            while not looking.wait(LONG):
                waited = f"no answer for {looking.took:.0f} s"
                waited += "; this is what was known before" if found else ""
                live.update(screen.render(selected, found, waited), refresh=True)
            selected, found = looking.result()
            if all(status.over for status in found):
                return
            problem = problems[0].splitlines()[0] if problems else None
            live.update(screen.render(selected, found, problem), refresh=True)
            _pause(used)


def _print(
    selected: list[Selected],
    found: list[RunStatus],
    columns: Sequence[str],
    output: Output,
    *,
    alike: bool,
) -> None:
    from hpcrun.observe.diagnosis import unread_progress
    from hpcrun.observe.read import run_values
    from hpcrun.observe.status import status_table
    from hpcrun.state.plan import SEARCH

    terminal = sys.stdout.isatty()
    keys, more = run_values.choose_columns(selected, columns, alike=alike)
    table = status_table.build(selected, found, time.time(), terminal=terminal, keys=keys)
    table.print(color=output.color)
    if more:
        output.say(run_values.left_out_columns(more))
    if terminal:
        for line in status_table.reasons(found):
            output.line(line)
    if told := status_table.shortened(found):
        output.say(told)
    output.say(status_table.counts(found))
    each = [*zip(selected, found, strict=True)]
    # Whose call is saved for what is no search.
    if selected and SEARCH in selected[-1].run.spec and (search := status_table.search_line(each)):
        output.say(search)
    for note in unread_progress.notes(each):
        output.say(note)


def _cost(selected: list[Selected], output: Output, by: str | None) -> None:
    from hpcrun.observe.diagnosis import cost
    from hpcrun.observe.diagnosis.attempts import stories

    costs = cost.CostsOfRuns(stories(selected, warn=output.say), time.time())
    totals, in_all = costs.totals, costs.in_all()
    if output.json:
        data = {f"{kind}s": [one.named_data(kind) for one in totals(kind)] for kind in _TOTALS}
        runs = [one.to_data() for one in costs.each]
        output.data({"runs": runs, **data, "total": [one.named_data(None) for one in in_all]})
        return
    if by:
        found = totals(by) if by == "month" else sorted(totals(by), key=lambda one: -one.paid)
        cost.totals_table(by, [*found, *in_all]).print(color=output.color)
    else:
        cost.table(costs.each).print(color=output.color)
        found = totals("experiment")
        for total in (*found, *(in_all if len(found) > len(in_all) else ())):
            click.echo("")
            for line in cost.sentences(total):
                output.line(line)
        for each in costs.each:
            for line in cost.growth(each):
                output.line(line)
    if costs.silent:
        output.say(
            f"where the time went is not known of {plural(costs.silent, 'run')}, which "
            f"{agreeing(costs.silent, 'logs', 'log')} nothing"
        )
