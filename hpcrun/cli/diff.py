"""``hpcrun diff``: compare two experiments, or two runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from hpcrun.cli.options import Output, common
from hpcrun.cli.where import conditions_option, select
from hpcrun.errors import UsageError
from hpcrun.text import agreeing, listed, plural, shortened

if TYPE_CHECKING:
    from hpcrun.observe.diff import Difference

_SHOWN = 4


@click.command("diff")
@click.argument("before", required=False, metavar="A")
@click.argument("after", required=False, metavar="B")
@conditions_option
@click.option("--code", is_flag=True, help="Show the frozen code's changes line by line.")
@common
def command(
    before: str | None,
    after: str | None,
    conditions: tuple[str, ...],
    code: bool,
    output: Output,
) -> None:
    """What changed from A to B: values, runs, and the files of the frozen code.

    A and B are experiments (NAME), runs (NAME/3), job ids, directories or anything else that
    chooses runs, such as state=failed. Runs are paired by their swept values, two single runs as
    they are; of an experiment it is the newest submission of each run that counts.
    """
    from hpcrun.observe.diff import difference

    if before is None or after is None:
        raise _one_missing(before, conditions, output)
    found = difference(select(output, [before], conditions), select(output, [after], conditions))
    if output.json:
        data = found.to_data()
        if code and found.code is not None:
            data["patch"] = found.code.patch()
        output.data(data)
        return
    for line in _lines(found):
        output.line(line)
    if code and found.code is not None:
        click.echo(found.code.patch(), nl=False)
    if found.problem:
        output.say(f"the code was not compared: {found.problem}")


def _one_missing(before: str | None, conditions: Sequence[str], output: Output) -> UsageError:
    """Return the error that there is nothing to compare with, with a line that compares two."""
    pair = ["NAME/0", "NAME/1"]
    if before is not None:
        found = select(output, [before], conditions)
        beside = (f"{found[0].experiment.name}/{each.number}" for each in found[0].plan.runs)
        pair = [*dict.fromkeys([*(one.name for one in found), *beside, pair[0]])][:2]
    return UsageError(
        "diff compares two, A and B, each an experiment or some of its runs; found "
        + ("none" if before is None else f"{shortened(before, 200)!r} alone"),
        hint=f"such as hpcrun diff {' '.join(pair)}",
    )


def _lines(found: Difference) -> list[str]:
    lines = []
    several = len(found.groups) > 1 or found.same > 0
    for group in found.groups:
        if several or len(group.labels) > 1:
            lines.append(f"{plural(len(group.labels), 'run')} ({_some(group.labels)}):")
        lines += [
            f"  {one.key}: {_value(one.before)} -> {_value(one.after)}" for one in group.changes
        ]
    if found.of_one_version:
        number = len(found.of_one_version)
        lines.append(
            f"{plural(number, 'key')} that only one of the two hpcruns knew, at "
            f"{agreeing(number, 'its default', 'their defaults')}: "
            f"{listed(found.of_one_version, _SHOWN)}"
        )
    if found.same:
        lines.append(f"{plural(found.same, 'run')} with the same values")
    if found.only_before:
        lines.append(f"only in A: {_some(found.only_before)}")
    if found.only_after:
        lines.append(f"only in B: {_some(found.only_after)}")
    if found.code is not None and not found.code.files:
        lines.append("the same code")
    elif found.code is not None:
        for sign, how in (("+", "added"), ("-", "removed"), ("~", "changed")):
            lines += [f"code {sign} {name}" for name in found.code.names(how)]
    return lines


def _value(value: Any) -> str:
    from hpcrun.observe.read.run_values import MISSING, show

    return "(absent)" if value is MISSING else show(value)


def _some(labels: Sequence[str]) -> str:
    shown = [label or "no swept value" for label in labels]
    return listed(shown, _SHOWN, "; ", "; and {} more")
