"""WHERE and ``--where``: select runs, and confirm actions on them."""

from __future__ import annotations

import functools
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcrun import activity
from hpcrun.cli.global_options import Function
from hpcrun.cli.options import Output
from hpcrun.errors import UsageError
from hpcrun.text import one_line, plural, shortened

if TYPE_CHECKING:
    from hpcrun.observe.read.selection import Finder, Selected
    from hpcrun.observe.status.status import Ask, RunStatus
    from hpcrun.state.layout import ExperimentPaths


_WHERE = (
    "WHERE is an experiment (NAME), runs (NAME/3, NAME/0-3), a pattern ('fine*', '*/3'), a job id, "
    "a spec file or a directory, and conditions such as state=failed 'lr>=1e-3'"
)
# Words of a command's docstring -> what its help has in their place.
_IN_HELP = {
    "{where}": _WHERE,
    "{where or newest}": f"{_WHERE}; without it, your newest experiment",
}


def conditions_option(function: Function) -> Function:
    """Add ``--where CONDITION``, pass ``conditions``, and say in the help what WHERE is."""
    for words, text in _IN_HELP.items():
        function.__doc__ = (function.__doc__ or "").replace(words, text)
    return click.option(
        "--where",
        "conditions",
        multiple=True,
        metavar="CONDITION",
        help="Only runs that meet this: lr=3e-4 (of a key its end is enough), 'lr>=1e-3', "
        "state=failed, tag=good, 'metric.loss<2', 'attempts>2', 'age>30d', and/or/not with "
        "brackets.",
    )(function)


def where_argument(function: Function) -> Function:
    """Add ``[WHERE]...`` and ``--where CONDITION``; pass ``where`` and ``conditions``."""
    where = click.argument("where", nargs=-1, metavar="[WHERE]...")
    return where(conditions_option(function))


def key_names(option: str, text: str | None) -> list[str]:
    """Split a list at its commas; raise UsageError if it is empty."""
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    if text is not None and not names:
        raise UsageError(f"{option} {text!r} names no key")
    return names


def acts_on_runs(done: str) -> Callable[[Function], Function]:
    """Add WHERE, ``--dry-run`` and ``--yes`` to a command by which runs are ``done``."""

    def decorate(function: Function) -> Function:
        yes = click.option("-y", "--yes", is_flag=True, help="Do not ask.")
        dry_run = click.option(
            "-n", "--dry-run", is_flag=True, help=f"Only say what would be {done}."
        )
        return where_argument(dry_run(yes(function)))

    return decorate


def finder(output: Output, *, own: bool = False) -> Finder:
    """Return the finder of the root that the user named; patterns are of ``own`` experiments."""
    from hpcrun.observe.read.selection import Finder
    from hpcrun.state import root_place

    root = output.root or Path(os.path.realpath(root_place.default_root()))
    if output.root is None:
        root_place.tell_of_earlier(root, lambda text: _tell(output, text))
    if root.is_file():
        raise UsageError(
            f"the root {root} is a file; accepted is the directory of your experiments",
            hint="leave --root and HPCRUN_ROOT out for ~/hpcrun-runs",
        )
    return Finder(root, warn=output.say, own=own)


def select(
    output: Output,
    where: Sequence[str],
    conditions: Sequence[str] = (),
    *,
    verb: str | None = None,
    ask: Ask | None = None,
    kept: set[Path] | None = None,
    own: bool = False,
) -> list[Selected]:
    """Return the runs that the user named; raise UsageError if there are none.

    ``verb`` is the action on them: they have to be named then, and be the user's own. None reads
    them, and prints the owners of other users' runs. ``ask`` is how conditions on states ask Slurm.
    Patterns are then, or with ``own``, of the user's own experiments.
    ``kept`` has the directories that an earlier call has put there: these runs are returned, though
    they may not meet the conditions any more.
    """
    search = finder(output, own=own or verb is not None)
    names, of_where = _split(search, where)
    option, conditions = "--where" if conditions else "WHERE", [*of_where, *conditions]
    among_newest = bool(conditions and not names)
    if among_newest:
        _tell_of_newest(search, conditions, verb, output)
    with activity.doing("looking for the runs"):
        found = search.resolve(names, default_newest=verb is None)
    if kept:
        found = [one for one in found if one.paths.directory in kept]
    elif conditions:
        from hpcrun.observe.read.filter import NothingMatches, needs_facts

        try:
            found = _narrowed(found, conditions, option, verb, ask, output)
        except NothingMatches as error:
            if among_newest and _has_several(search):
                everywhere = f"'*' {shlex.quote(shortened(' '.join(conditions), 200))}"
                hints = (error.hint, f"in all experiments: {everywhere}")
                error.hint = "; ".join(filter(None, hints))
            raise
        if kept is not None and needs_facts(found, conditions):
            kept.update(one.paths.directory for one in found)
    if verb is None:
        from hpcrun.observe.read.selection import of_others

        for owner, them in of_others(found).items():
            _tell(output, f"runs of {owner}: {', '.join(them)}")
        return found
    from hpcrun.state import permissions

    runs: dict[ExperimentPaths, list[int]] = {}
    for one in found:
        runs.setdefault(one.experiment, []).append(one.run.number)
    for experiment, numbers in runs.items():
        permissions.check_mine(experiment, numbers, verb)
    return found


def select_old(
    output: Output, where: Sequence[str], conditions: Sequence[str], *, verb: str
) -> list[Selected]:
    """`select` runs to act on; say that there are none where `asks_ages_of_patterns`."""
    from hpcrun.observe.read.filter import NothingMatches

    try:
        return select(output, where, conditions, verb=verb)
    except NothingMatches as error:
        if not asks_ages_of_patterns(output, where, conditions):
            raise
        output.say(error.message)
        return []


