"""``hpcrun report``: write one HTML file about runs that opens offline."""

from __future__ import annotations

from pathlib import Path

import click

from hpcrun.cli.options import Output, common
from hpcrun.cli.where import select, where_argument
from hpcrun.errors import UsageError
from hpcrun.text import plural


@click.command("report")
@where_argument
@click.option(
    "-o",
    "--output",
    "file",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    metavar="FILE",
    help="The file to write; - is stdout. Default: NAME.html, of several experiments report.html.",
)
@click.option("--force", is_flag=True, help="Replace FILE even if it is no report of hpcrun.")
@common
def command(
    where: tuple[str, ...],
    conditions: tuple[str, ...],
    file: Path | None,
    force: bool,
    output: Output,
) -> None:
    """Results, curves, timelines, telemetry, cost, configuration and code of runs, in one file.

    The file needs nothing but a browser: it opens offline, prints, and shows tables and drawings
    without JavaScript too. An earlier report is replaced.

    WHERE is an experiment (NAME), runs (NAME/3, NAME/0-3), a job id (123, 123_4) or a directory;
    without it, your newest experiment.
    """
    from hpcrun.observe.report.page import render
    from hpcrun.observe.report.report import collect
    from hpcrun.state import files

    selected = select(output, where, conditions)
    names = {one.experiment.name for one in selected}
    file = file or Path(f"{names.pop() if len(names) == 1 else 'report'}.html")
    to_stdout = str(file) == "-"
    if to_stdout and output.json:
        raise UsageError(
            "-o - prints the report on stdout, where --json prints what was written",
            hint="leave one of them out",
        )
    if not to_stdout:
        _check(file, force)
    found = collect(selected, say=output.say)
    page = render(found).encode("utf-8", "replace")
    if to_stdout:
        click.echo(page, nl=False)
        return
    files.write_bytes(file, page)
    if output.json:
        output.data({"file": str(file.absolute()), "bytes": len(page), "runs": len(found.runs)})
    else:
        runs = plural(len(found.runs), "run", ",")
        output.line(f"{file}: {runs}, {len(page) / 1000:,.0f} kB")


def _check(file: Path, force: bool) -> None:
    """Raise UsageError, before anything is read, if the file cannot or should not be written."""
    from hpcrun.observe.report.page import is_report

    if not file.parent.is_dir():
        raise UsageError(
            f"{file}: there is no directory {file.parent}",
            hint="make it first, or name another file with -o",
        )
    if file.exists() and not file.is_file():
        raise UsageError(
            f"{file} is no regular file, and would be replaced by one",
            hint="-o - prints the report on stdout",
        )
    if force:
        return
    try:
        with open(file, "rb") as stream:
            head = stream.read(1024)
    except FileNotFoundError:
        return
    if not is_report(head):
        raise UsageError(
            f"{file} exists and is no report of hpcrun; it is left as it is",
            hint="name another file with -o, or replace this one with --force",
        )
