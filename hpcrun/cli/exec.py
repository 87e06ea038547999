"""``hpcrun exec``: a command beside a live rank."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from hpcrun.cli.options import Output, common
from hpcrun.cli.where import select_one
from hpcrun.errors import UsageError


class _BeforeCommand(click.Command):
    """Takes options before and after WHERE, and leaves CMD its own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _with_end_of_options(self.params, args))


def _with_end_of_options(params: Sequence[click.Parameter], args: list[str]) -> list[str]:
    """Insert ``--`` before CMD, the second word that is no option and no option's value."""
    options = [one for one in params if isinstance(one, click.Option)]
    valued = {name for one in options if not (one.is_flag or one.count) for name in one.opts}
    words, place = 0, 0
    while place < len(args) and args[place] != "--":
        word = args[place]
        if not word.startswith("-"):
            words += 1
            if words == 2:
                return [*args[:place], "--", *args[place:]]
        place += 2 if word in valued else 1
    return args


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
