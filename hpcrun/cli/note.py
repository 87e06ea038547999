"""``hpcrun note``: write down what people should know about runs."""

from __future__ import annotations

from typing import Any

import click

from hpcrun.cli.options import Output, common
from hpcrun.cli.where import select, where_argument, whole
from hpcrun.errors import UsageError
from hpcrun.text import shortened, timestamp


@click.command("note")
@where_argument
@click.option("-m", "--message", metavar="TEXT", help="The note; also as a last word of several.")
@click.option("--clear", is_flag=True, help="Take the notes of before away.")
@common
def command(
    where: tuple[str, ...],
    conditions: tuple[str, ...],
    message: str | None,
    clear: bool,
    output: Output,
) -> None:
    """Write a note on runs, beside those that are there, or show them.

    WHERE is an experiment (NAME), runs (NAME/3, NAME/0-3), a pattern ('fine*', '*/3'), a job id, a
    spec file or a directory, and conditions such as state=failed 'lr>=1e-3'. A whole experiment's
    notes are those of its later runs, too. 'note~diverged' chooses runs in every command.
    """
    from hpcrun.control.annotate import annotate
    from hpcrun.observe.read import said
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
        text = shortened(names[-1], 60)
        raise UsageError(error.message, hint=f'a note of one word: -m "{text}"') from None
    if message or clear:
        change: dict[str, Any] = {"note": message} if message else {}
        change |= {"clear": True} if clear else {}
        found = annotate(found, whole(found, names, conditions), "note", **change)
    if output.json:
        output.data([said.row(one, said.NOTES) for one in found])
        return
    for one in found:
        for note in one.annotation.notes:
            when = timestamp(note.time)[:-3] if note.time else "in the spec"
            output.line(f"{one.name}  {when}  {note.user or ''}  {note.text}")
    if not any(one.annotation.notes for one in found):
        output.say('no notes; to write one: hpcrun note NAME/3 -m "the text"')
