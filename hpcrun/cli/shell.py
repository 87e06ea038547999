"""``hpcrun shell``: a shell beside a live rank."""

from __future__ import annotations

import sys

import click

from hpcrun.cli.options import Output, common
from hpcrun.cli.where import select_one
from hpcrun.errors import UsageError


@click.command("shell")
@click.argument("where", metavar="WHERE")
@click.option("-r", "--rank", type=click.IntRange(min=0), default=0, show_default=True)
@common
def command(where: str, rank: int, output: Output) -> int:
    """Open a shell on the node of a live rank, with its environment, directory and GPUs.

    WHERE is NAME/3, a job id (123_4) or anything else that comes to one run of yours whose ranks
    are at work. What is typed there disturbs the run no more than `hpcrun exec` does; the shell
    ends with the attempt.
    """
    from hpcrun.control import beside_rank

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            "a shell wants a terminal, and there is none here",
            hint=f"hpcrun exec {where} CMD runs one command",
        )
    live = beside_rank.living(select_one(output, "shell", [where]), "look into")
    node = live.node_of(min(rank, live.ranks[-1])).name
    output.say(f"beside rank {rank} of {live.name} on {node}; exit leaves it")
    return beside_rank.run(live, rank, ["bash", "-i"], terminal=beside_rank.term())
