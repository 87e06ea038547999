"""``hpcrun tag`` and ``note``: put tags and notes on runs, by which they are found again."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any

import click

from hpcrun.cli.options import Output, common
from hpcrun.cli.where import conditions_option, select, where_argument, whole
from hpcrun.errors import UsageError
from hpcrun.text import listed, plural, shortened, timestamp

# A tag to be removed, and no cluster of options.
_MINUS = re.compile(r"-(?![qv]+$|h$|-)[^\s=]+")


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

    {where}. A whole experiment's tags are those of its later runs, too. `tag=good` chooses runs in
    every command; status, results, report, top and list show tags, and --columns tags,notes both.
    """
    from hpcrun.control.annotate import annotate
    from hpcrun.observe.read import run_values
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
        output.data([run_values.annotation_row(one, run_values.TAGS) for one in found])
        return
    for one in found:
        output.line(f"{one.name}  {' '.join(one.annotation.tags)}".rstrip())
    if not any(one.annotation.tags for one in found):
        output.say(f"no tags; to put one on: {_example('NAME/3', ())}")


def _example(names: str, tags: Sequence[str]) -> str:
    return f"hpcrun tag {names} +{next(iter(tags), 'good')}"


@click.command("note")
@where_argument
@click.option("-m", "--message", metavar="TEXT", help="The note; also as a last word of several.")
@click.option("--clear", is_flag=True, help="Take the notes of before away.")
@common
def note(
    where: tuple[str, ...],
    conditions: tuple[str, ...],
    message: str | None,
    clear: bool,
    output: Output,
) -> None:
    """Write a note on runs, beside those that are there, or show them.

    {where}. A whole experiment's notes are those of its later runs, too. 'note~diverged' chooses
    runs in every command.
    """
    from hpcrun.control.annotate import annotate
    from hpcrun.observe.read import run_values
    from hpcrun.observe.read.expression import is_condition
    from hpcrun.state.annotation_log import MOST_NOTE

    names = [*where]
    if message is None and len(names) > 1 and " " in names[-1] and not is_condition(names[-1]):
        message = names.pop()
    if message is not None:
        message = message.strip()
        if not 0 < len(message) <= MOST_NOTE:
            raise UsageError(
                f"a note of {len(message):,} characters; accepted are 1 to {MOST_NOTE:,}",
                hint="--clear takes the notes of before away",
            )
    if (message or clear) and not names:
        raise UsageError(
            "this command wants to be told which runs", hint='hpcrun note NAME/3 -m "the text"'
        )
    try:
        found = select(output, names, conditions, own=bool(message or clear))
    except UsageError as error:
        if message is not None or len(names) < 2:
            raise
        texts = [one for one in names if "/" not in one and not one.isdecimal()] or [names[-1]]
        text = shortened(texts[-1], 60)
        runs = shlex.join(one for one in names if one != texts[-1])
        hint = f"a note stands behind -m: hpcrun note {runs} -m {shlex.quote(text)}"
        raise UsageError(error.message, hint=hint) from None
    if message or clear:
        change: dict[str, Any] = {"note": message} if message else {}
        change |= {"clear": True} if clear else {}
        found = annotate(found, whole(found, names, conditions), "note", **change)
    if output.json:
        output.data([run_values.annotation_row(one, run_values.NOTES) for one in found])
        return
    for one in found:
        for note in one.annotation.notes:
            when = timestamp(note.time)[:-3] if note.time else "in the spec"
            output.line(f"{one.name}  {when}  {note.user or ''}  {note.text}")
    if not any(one.annotation.notes for one in found):
        output.say('no notes; to write one: hpcrun note NAME/3 -m "the text"')
