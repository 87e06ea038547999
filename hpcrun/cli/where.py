"""WHERE and ``--where``: select runs, and confirm actions on them."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from hpcrun.cli.global_options import given
from hpcrun.cli.options import Function, Output
from hpcrun.errors import UsageError
from hpcrun.host import expand_home
from hpcrun.text import listed, one_line

if TYPE_CHECKING:
    from hpcrun.observe.read.selection import Finder, Selected
    from hpcrun.state.layout import ExperimentPaths


def complete_names(
    context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete names of experiments under the root, and runs once a name is complete.

    A directory may be called anything, and a shell runs what it is given: only names that hpcrun
    itself would give are offered.
    """
    from hpcrun.errors import HpcrunError
    from hpcrun.observe.read.selection import Finder, default_root, is_name
    from hpcrun.state import layout

    root = expand_home(given(context, "root") or default_root())
    if "/" in incomplete:
        name = incomplete.partition("/")[0]
        try:
            known = Finder(root).history(layout.experiment(root, name)) if is_name(name) else None
        except HpcrunError:
            return []
        found = [f"{name}/{number}" for number in sorted(known.runs)] if known else []
    else:
        found = [one.name for one in layout.experiments(root) if is_name(one.name)]
    return [CompletionItem(name) for name in found if name.startswith(incomplete)]


def where_argument(function: Function) -> Function:
    """Add ``[WHERE]...`` and ``--where key=value``; pass ``where`` and ``conditions``."""
    conditions = click.option(
        "--where",
        "conditions",
        multiple=True,
        metavar="KEY=VALUE",
        help="Only runs with this swept or configured value; the end of the key is enough.",
    )
    where = click.argument("where", nargs=-1, metavar="[WHERE]...", shell_complete=complete_names)
    return where(conditions(function))


def acts_on_runs(done: str) -> Callable[[Function], Function]:
    """Add WHERE, ``--dry-run`` and ``--yes`` to a command by which runs are ``done``."""

    def decorate(function: Function) -> Function:
        yes = click.option("-y", "--yes", is_flag=True, help="Do not ask.")
        dry_run = click.option(
            "-n", "--dry-run", is_flag=True, help=f"Only say what would be {done}."
        )
        return where_argument(dry_run(yes(function)))

    return decorate


def finder(output: Output) -> Finder:
    """Return the finder of the root that the user named."""
    from hpcrun.observe.read.selection import Finder, default_root

    return Finder(output.root or Path(os.path.realpath(default_root())), warn=output.say)


def select(
    output: Output, where: Sequence[str], conditions: Sequence[str] = (), *, verb: str | None = None
) -> list[Selected]:
    """Return the runs that the user named; raise UsageError if there are none.

    ``verb`` is the action on them: they have to be named then, and be the user's own. None reads
    them, and prints the owners of other users' runs.
    """
    found = finder(output).resolve(where, default_newest=verb is None)
    if conditions:
        from hpcrun.observe.read.filter import narrow

        found = narrow(found, conditions)
    if verb is None:
        from hpcrun.observe.read.selection import of_others

        for owner, names in of_others(found).items():
            _tell(output, f"runs of {owner}: {', '.join(names)}")
        return found
    from hpcrun.state import permissions

    runs: dict[ExperimentPaths, list[int]] = {}
    for one in found:
        runs.setdefault(one.experiment, []).append(one.run.number)
    for experiment, numbers in runs.items():
        permissions.check_mine(experiment, numbers, verb)
    return found


@functools.cache
def _tell(output: Output, message: str) -> None:
    """Print a message once, however often runs are selected."""
    output.say(message)


def ask_first(verb: str, names: Sequence[str]) -> None:
    """`confirm` an action on several runs."""
    confirm(f"{verb} {len(names)} runs", f" ({listed(names, 6)})")


def confirm(what: str, details: str = "") -> None:
    """Ask the user to confirm, such as ``cancel 3 runs``.

    Raise UsageError if there is no terminal to ask on, click.Abort if the answer is no.
    """
    if not sys.stdin.isatty():
        raise UsageError(
            f"this would {what}, and there is no terminal to ask on",
            hint="add --yes, or look first with --dry-run",
        )
    click.confirm(one_line(f"{what[0].upper()}{what[1:]}{details}?"), abort=True, err=True)
