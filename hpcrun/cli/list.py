"""``hpcrun list``: the experiments under the root."""

from __future__ import annotations

import shlex
import time

import click

from hpcrun.cli.options import Output, common
from hpcrun.cli.where import finder
from hpcrun.errors import UsageError
from hpcrun.text import shortened


@click.command("list")
@click.argument("names", nargs=-1, metavar="")
@common
def command(names: tuple[str, ...], output: Output) -> None:
    """Experiments under the root, the newest first: runs by state, when submitted, by whom."""
    from hpcrun.observe.status.experiments import overview
    from hpcrun.observe.tables import Table

    if names:
        words = shortened(shlex.join(names), 200)
        raise UsageError(
            f"list shows all experiments, and takes no name; found {words}",
            hint=f"the runs of one: hpcrun status {words}",
        )
    search = finder(output)
    found = overview(search, warn=output.say)
    if output.json:
        output.data([one.to_data() for one in found])
        return
    if not found:
        output.say(f"no experiments under {search.root}")
        return
    headers = ["EXPERIMENT", "RUNS", "STATES", "SUBMITTED", "USER", "SPEC"]
    headers += ["TAGS"] * any(one.tags for one in found)
    table = Table(headers, right=frozenset({"RUNS"}))
    for one in found:
        states = ", ".join(f"{count} {state}" for state, count in one.states.items())
        when = (
            time.strftime("%Y-%m-%d %H:%M", time.localtime(one.submitted)) if one.submitted else ""
        )
        runs = "" if one.runs is None else str(one.runs)
        cells = [one.name, runs, states or one.problem or "", when, one.user or "", one.spec or ""]
        table.add(*[*cells, ",".join(one.tags)][: len(headers)])
    table.print(color=output.color)
