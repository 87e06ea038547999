"""``hpcrun list``: the experiments under the root."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from hpcrun.cli.options import Output, common
from hpcrun.cli.where import finder
from hpcrun.errors import UsageError
from hpcrun.text import Say, shortened

if TYPE_CHECKING:
    from hpcrun.observe.read.selection import Finder


@click.command("list")
@click.argument("names", nargs=-1, metavar="")
@common
def command(names: tuple[str, ...], output: Output) -> None:
    """Experiments under the root, the newest first: runs by state, when submitted, by whom."""
    from hpcrun.observe.tables import Table

    if names:
        words = shortened(shlex.join(names), 200)
        raise UsageError(
            f"list shows all experiments, and takes no name; found {words}",
            hint=f"the runs of one: hpcrun status {words}",
        )
    search = finder(output)
    found = _experiments(search, output.say)
    if output.json:
        output.data(found)
        return
    if not found:
        output.say(f"no experiments under {search.root}")
        return
    headers = ["EXPERIMENT", "RUNS", "STATES", "SUBMITTED", "USER", "SPEC"]
    headers += ["TAGS"] * any(one["tags"] for one in found)
    table = Table(headers, right=frozenset({"RUNS"}))
    for one in found:
        states = ", ".join(f"{count} {state}" for state, count in one["states"].items())
        when = ""
        if one["submitted"]:
            when = time.strftime("%Y-%m-%d %H:%M", time.localtime(one["submitted"]))
        runs = "" if one["runs"] is None else str(one["runs"])
        cells = [one["name"], runs, states or one["problem"] or "", when]
        cells += [one["user"] or "", one["spec"] or "", ",".join(one["tags"])]
        table.add(*cells[: len(headers)])
    table.print(color=output.color)


def _experiments(search: Finder, warn: Say) -> list[dict[str, Any]]:
    """Return all experiments under the root, newest submission first, with one query of Slurm.

    Times are in seconds since the epoch; ``problem`` is why no plan can be read, and there is no
    number of runs then.
    """
    from hpcrun.observe.read.run_values import all_tags
    from hpcrun.observe.status.status import statuses
    from hpcrun.state import history, layout, permissions

    experiments = layout.experiments(search.root)
    selected = []
    problems: dict[str, str] = {}
    for experiment in experiments:
        try:
            selected += search.runs(experiment)
        except UsageError as error:
            problems[experiment.name] = error.message
    counts: dict[str, Counter[str]] = {}
    for status in statuses(selected, warn=warn, values=False):
        counts.setdefault(status.experiment, Counter())[status.state] += 1
    found = []
    for experiment in experiments:
        name = experiment.name
        when, uid = history.last_submission(experiment)
        known = None if name in problems else search.history(experiment)
        found.append(
            {
                "name": name,
                "directory": str(experiment.directory),
                "runs": None if known is None else len(known.runs),
                "states": dict(counts.get(name, Counter()).most_common()),
                "submitted": when or None,
                "spec": known.newest.plan.spec_file if known and known.newest else None,
                "user": None if uid is None else permissions.user_name(uid),
                "problem": problems.get(name),
                "tags": all_tags(known.annotations.values()) if known else (),
            }
        )
    return sorted(found, key=lambda one: -(one["submitted"] or 0))
