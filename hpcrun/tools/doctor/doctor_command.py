"""``hpcrun doctor``: whether hpcrun's promises hold here, and whether nodes are well."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcrun.cli.options import Output, common
from hpcrun.errors import EXIT_OK, UsageError
from hpcrun.text import plural

if TYPE_CHECKING:
    from hpcrun.tools.doctor.doctor_profile import DoctorProfile
    from hpcrun.tools.doctor.examination import Examination
    from hpcrun.tools.doctor.node_examination import NodeExamination


@click.command("doctor")
@click.option(
    "--nodes",
    "words",
    is_flag=False,
    flag_value="idle",
    metavar="[N | NAMES]",
    help="Test compute nodes, in a job: so many, those named (node[01-04]), or those idle now.",
)
@click.option("--partition", metavar="NAME", help="Partition of the nodes to test.")
@click.option("--cluster", metavar="NAME", help="Cluster profile to judge with.")
@click.option("--python", metavar="PATH", help="The job's Python; by default the one of hpcrun.")
@click.option("--time", "minutes", default=10, metavar="MINUTES", help="Time limit of the job.")
@click.option(
    "--wait", default=30.0, metavar="MINUTES", help="The longest that the job waits in the queue."
)
@click.option("--quick", is_flag=True, help="Leave out what needs torch: products, all-reduce.")
@click.option(
    "--save-baseline", is_flag=True, help="Keep what was measured as the site's baseline."
)
@click.option("--baseline", metavar="FILE", help="The baseline's file; by default the root's.")
@click.option("--clear", metavar="NAMES", help="Forget that these nodes are suspect.")
@common
def command(
    words: str | None,
    partition: str | None,
    cluster: str | None,
    python: str | None,
    minutes: int,
    wait: float,
    quick: bool,
    save_baseline: bool,
    baseline: str | None,
    clear: str | None,
    output: Output,
) -> int:
    """Examine this cluster: what of hpcrun's promises holds, and what to change, by whom.

    With --nodes, test compute nodes instead, in a short job that has them alone: GPUs, links,
    clocks, storage, the way between each two neighbours, matrix products, an all-reduce. Ends with
    1 if a promise does not hold or a node is bad.
    """
    from hpcrun.tools.doctor import doctor_profile

    _check(words, save_baseline, clear, minutes, wait)
    profile = doctor_profile.load(cluster, output.root)
    for note in profile.notes:
        output.say(note)
    if clear is not None:
        return _clear(profile, clear, output)
    if words is None:
        from hpcrun.tools.doctor.examination import examine

        return _show(examine(profile, python), output)
    from hpcrun.tools.doctor.node_examination import examine_nodes
    from hpcrun.tools.doctor.node_job import NodeTest

    test = NodeTest(
        words=words,
        partition=partition,
        python=python,
        minutes=minutes,
        wait=wait * 60,
        tensor=not quick,
        baseline=None if baseline is None else Path(baseline),
        saves=save_baseline,
    )
    return _show_nodes(examine_nodes(profile, test, output.say), output)


def _check(words: str | None, saves: bool, clear: str | None, minutes: int, wait: float) -> None:
    if words is None and saves:
        raise UsageError("--save-baseline keeps what nodes do: give --nodes, too")
    if words is not None and clear is not None:
        raise UsageError("--clear and --nodes do not go together: clear first, then test")
    if not 1 <= minutes <= 240:
        raise UsageError(f"--time: found {minutes}; accepted is 1 to 240 minutes")
    if not (math.isfinite(wait) and wait > 0):
        raise UsageError(f"--wait: found {wait}; accepted is a number of minutes above 0")


def _clear(profile: DoctorProfile, names: str, output: Output) -> int:
    from hpcrun.tools.doctor.node_examination import clear_suspects

    cleared = clear_suspects(profile.root, names)
    if output.json:
        output.data({"cleared": cleared})
        return EXIT_OK
    for node in cleared:
        output.line(f"{node} is not suspect any more")
    return EXIT_OK


def _show(found: Examination, output: Output) -> int:
    from hpcrun.observe.tables import Table
    from hpcrun.tools.doctor.promise import counts

    for note in found.notes:
        output.say(note)
    if output.json:
        output.data(found.to_data())
        return found.exit_code
    slurm = f", Slurm {found.slurm}" if found.slurm else ""
    output.line(f"{found.cluster}{slurm}")
    table = Table(("promise", "verdict", "found"), styled=frozenset({"verdict"}))
    for one in found.worst_first:
        table.add(one.name, one.judgement.verdict, one.judgement.found)
    table.print(color=output.color)
    for one in found.worst_first:
        if one.judgement.change:
            output.line(f"{one.name}: {one.judgement.change} ({one.judgement.by})")
    for suspect in found.suspects:
        output.line(f"suspect node {suspect.told}")
    output.say(counts(found.judged))
    return found.exit_code


def _show_nodes(found: NodeExamination, output: Output) -> int:
    for note in found.notes:
        output.say(note)
    if output.json:
        output.data(found.to_data())
        return found.exit_code
    found.table().print(color=output.color)
    for line in found.lines():
        output.line(line)
    bad = len(found.verdict.bad)
    tested = plural(len(found.verdict.nodes), "node")
    told = f"{bad} of {tested} bad" if bad else f"{tested}, none of them bad"
    output.say(f"{told} (job {found.job}, {found.seconds:.0f} s)")
    return found.exit_code
