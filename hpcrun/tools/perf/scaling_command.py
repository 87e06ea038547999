"""``hpcrun scaling``: one device against many, strong and weak, measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcrun.cli.options import Output, command_line, common, spec_arguments
from hpcrun.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, UsageError

if TYPE_CHECKING:
    from hpcrun.tools.perf.scaling import Scaling

_NUMBERS = "NODES RANKS BATCH MICRO S/STEP SAMPLES/S SPEED-UP EFFICIENCY"
_HEADERS = ("SCALING", *_NUMBERS.split(), "")


@click.command("scaling")
@spec_arguments
@click.option("--nodes", metavar="1,2,4", help="Numbers of nodes to compare.")
@click.option("--ranks", metavar="1,2,4", help="Numbers of ranks on a node, in place of --nodes.")
@click.option("-o", "--output", "out", metavar="FILE", help="The page, NAME.scaling.html.")
@click.option("-n", "--dry-run", is_flag=True, help="Show what would be measured.")
@common
def command(
    spec: str,
    overrides: tuple[str, ...],
    sweeps: tuple[str, ...],
    nodes: str | None,
    ranks: str | None,
    out: str | None,
    dry_run: bool,
    output: Output,
) -> int:
    """Measure how SPEC's speed grows with the number of nodes, or of ranks on a node.

    Strong scaling keeps the global batch, weak scaling what each rank does. Each number is a run of
    NAME-scaling, in which the program makes some steps of either: here, in this allocation, or as a
    job. Ends with a table, and a page with the plot.
    """
    from hpcrun.slurm import patience
    from hpcrun.tools.perf import scaling, trial_run, written_file

    if sweeps:
        raise UsageError("scaling takes no --sweep", hint="one spec at a time, without --sweep")
    if (nodes is None) == (ranks is None):
        raise UsageError("accepted is one of --nodes and --ranks", hint="such as --nodes 1,2,4")
    counts = _numbers("--nodes", nodes), _numbers("--ranks", ranks)
    found = scaling.plan(spec, overrides, *counts, output.root)
    output.notes([found.base])
    path = Path(out or f"{found.base.name}.scaling.html").absolute()
    written_file.check(path, scaling.PAGE_MARK, "scaling")
    if not dry_run:
        patience.act()
        found.measure(command_line(), output.say)
    rows = _rows(found)
    if output.json:
        output.data(found.to_data())
    else:
        _print(rows, output)
    if dry_run:
        return EXIT_OK
    if found.interrupted:
        output.say(f"{trial_run.after_interrupt(found.left)}; no page is written")
        return EXIT_INTERRUPTED
    if all(one.rate is None for one in found.points):
        output.say(f"nothing was measured; `hpcrun why {found.compiled.name}` tells more")
        return EXIT_FAILED
    written_file.write(path, scaling.render(found, _HEADERS, rows))
    output.say(f"the plot: {path}")
    return EXIT_OK if found.completed else EXIT_FAILED


def _numbers(option: str, text: str | None) -> list[int]:
    if text is None:
        return []
    try:
        found = [int(word) for word in text.split(",")]
    except ValueError:
        found = [0]
    if any(one < 1 for one in found):
        raise UsageError(f"{option}: found {text!r}; accepted are whole numbers, such as 1,2,4")
    return found


def _rows(found: Scaling) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for one in sorted(found.points, key=lambda point: (point.kind, point.ranks)):
        sizes = map(str, (one.nodes, one.ranks, one.train, one.micro))
        measured = (
            _number_text(one.step_seconds, ".4g"),
            _number_text(one.rate, ",.4g"),
            _number_text(found.speed_up(one), ".2f"),
            _number_text(found.efficiency(one), ".0%"),
        )
        problem = (one.problem or "") if found.names or one.refused else ""
        rows.append((one.kind, *sizes, *measured, problem))
    return rows


def _number_text(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _print(rows: list[tuple[str, ...]], output: Output) -> None:
    from hpcrun.observe.tables import Table

    table = Table(_HEADERS, right=frozenset(_NUMBERS.split()), spare=("MICRO", "BATCH"))
    for row in rows:
        table.add(*row)
    table.print(color=output.color)
