"""``hpcrun delete``: delete runs or whole experiments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from hpcrun.cli.options import Output, common
from hpcrun.cli.where import acts_on_runs, asks_ages_of_patterns, confirm, finder, select_old
from hpcrun.errors import UsageError
from hpcrun.text import hours_text, listed, plural, size

if TYPE_CHECKING:
    from hpcrun.control.delete import Deletion
    from hpcrun.state.layout import ExperimentPaths

_SHOWN = 30


@click.command("delete")
@acts_on_runs("deleted")
@common
def command(
    where: tuple[str, ...], conditions: tuple[str, ...], dry_run: bool, yes: bool, output: Output
) -> None:
    """Delete runs with all that they have, once that was shown and confirmed.

    Metrics, ledgers, checkpoints, logs, what the program wrote; of an experiment with no other run,
    all of it. Runs that are not over, or of which that is not known, are left alone; so are those
    that another run begins with or waits for, and those that a link in the root leads to. A later
    submit of the same spec runs deleted ones from the start. `clean` removes old checkpoints alone.

    {where}.
    """
    from hpcrun.control import cleanup, delete

    root = finder(output).root
    left = delete.leftovers(root, {word.partition("/")[0] for word in where if word[:1].isalpha()})
    if left and not dry_run:
        delete.finish(left, output.say)
    elif left:
        names = listed([*map(str, left)], 6)
        output.say(f"would remove what a deletion that was cut off has left: {names}")
    try:
        selected = select_old(output, where, conditions, verb="delete")
    except UsageError:
        if left:
            return
        raise
    found = delete.find(selected, output.say)
    going = [one for one in found if one.spared is None]
    gone: list[Deletion] = []
    whole = delete.whole(one.run for one in going)
    if not output.json:
        _show(going, whole, output)
    told = cleanup.spared_lines((one.run.name, one.spared) for one in found)
    if not going and not asks_ages_of_patterns(output, where, conditions):
        raise UsageError(
            f"nothing can be deleted: {'; '.join(told)}",
            hint="`hpcrun cancel` ends runs, in a moment; `hpcrun status` shows the others",
        )
    for line in told:
        output.say(f"left alone: {line}")
    for line in delete.kept_elsewhere(going):
        output.say(line)
    what = f"delete {plural(len(going), 'run')} ({_amount(going)})"
    if not going:
        output.say("there is nothing to delete")
    elif dry_run:
        output.say(f"would {what}")
    else:
        if not yes:
            confirm(what, " for good")
        environments = cleanup.referred_environments(whole)
        gone = delete.delete(going, output.say)
        output.say(f"deleted {plural(len(gone), 'run')} ({_amount(gone)})")
        if environments:
            unused = cleanup.unused_environments(root, output.say, environments)
            for each in cleanup.remove_environments(unused, root, output.say):
                output.say(f"removed its frozen environment {each.name} ({size(each.bytes)})")
    if output.json:
        output.data([one.to_data(one in gone) for one in found])


def _amount(these: Sequence[Deletion]) -> str:
    total = sum(one.bytes for one in these)
    return f"{size(total)} in {plural(sum(one.files for one in these), 'file', ',')}{_cost(these)}"


def _cost(these: Sequence[Deletion]) -> str:
    units = dict.fromkeys(one.unit for one in these)
    hours = {unit: sum(one.hours for one in these if one.unit == unit) for unit in units}
    return "".join(f"; it cost {hours_text(paid)} {unit}" for unit, paid in hours.items() if paid)


def _show(going: Sequence[Deletion], whole: set[ExperimentPaths], output: Output) -> None:
    """Print a row for each run, and for each experiment that goes as a whole."""
    from hpcrun.observe.tables import Table

    headers = ["RUN", "STATE", "SIZE", "FILES", "HOURS", "UNIT"]
    table = Table(headers, right=frozenset(headers[2:5]), styled=frozenset({"STATE"}))
    for one in going[:_SHOWN]:
        hours = hours_text(one.hours) if one.hours else ""
        cells = [one.run.name, one.status.state, size(one.bytes), f"{one.files:,}", hours]
        table.add(*cells, one.unit if hours else "")
    if going:
        table.print(color=output.color)
    if len(going) > _SHOWN:
        output.say(f"and {len(going) - _SHOWN:,} more; --json has all")
    for experiment in sorted(whole, key=lambda one: one.name):
        output.say(
            f"{experiment.name} goes as a whole, with its frozen code: {experiment.directory}"
        )
