"""``hpcrun results``: swept values beside metrics."""

from __future__ import annotations

import click

from hpcrun.cli.options import Output, common
from hpcrun.cli.selection import select, where_argument
from hpcrun.errors import UsageError


@click.command("results")
@where_argument
@click.option("--sort", metavar="KEY", help="Sort by this column; -KEY for descending.")
@click.option(
    "--group-by",
    metavar="KEY[,KEY]",
    help="Mean and standard error over the runs that agree in these swept keys.",
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
    sort: str | None,
    group_by: str | None,
    form: str,
    output: Output,
) -> None:
    """Swept values beside the first, last and best of the objective and other metrics' last values.

    WHERE is an experiment (NAME), runs (NAME/3, NAME/0-3), a job id (123, 123_4) or a directory;
    without it, your newest experiment.
    """
    from hpcrun.observe import results
    from hpcrun.observe.status import statuses
    from hpcrun.observe.tables import Table

    selected = select(output, where, conditions)
    found = results.collect(selected, statuses(selected, warn=output.say))
    if group_by:
        swept = list(dict.fromkeys(key for one in selected for key in one.run.swept))
        keys = [key.strip() for key in group_by.split(",") if key.strip()]
        if not keys:
            raise UsageError(f"--group-by {group_by!r} names no key")
        unfinished = sum(row["state"] != "completed" for row in found.rows)
        if unfinished:
            output.say(
                f"{unfinished} of {len(found.rows)} runs are not completed: means include them"
            )
        found = results.group(found, keys, swept)
    if sort:
        found = found.sort(sort)
    if output.json or form == "json":
        output.data(found.to_data())
    elif form == "csv":
        click.echo(found.csv(), nl=False)
    elif form == "latex":
        click.echo(found.latex(), nl=False)
    else:
        numeric = {
            column
            for column in found.columns
            if any(isinstance(row.get(column), (int, float)) for row in found.rows)
        }
        table = Table(found.columns, right=frozenset(numeric), styled=frozenset({"state"}))
        for row in found.rows:
            table.add(*found.cells(row))
        table.print(color=output.color)
