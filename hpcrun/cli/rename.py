"""``hpcrun rename``: give an experiment another name."""

from __future__ import annotations

import click

from hpcrun.cli.options import Output, common
from hpcrun.cli.where import finder


@click.command("rename")
@click.argument("old")
@click.argument("new")
@click.option("-n", "--dry-run", is_flag=True, help="Only say whether it could be renamed.")
@common
def command(old: str, new: str, dry_run: bool, output: Output) -> None:
    """Give an experiment another name, once all of its runs are over.

    Plans, runs, checkpoints and tags stay as they are, and requeue goes on with them; what submit
    goes on with is decided by the name in the spec.
    """
    from hpcrun.control import rename

    root, old = finder(output).root, old.rstrip("/")
    if dry_run:
        rename.check(root, old, new, output.say)
        notes: list[str] = []
    else:
        notes = rename.rename(root, old, new, output.say)
    if output.json:
        output.data({"from": old, "to": new, "directory": str(root / new), "renamed": not dry_run})
    else:
        output.line(f"{'would rename' if dry_run else 'renamed'} {old} to {new}")
    for note in notes:
        output.say(note)