def asks_ages_of_patterns(output: Output, where: Sequence[str], conditions: Sequence[str]) -> bool:
    """Check whether runs are chosen by patterns and ages alone, as in a line for every night.

    That none is so old is no error then.
    """
    from hpcrun.observe.read.filter import asks_ages_alone
    from hpcrun.observe.read.selection import is_pattern

    names, of_where = _split(finder(output), where)
    return all(map(is_pattern, names)) and asks_ages_alone([*of_where, *conditions])


def select_one(
    output: Output, command: str, where: Sequence[str], conditions: Sequence[str] = ()
) -> Selected:
    """Return the one run that the user named; raise UsageError if there are none, or several."""
    from hpcrun.observe.read.selection import as_where

    selected = select(output, where, conditions)
    if len(selected) > 1:
        named = " ".join([*where, *conditions]) or "your newest experiment"
        raise UsageError(
            f"{shortened(named, 200)} is {len(selected)} runs ({shortened(as_where(selected))}); "
            f"{command} takes one",
            hint=f"such as {selected[0].name}",
        )
    return selected[0]


def chooses(where: Sequence[str], conditions: Sequence[str]) -> bool:
    """Check whether runs are chosen by a pattern or a condition, and not all named."""
    from hpcrun.observe.read.selection import is_pattern

    if conditions or any(map(is_pattern, where)):
        return True
    if not _have_signs(where):
        return False
    from hpcrun.observe.read.expression import is_condition

    return any(map(is_condition, where))


def _have_signs(where: Sequence[str]) -> bool:
    """Check whether any word may be a condition, without the grammar, which is slow to import."""
    return any(sign in word for word in where for sign in "=<>~")


def whole(
    found: Sequence[Selected], where: Sequence[str], conditions: Sequence[str]
) -> set[ExperimentPaths]:
    """Return the experiments that WHERE names as such: all of their runs, those to come too."""
    named = set() if chooses(where, conditions) else {word.rstrip("/") for word in where}
    return {one.experiment for one in found if one.experiment.name in named}


def _split(search: Finder, where: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split WHERE into names and conditions; raise UsageError for a word that could be both."""
    if not _have_signs(where):
        return [*where], []
    from hpcrun.observe.read.expression import is_condition, split_words
    from hpcrun.state import layout

    names = []
    for word in filter(is_condition, where):
        name, slash, _ = word.partition("/")
        if search.named(name) and slash:
            names.append(word)
            continue
        is_directory = os.path.isdir(word) and layout.enclosing(Path(word).absolute())  # noqa: PTH112
        if search.named(name) or is_directory:
            raise UsageError(
                f"{word!r} is a condition and an experiment",
                hint=f"write {'./' if is_directory else ''}{word}/ for the experiment, --where "
                f"{word} for the condition",
            )
    return split_words(where, names)


def _narrowed(
    found: Sequence[Selected],
    conditions: Sequence[str],
    option: str,
    verb: str | None,
    ask: Ask | None,
    output: Output,
) -> list[Selected]:
    from hpcrun.observe.read.filter import narrow

    def look(runs: Sequence[Selected], values: bool) -> list[RunStatus]:
        from hpcrun.observe.status import jobs, slurm_cache
        from hpcrun.observe.status.status import statuses

        # What Slurm said before is not what an action is decided by.
        how = ask or (slurm_cache.ask if verb is None else jobs.ask)
        return statuses(runs, warn=lambda text: _tell(output, text), ask=how, values=values)

    return narrow(found, conditions, option, look=look, say=lambda text: _tell(output, text))


def _tell_of_newest(
    search: Finder, conditions: Sequence[str], verb: str | None, output: Output
) -> None:
    """Tell of which runs a condition without a name is; raise UsageError if they are acted on."""
    if verb is not None:
        quoted = shlex.quote(shortened(" and ".join(conditions), 200))
        raise UsageError(
            f"this command wants to be told which runs to {verb}, and a condition alone could be "
            "of any experiment",
            hint=f"write NAME {quoted}, or '*' {quoted} for all your experiments",
        )
    if _has_several(search):
        newest = search.newest().name
        _tell(output, f"among the runs of {newest}, your newest experiment; '*' is all of them")


def _has_several(search: Finder) -> bool:
    from hpcrun.state import layout

    return len(layout.experiments(search.root)) > 1


@functools.cache
def _tell(output: Output, message: str) -> None:
    """Print a message once, however often runs are selected."""
    output.say(message)


def ask_first(
    verb: str,
    runs: Sequence[Selected],
    where: Sequence[str],
    conditions: Sequence[str],
    cost: str | None = None,
) -> None:
    """`confirm` an action on several runs, on any that WHERE `chooses`, and one at a cost."""
    from hpcrun.observe.read.selection import as_where

    if cost or len(runs) > (not chooses(where, conditions)):
        details = f", {cost}" if cost else ""
        confirm(f"{verb} {plural(len(runs), 'run')}", f"{details}: {shortened(as_where(runs))}")


def confirm(what: str, details: str = "") -> None:
    """Ask the user to confirm, such as ``cancel 3 runs``.

    Raise UsageError if there is no terminal to ask on, click.Abort if the answer is no.
    """
    if not sys.stdin.isatty():
        raise UsageError(
            f"this would {what}{details}; there is no terminal to ask on",
            hint="add --yes, or look first with --dry-run",
        )
    click.confirm(one_line(f"{what[0].upper()}{what[1:]}{details}?"), abort=True, err=True)
