"""``hpcrun tag``: put tags on runs, by which they are found again."""

from __future__ import annotations

import re
from collections.abc import Sequence

import click

from hpcrun.cli.options import Output, common
from hpcrun.cli.where import conditions_option, select, whole
from hpcrun.errors import UsageError
from hpcrun.text import listed, plural

# A tag to be removed, and no cluster of options.
_MINUS = re.compile(r"-(?![qv]+$|-)[^\s=]{2,}")


class _TagCommand(click.Command):
    """Takes ``-wip`` for ``--remove wip``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = [f"--remove={one[1:]}" if _MINUS.fullmatch(one) else one for one in args]
        return super().parse_args(ctx, words)


@click.command("tag", cls=_TagCommand)
@click.argument("where", nargs=-1, metavar="[WHERE]... [+TAG | -TAG]...")
@conditions_option
@click.option("--remove", "removed", multiple=True, metavar="TAG", help="The same as -TAG.")
@common
def command(
    where: tuple[str, ...], conditions: tuple[str, ...], removed: tuple[str, ...], output: Output
) -> None:
    """Put tags on runs (+good), take them away (-wip), or show them.

    WHERE is an experiment (NAME), runs (NAME/3, NAME/0-3), a pattern ('fine*', '*/3'), a job id, a
    spec file or a directory, and conditions such as state=failed 'lr>=1e-3'. A whole experiment's
    tags are those of its later runs, too. `tag=good` chooses runs in every command; status,
    results, report, top and list show tags, and --columns tags,notes both.
    """
    from hpcrun.control.annotate import annotate
    from hpcrun.observe.read import said
    from hpcrun.state import annotation_log

    added = [word[1:] for word in where if word.startswith("+")]
    names = [word for word in where if not word.startswith("+")]
    for tag in added:
        if not annotation_log.is_tag(tag):
            raise UsageError(f"+{tag}: found {tag!r}; accepted are {annotation_log.ACCEPTED}")
    if (added or removed) and not names:
        raise UsageError("this command wants to be told which runs", hint=_example("NAME", added))
    try:
        found = select(output, names, conditions, own=bool(added or removed))
    except UsageError as error:
        if added or removed or len(names) < 2 or not annotation_log.is_tag(names[-1]):
            raise
        hint = f"{_example(' '.join(names[:-1]), names[-1:])}; -{names[-1]} takes it away"
        raise UsageError(error.message, hint=f"to put a tag on runs: {hint}") from None
    there = {tag for one in found for tag in one.annotation.tags}
    if missing := [tag for tag in removed if tag not in there]:
        have = listed(sorted(there), 12) or "none"
        raise UsageError(
            f"none of {plural(len(found), 'run')} has the tag {', '.join(missing)}",
            hint=f"their tags: {have}",
        )
    if added or removed:
        change = {"add": added} if added else {}
        change |= {"remove": [*removed]} if removed else {}
        found = annotate(found, whole(found, names, conditions), "tag", **change)
    if output.json:
        output.data([said.row(one, said.TAGS) for one in found])
        return
    for one in found:
        output.line(f"{one.name}  {' '.join(one.annotation.tags)}".rstrip())
    if not any(one.annotation.tags for one in found):
        output.say(f"no tags; to put one on: {_example('NAME/3', ())}")


def _example(names: str, tags: Sequence[str]) -> str:
    return f"hpcrun tag {names} +{next(iter(tags), 'good')}"
