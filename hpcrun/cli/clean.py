"""``hpcrun clean``: remove what runs that are over need no more."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from hpcrun.cli.options import Output, common
from hpcrun.cli.where import acts_on_runs, confirm, finder, select_old
from hpcrun.text import plural, size

# Items that are named on a terminal without ``-v``.
_NAMED = 20

if TYPE_CHECKING:
    from hpcrun.control.cleanup import Item, Leftovers, UnusedEnvironment


@click.command("clean")
@acts_on_runs("removed")
@click.option(
    "--checkpoints",
    type=click.Choice(["old", "all"]),
    default="old",
    show_default=True,
    help="Old ones: of a completed run all but the newest and the best of checkpoint.keep_best.",
)
@click.option("--logs", is_flag=True, help="What was printed, too.")
@click.option(
    "--environments",
    is_flag=True,
    help="Frozen environments that no submission under the root has any more, too; without WHERE "
    "these alone.",
)
@click.option("--older-than", metavar="AGE", help="Only runs that ended so long ago: 12h, 30d.")
@common
def command(
    where: tuple[str, ...],
    conditions: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    checkpoints: str,
    logs: bool,
    older_than: str | None,
    environments: bool,
    output: Output,
) -> None:
    """Remove what runs that are over need no more, once it was shown and confirmed.

    Old checkpoints, damaged and incomplete ones, conversions for another number of ranks and
    temporary files. Metrics, ledgers, plans and code stay. Runs that are not over, or of which that
    is not known, are left alone, and so are checkpoints that another run begins with until that one
    is over. A run that failed or was cancelled keeps what it would go on from, unless --checkpoints
    all.

    {where}.
    """
    from hpcrun.control import cleanup
    from hpcrun.observe.logs.log_files import parse_moment

    before = parse_moment(older_than, option="--older-than") if older_than else None
    choice = cleanup.CleanupChoice(everything=checkpoints == "all", logs=logs, before=before)
    runs_too = bool(where or conditions) or not environments
    selected = select_old(output, where, conditions, verb="clean") if runs_too else []
    found = cleanup.find(selected, choice, output.say)
    root = finder(output).root
    unused = cleanup.unused_environments(root, output.say) if environments else []
    if not output.json:
        _show(found, output)
        _name_items(found, output)
    for line in cleanup.spared_lines((one.run.name, one.spared) for one in found):
        output.say(f"left alone: {line}")
    for one in unused:
        made = f"of {one.source}" if one.source else "left half way"
        output.say(f"frozen environment {one.name}, {made} ({size(one.bytes)})")
    count = sum(len(one.items) for one in found) + len(unused)
    total = sum(one.bytes for one in found) + sum(one.bytes for one in unused)
    what = f"remove {plural(count, 'item')} ({size(total)})"
    removed: list[Item] = []
    gone_environments: list[UnusedEnvironment] = []
    if not count:
        output.say("there is nothing to remove")
    elif dry_run:
        output.say(f"would {what}")
    else:
        if not yes:
            confirm(what)
        if runs_too:
            removed = cleanup.remove_all(found, choice, output.say)
        if unused:
            gone_environments = cleanup.remove_environments(unused, root, output.say)
            output.say(f"freed {size(sum(one.bytes for one in gone_environments))}")
    if output.json:
        gone = {item.path for item in removed}
        data: list[dict[str, Any]] = [one.to_data(gone) for one in found]
        output.data([*data, *(one.to_data(one in gone_environments) for one in unused)])


def _show(found: Sequence[Leftovers], output: Output) -> None:
    from hpcrun.observe.tables import Table

    table = Table(
        ["RUN", "STATE", "WHAT", "COUNT", "SIZE"],
        right=frozenset({"COUNT", "SIZE"}),
        styled=frozenset({"STATE"}),
    )
    for one in found:
        for kind, count in Counter(item.kind for item in one.items).items():
            total = sum(item.bytes for item in one.items if item.kind == kind)
            table.add(one.run.name, one.status.state, kind, str(count), size(total))
    if table.rows:
        table.print(color=output.color)


def _name_items(found: Sequence[Leftovers], output: Output) -> None:
    """Print each item with its size: the first of them on a terminal, all with ``-v``."""
    lines = [
        f"{one.run.name}: {item.kind} {item.path} ({size(item.bytes)})"
        for one in found
        for item in one.items
    ]
    if lines and (output.verbosity > 0 or sys.stderr.isatty()):
        most = len(lines) if output.verbosity > 0 else _NAMED
        for line in lines[:most]:
            output.say(line)
        if len(lines) > most:
            output.say(f"and {len(lines) - most} more: -v names all, --json too")
