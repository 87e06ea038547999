"""``hpcrun exec``, ``shell`` and ``stacks``: beside a live rank."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from hpcrun.cli.options import Output, common
from hpcrun.cli.where import select_one
from hpcrun.errors import UsageError
from hpcrun.text import listed, one_line, ranges

if TYPE_CHECKING:
    from hpcrun.control import beside_rank


class _BeforeCommand(click.Command):
    """Takes options before and after WHERE, and leaves CMD its own.

    CMD begins with the second word that is no option and no option's value.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        options = [one for one in self.params if isinstance(one, click.Option)]
        valued = {name for one in options if not (one.is_flag or one.count) for name in one.opts}
        words, place = 0, 0
        while place < len(args) and args[place] != "--":
            if not args[place].startswith("-"):
                words += 1
            if words == 2:
                args = [*args[:place], "--", *args[place:]]
                break
            place += 2 if args[place] in valued else 1
        return super().parse_args(ctx, args)


@click.command("exec", cls=_BeforeCommand)
@click.argument("where", metavar="WHERE")
@click.option("-r", "--rank", type=click.IntRange(min=0), default=0, show_default=True)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="CMD...")
@common
def command(where: str, rank: int, words: tuple[str, ...], output: Output) -> int:
    """Run CMD on the node of a live rank, with its environment, directory and GPUs.

    WHERE is NAME/3, a job id (123_4) or anything else that comes to one run of yours whose ranks
    are at work. The run is not disturbed: the command has a step of its own, which may use the
    job's memory, and takes no part in the run. Its exit code is that of CMD. Options of CMD are its
    own; those of exec come before it.
    """
    from hpcrun.control import beside_rank

    if not words:
        raise UsageError(
            "exec wants to be told which command", hint=f"hpcrun exec {where} nvidia-smi"
        )
    live = beside_rank.living(select_one(output, "exec", [where]), "look into")
    sys.stdout.flush()
    return beside_rank.run(live, rank, words)


@click.command("shell")
@click.argument("where", metavar="WHERE")
@click.option("-r", "--rank", type=click.IntRange(min=0), default=0, show_default=True)
@common
def shell(where: str, rank: int, output: Output) -> int:
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
    return beside_rank.run(live, rank, ["bash", "-i"], terminal=os.environ.get("TERM") or "dumb")


@click.command("stacks")
@click.argument("where", metavar="WHERE")
@click.option("-r", "--rank", metavar="RANKS", help="Only these ranks, such as 0,4-7.")
@click.option("--threads", is_flag=True, help="All threads, of each rank by itself.")
@common
def stacks(where: str, rank: str | None, threads: bool, output: Output) -> None:
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
    if silent := [one for one in found if one.text is None]:
        output.say(_why_silent(live, silent[0]))


def _why_silent(live: beside_rank.LiveRun, one: beside_rank.RankStack) -> str:
    """Say why a rank may not tell, and what reads it all the same."""
    why = "stopped, without Python, or with HPCRUN_STACKS=0"
    if (live.place(one.rank)[0].rank_python or {}).get("srun"):
        why += ", or in a container of Pyxis, into which another one beside it may not look"
    elif live.launches[0].rank_python:
        why += ", or in a container with process ids of its own"
    node = f"srun --jobid={live.job_id} --overlap --nodelist={one.node} " if live.job_id else ""
    return (
        f"ranks that do not tell are {why}; py-spy on the node, outside of a container, reads "
        f"most: `{node}py-spy dump --pid PID` (`{node}pgrep -u $USER -a python` has the PIDs)"
    )
