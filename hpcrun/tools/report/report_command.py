"""``hpcrun report``: write one HTML file about runs that opens offline, or serve it live."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import click

from hpcrun import activity
from hpcrun.cli.options import Output, common
from hpcrun.cli.where import select, where_argument
from hpcrun.errors import UsageError
from hpcrun.text import plural

_SUFFIXES = ("", ".html", ".htm")
_TABLES = ("csv", "json", "latex")


@click.command("report")
@where_argument
@click.option(
    "-o",
    "--output",
    "file",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    metavar="FILE",
    help="The file to write; - is stdout, x.pdf is printed by a browser of this machine. "
    "Default: NAME.html, of some runs NAME-RUNS.html, of several experiments report.html.",
)
@click.option("--force", is_flag=True, help="Replace FILE even if it is no report of hpcrun.")
@click.option(
    "--serve",
    is_flag=True,
    help="Write no file: serve the page on this machine's loopback, live, until Ctrl-C.",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help="The port to serve on. Default: one that is free.",
)
@common
def command(
    where: tuple[str, ...],
    conditions: tuple[str, ...],
    file: Path | None,
    force: bool,
    serve: bool,
    port: int | None,
    output: Output,
) -> None:
    """Results, curves, timelines, telemetry, cost, configuration and code of runs, in one file.

    The file needs nothing but a browser: it opens offline, prints, and shows tables and drawings
    without JavaScript too. An earlier report is replaced. Two experiments stand side by side; '*',
    or more than twenty, is a page of all: hours, money and causes of failure, by month and user.
    With --serve, the page is read through an ssh tunnel, whose command is printed, and follows the
    runs.

    {where or newest}.
    """
    from hpcrun.state import files
    from hpcrun.tools.report import all_experiments, page, pdf
    from hpcrun.tools.report.report import collect

    if serve:
        if file or force:
            raise UsageError("--serve writes no file", hint="leave -o and --force out")
        _serve(where, conditions, port, output)
        return
    if port is not None:
        raise UsageError(
            "--port is that of --serve", hint=f"add --serve, or leave --port {port} out"
        )
    pages = [one for one in where if one.endswith((".html", ".htm", ".pdf"))]
    if pages and file is None:
        runs = shlex.join(one for one in where if one not in pages)
        raise UsageError(
            f"{pages[0]} is no run; the file that is written stands behind -o",
            hint=f"hpcrun report {runs} -o {shlex.quote(pages[0])}",
        )
    if file is not None and file.suffix.lower() not in (*_SUFFIXES, pdf.SUFFIX):
        form = file.suffix.lower().removeprefix(".")
        table = f"; `hpcrun results --format {form}` prints a table" if form in _TABLES else ""
        raise UsageError(
            f"-o: found {file}; a report is an HTML page, or a PDF",
            hint=f"-o {shlex.quote(str(file.with_suffix('.html')))}{table}",
        )
    browser = None
    if file is not None and file.suffix.lower() == pdf.SUFFIX:
        browser = pdf.find_browser(file)
    selected = select(output, where, conditions)
    of_all = all_experiments.is_wanted(where, selected)
    names = sorted({one.experiment.name for one in selected})
    file = file or Path(f"{_stem(where, names) if not of_all else 'report'}.html")
    to_stdout = str(file) == "-"
    if to_stdout and output.json:
        raise UsageError(
            "-o - prints the report on stdout, where --json prints what was written",
            hint="leave one of them out",
        )
    if not to_stdout:
        check_file(file, force)
    if of_all:
        every = all_experiments.collect(selected, say=output.say)
        with activity.doing("drawing the page"):
            text = page.render_all_experiments(every, printed=browser is not None)
    else:
        found = collect(selected, say=output.say)
        with activity.doing("drawing the page"):
            text = page.render(found, printed=browser is not None)
    written = text.encode("utf-8", "replace")
    if browser is not None:
        with activity.doing("printing"):
            written = pdf.print_page(browser, written, file)
    if to_stdout:
        click.echo(written, nl=False)
        return
    is_another = file.exists()
    files.write_bytes(file, written)
    if output.json:
        output.data({"file": str(file.absolute()), "bytes": len(written), "runs": len(selected)})
    else:
        experiments = f" of {plural(len(names), 'experiment', ',')}" if of_all else ""
        runs = plural(len(selected), "run", ",")
        output.line(f"{file}: {runs}{experiments}, {len(written) / 1000:,.0f} kB")
        if is_another:
            output.say("it took the place of an earlier report; -o FILE writes another")


def _stem(where: Sequence[str], names: Sequence[str]) -> str:
    """Return the name of the page: one of some runs does not replace that of their experiment."""
    from hpcrun.observe.read.expression import split_words

    words, conditions = split_words(where)
    some = [word for word in words if "/" in word]
    if len(names) != 1:
        return "report"
    if not some and not conditions:
        return names[0]
    is_one = len(words) == 1 and not conditions
    part = re.sub(r"[^A-Za-z0-9._-]+", "-", some[0].partition("/")[2]) if is_one else ""
    return f"{names[0]}-{part.strip('-') or 'some'}"


def check_file(file: Path, force: bool) -> None:
    """Raise UsageError, before anything is read, if the file cannot or should not be written."""
    from hpcrun.tools.report.page import is_report

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


def _serve(
    where: tuple[str, ...], conditions: tuple[str, ...], port: int | None, output: Output
) -> None:
    """Serve the page until Ctrl-C; each one is of the runs that there are by then."""
    import socket

    from hpcrun.host import current_user
    from hpcrun.tools.report import all_experiments, live_server
    from hpcrun.tools.report.page import render
    from hpcrun.tools.report.report import collect

    said: set[str] = set()

    def say(message: str) -> None:
        if message not in said:  # the same every ten seconds
            said.add(message)
            output.say(message)

    def make() -> bytes:
        selected = select(output, where, conditions)
        if all_experiments.is_wanted(where, selected):
            raise UsageError(
                "the page of all experiments follows nothing",
                hint="leave --serve out, or name up to "
                f"{all_experiments.MOST_IN_FULL} experiments to follow",
            )
        found = collect(selected, say=say)
        return render(found, live_server.EVERY).encode("utf-8", "replace")

    page = make()
    server = live_server.LiveReport(make, page, port or 0)
    here = f"{current_user()}@{socket.gethostname()}"
    tunnel = f"ssh -N -L {server.port}:{live_server.ADDRESS}:{server.port} {shlex.quote(here)}"
    if output.json:
        output.data({"address": server.address, "port": server.port, "ssh": tunnel})
    else:
        if "HPCRUN_ON" in os.environ:  # which has forwarded the port
            output.line(f"Open here: {server.address}")
        else:
            output.line(f"On your own machine, type:  {tunnel}")
            output.line(f"and open there:             {server.address}")
        output.say("Whoever has this address can read the report. Ctrl-C ends it.")
    server.run(say)
    output.say("ended: the address leads nowhere now")
