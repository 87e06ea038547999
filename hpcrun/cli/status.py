"""``hpcrun status``: one line a run."""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

import click

from hpcrun import words
from hpcrun.cli.options import Output, common
from hpcrun.cli.selection import finder, select, where_argument

if TYPE_CHECKING:
    from hpcrun.observe.status import RunStatus
    from hpcrun.observe.where import Selected

INTERVAL = 2.0


@click.command("status")
@where_argument
@click.option("--watch", is_flag=True, help="Show it again every 2 s, until all runs are over.")
@common
def command(
    where: tuple[str, ...], conditions: tuple[str, ...], watch: bool, output: Output
) -> None:
    """State of runs: attempt, step, metrics and, where something is amiss, the reason.

    WHERE is an experiment (NAME), runs (NAME/3, NAME/0-3), a job id (123, 123_4) or a directory;
    without it, your newest experiment. What an experiment depends on is shown before it.
    """
    from hpcrun.observe.status import statuses

    while True:
        selected = select(output, where, conditions)
        if not conditions:
            selected = finder(output).with_chains(selected, where)
        found = statuses(selected, warn=output.say)
        if output.json:
            output.data([status.to_data() for status in found])
        else:
            if watch and output.color:
                click.clear()
            _print(selected, found, output)
        if not watch or all(status.over for status in found):
            return
        time.sleep(INTERVAL)


def _print(selected: list[Selected], found: list[RunStatus], output: Output) -> None:
    from hpcrun.observe.tables import Table, age

    metric = _metric(selected, found)
    keys = list(dict.fromkeys(key for status in found for key in status.swept))
    headers = ["RUN", *(key.rpartition(".")[2] for key in keys), "STATE", "ATTEMPT", "STEP"]
    headers += [*([metric] if metric else []), "JOB", "NODES", "UPDATED"]
    terminal = sys.stdout.isatty()
    table = Table(
        headers if terminal else [*headers, "REASON"],
        right=frozenset({"ATTEMPT", "STEP", metric or ""}),
        styled=frozenset({"STATE"}),
    )
    now = time.time()
    for status in found:
        cells = _cells(status, keys, metric, age(now - status.updated) if status.updated else "")
        table.add(*(cells if terminal else [*cells, status.reason or ""]))
    table.print(color=output.color)
    if terminal:
        _print_reasons(found)
    counts = Counter(status.state for status in found)
    output.say(", ".join(f"{count} {name}" for name, count in counts.most_common()))


def _print_reasons(found: list[RunStatus]) -> None:
    """Below the table, where they have room; one line for all runs that share a reason."""

    shared: dict[tuple[str, str], list[int]] = {}
    for status in found:
        if status.reason:
            shared.setdefault((status.experiment, status.reason), []).append(status.run)
    for (experiment, reason), runs in shared.items():
        click.echo(f"{experiment}/{','.join(words.ranges(runs))}: {reason}")


def _cells(status: RunStatus, keys: list[str], metric: str | None, updated: str) -> list[str]:
    from hpcrun.observe.narrow import show
    from hpcrun.observe.tables import number

    step = "" if status.step is None else f"{status.step:,}"
    if step and status.total_steps:
        step += f"/{status.total_steps:,}"
    return [
        status.name,
        *(show(status.swept[key]) if key in status.swept else "" for key in keys),
        status.state,
        "" if status.attempt is None else str(status.attempt),
        step,
        *([number((status.metrics or {}).get(metric))] if metric else []),
        status.job_id or "",
        _nodes(status.nodes),
        f"{updated} ago" if updated else "",
    ]


def _nodes(nodes: list[str] | None) -> str:
    if not nodes:
        return ""
    return ",".join(nodes[:4]) + (f",+{len(nodes) - 4}" if len(nodes) > 4 else "")


def _metric(selected: list[Selected], found: list[RunStatus]) -> str | None:
    """The objective if anything logged it lately, else the loss, else the first metric."""
    logged = list(dict.fromkeys(name for status in found for name in status.metrics or {}))
    objective = (selected[0].run.spec.get("objective") or {}).get("metric")
    for name in (objective, "loss"):
        if name in logged:
            return str(name)
    return logged[0] if logged else None
