"""WHERE and ``--where`` as commands take them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from hpcrun.cli.options import Output
from hpcrun.errors import UsageError

if TYPE_CHECKING:
    from hpcrun.observe.where import Finder, Selected

Function = TypeVar("Function", bound=Callable[..., Any])


def complete_names(
    context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Names of experiments under the root, and of their runs once a name is complete."""
    from hpcrun import layout
    from hpcrun.errors import HpcrunError
    from hpcrun.observe.where import Finder, default_root

    root = Path(context.params.get("root") or default_root()).expanduser()
    if "/" in incomplete:
        name = incomplete.partition("/")[0]
        try:
            runs = Finder(root).history(layout.experiment(root, name)).runs
        except HpcrunError:
            return []
        found = [f"{name}/{number}" for number in sorted(runs)]
    else:
        found = [experiment.name for experiment in layout.experiments(root)]
    return [CompletionItem(name) for name in found if name.startswith(incomplete)]


def where_argument(function: Function) -> Function:
    """Add ``[WHERE]...`` and ``--where key=value``; pass ``where`` and ``conditions``."""
    decorated: Any = click.option(
        "--where",
        "conditions",
        multiple=True,
        metavar="KEY=VALUE",
        help="Only runs with this swept or configured value; the end of the key is enough.",
    )(function)
    decorated = click.argument(
        "where", nargs=-1, metavar="[WHERE]...", shell_complete=complete_names
    )(decorated)
    return decorated  # type: ignore[no-any-return]


def acts_on_runs(done: str) -> Callable[[Function], Function]:
    """Add WHERE, ``--dry-run`` and ``--yes``, for a command by which runs are ``done``."""

    def decorate(function: Function) -> Function:
        yes = click.option("-y", "--yes", is_flag=True, help="Do not ask.")
        dry_run = click.option("--dry-run", is_flag=True, help=f"Only say what would be {done}.")
        return where_argument(dry_run(yes(function)))

    return decorate


def finder(output: Output) -> Finder:
    """The finder of the root that the user named."""
    from hpcrun.observe.where import Finder, default_root

    root = output.root or Path(os.path.realpath(default_root()))
    return Finder(root, warn=output.say)


def select(
    output: Output,
    where: Sequence[str],
    conditions: Sequence[str] = (),
    *,
    default_newest: bool = True,
) -> list[Selected]:
    """The runs that the user named.

    Raises
    ------
    UsageError
        Nothing matches.
    """
    found = finder(output).resolve(where, default_newest=default_newest)
    if conditions:
        from hpcrun.observe.narrow import narrow

        found = narrow(found, conditions)
    return found


def ask_first(verb: str, names: Sequence[str]) -> None:
    """Have the person confirm that something is done to several runs.

    Raises
    ------
    UsageError
        There is no terminal to ask on.
    click.Abort
        The answer was no.
    """
    if not sys.stdin.isatty():
        raise UsageError(
            f"this would {verb} {len(names)} runs, and there is no terminal to ask on",
            hint="add --yes, or look first with --dry-run",
        )
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    shown = f"{', '.join(names[:6])}{more}"
    click.confirm(f"{verb.capitalize()} {len(names)} runs ({shown})?", abort=True, err=True)
