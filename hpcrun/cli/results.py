"""``hpcrun results``: swept values beside metrics."""

from __future__ import annotations

import click

from hpcrun.cli.options import Output, common
from hpcrun.cli.where import key_names, select, where_argument
from hpcrun.errors import UsageError
from hpcrun.text import agreeing, plural


@click.command("results")
@where_argument
@click.option(
    "--filter",
    "filters",
    multiple=True,
    metavar="CONDITION",
    help="As --where, and of the table's columns too: 'loss.best<2.5 and lr>=1e-3'; before any "
    "mean.",
)
@click.option("--sort", metavar="KEY", help="Sort by this column; -KEY for descending.")
@click.option(
    "--group-by",
    metavar="KEY[,KEY]",
    help="Mean and standard error over the runs that agree in these swept keys.",
)
@click.option(
    "--over-repeats",
    is_flag=True,
    help="The same over the keys of sweep.repeat, such as seeds: grouped by all other swept keys.",
)
@click.option(
    "--columns",
    metavar="KEY[,KEY]|all",
    help="Only these columns, in this order; or all values in which the runs differ.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json", "csv", "latex"]),
    default="table",
    show_default=True,
)
@common
def command(
    where: tuple[str, ...],
    conditions: tuple[str, ...],
    filters: tuple[str, ...],
    sort: str | None,
    group_by: str | None,
    over_repeats: bool,
    columns: str | None,
    form: str,
    output: Output,
) -> None:
    """Swept values beside the first, last and best of the objective and other metrics' last values.

    {where or newest}. Of a column the end of its name is enough.
    """
    from hpcrun.observe import results
    from hpcrun.observe.diagnosis import unread_progress
    from hpcrun.observe.read import run_values
    from hpcrun.observe.status.status import observe
    from hpcrun.observe.tables import Table

    if output.json and form in ("csv", "latex"):
        raise UsageError(f"--format {form} and --json do not go together", hint="leave one out")
    selected = select(output, where, conditions)
    chosen = key_names("--columns", columns)
    keys, more = run_values.choose_columns(selected, [run_values.ALL_COLUMNS] if chosen else [])
    if chosen == [run_values.ALL_COLUMNS]:
        chosen = []
    observed = observe(selected, warn=output.say)
    known = [one.status for one in observed]
    unread = unread_progress.notes([*zip(selected, known, strict=True)])
    for line in [*results.smaller_batches(observed), *unread]:
        output.say(line)
    found = results.collect(selected, known, warn=output.say, keys=keys)
    if filters:
        found = results.narrowed(found, filters, selected, known, keys, output.say)
    grouping = key_names("--group-by", group_by)
    if over_repeats:
        if grouping:
            raise UsageError("--over-repeats and --group-by exclude each other", hint="give one")
        grouping = results.keys_but_repeats(selected)
    if grouping or over_repeats:
        unfinished = sum(row["state"] != "completed" for row in found.rows)
        if unfinished:
            them = agreeing(unfinished, "it", "them")
            output.say(
                f"{unfinished} of {plural(len(found.rows), 'run')} "
                f"{agreeing(unfinished, 'is', 'are')} not completed: means include "
                f"{them}; --filter state=completed "
                f"leaves {them} out"
            )
        found = results.group(found, grouping, keys)
    if sort:
        found = found.sort(sort)
    if chosen:
        found = found.choose(chosen)
    if output.json or form == "json":
        output.data(found.to_data())
    elif form == "csv":
        click.echo(found.csv(), nl=False)
    elif form == "latex":
        click.echo(found.latex(), nl=False)
    else:
        table = Table(found.columns, right=found.numeric, styled=frozenset({"state"}))
        for row in found.rows:
            table.add(*found.cells(row))
        table.print(color=output.color)
    if more and not (grouping or over_repeats):
        output.say(run_values.left_out_columns(more))
