"""``hpcrun stacks``: where the ranks of a live run are."""

from __future__ import annotations

from dataclasses import asdict

import click

from hpcrun.cli.options import Output, common
from hpcrun.cli.where import select_one
from hpcrun.text import listed, one_line, ranges


@click.command("stacks")
@click.argument("where", metavar="WHERE")
@click.option("-r", "--rank", metavar="RANKS", help="Only these ranks, such as 0,4-7.")
@click.option("--threads", is_flag=True, help="All threads, of each rank by itself.")
@common
def command(where: str, rank: str | None, threads: bool, output: Output) -> None:
    """Python stacks of all ranks of a live run: ranks at the same place together.

    WHERE is NAME/3, a job id (123_4) or anything else that comes to one run of yours whose ranks
    are at work. The most recent call comes first. Ranks write them at a signal, or py-spy reads
    them where the job's environment has it; they go on as if nothing had been asked.
    """
    from hpcrun import activity
    from hpcrun.control import beside_rank
    from hpcrun.observe.logs.log_files import parse_ranks

    chosen = parse_ranks(rank) if rank else None
    live = beside_rank.living(select_one(output, "stacks", [where]), "look into")
    with activity.doing(f"asking the ranks of {live.name}"):
        found = beside_rank.stacks(live, chosen)
    if output.json:
        output.data([asdict(one) for one in found])
        return
    for text, ranks in beside_rank.together(found, threads=threads).items():
        numbers = [one.rank for one in ranks]
        nodes = [*dict.fromkeys(one.node for one in ranks)]
        count = f" ({len(numbers)})" if len(numbers) > 1 else ""
        title = f"rank {','.join(ranges(numbers))}{count} on {listed(nodes, 4)}"
        click.echo(f"{one_line(title)}{':' if text else ' does not tell'}")
        for line in text.splitlines():
            output.line(f"  {line.strip()}")
    if any(one.text is None for one in found):
        output.say(
            "ranks that do not tell: stopped, in a container or without Python; py-spy beside the "
            "job's Python reads some of them"
        )
