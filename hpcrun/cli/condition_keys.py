"""Completion of ``--where``: keys that differ between the runs, and the values that they have."""

from __future__ import annotations

from collections.abc import Iterable

import click
from click.shell_completion import CompletionItem

from hpcrun.cli.completion import PART
from hpcrun.cli.global_options import given
from hpcrun.errors import HpcrunError
from hpcrun.host import expand_home
from hpcrun.observe.read.filter import show
from hpcrun.observe.read.selection import Finder, default_root
from hpcrun.observe.status.run_state import STATES

_MOST = 1_000


def complete_condition(
    context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete ``key=value``: the state, and swept keys by their end."""
    values = {"state": list(STATES)}
    for name, found in _swept(context).items():
        values.setdefault(name, found)
    key, equals, value = incomplete.partition("=")
    if not equals:
        return [CompletionItem(f"{name}=", PART) for name in values if name.startswith(key)]
    known = values.get(key, [])
    return [CompletionItem(f"{key}={one}") for one in known if one.startswith(value)]


def _swept(context: click.Context) -> dict[str, list[str]]:
    """Return the end of each swept key -> its values, of the runs that the line names so far."""
    # Where TAB is for an option's value, click has left the words before it as they are.
    where: Iterable[str] = context.params.get("where") or context.args
    values: dict[str, dict[str, None]] = {}
    try:
        selected = Finder(expand_home(given(context, "root") or default_root())).resolve([*where])
    except (HpcrunError, OSError):
        return {}
    for one in selected[:_MOST]:
        for key, value in one.run.swept.items():
            values.setdefault(key.rpartition(".")[2], {})[show(value)] = None
    return {key: list(found) for key, found in values.items()}
