"""Finds the lines of a script that only make a rendezvous, which hpcrun makes itself."""

from __future__ import annotations

import re

from hpcrun.convert.launch_line import LaunchLine, rendezvous_option
from hpcrun.convert.shell_scan import Command, ShellScript, Statement

# What hpcrun gives to each of its ranks.
OWN = frozenset(
    (
        *("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK"),
        *("LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK"),
    )
)
_NAMED_SO = re.compile(r"rdzv|rendezvous|master|head_?node|main_process|nodelist", re.IGNORECASE)
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def lines(script: ShellScript, launch: LaunchLine) -> list[Statement]:
    """Return statements that set, or print, nothing but what a rendezvous is made of.

    What they set is used by each other and by options that hpcrun says in the launcher's place,
    and nowhere else: without them nothing is lost.
    """
    words = {id(one): _words(script.text[one.start : one.end]) for one in script.statements}
    words[id(launch.statement)], seeds = _of_launch(launch)
    sets: dict[int, set[str]] = {}
    prints: dict[int, set[str]] = {}
    for one in script.statements:
        names = _set_by(one.simple) if one is not launch.statement else None
        if names:
            sets[id(one)] = names
        elif names is not None:
            prints[id(one)] = _shown(script.text[one.start : one.end])
    while True:
        names = set().union(*sets.values())
        stale = {key for key, shown in prints.items() if not shown <= names}
        prints = {key: prints[key] for key in prints if key not in stale}
        kept = set().union(*(own for key, own in words.items() if key not in {**sets, **prints}))
        left = {key: own for key, own in sets.items() if not own & kept}
        if len(left) == len(sets) and not stale:
            break
        sets = left
    wanted = {*OWN, *seeds}
    while True:
        taken = [key for key, own in sets.items() if own & wanted]
        more = wanted.union(*(words[key] for key in taken))
        if more == wanted:
            break
        wanted = more
    names = set().union(*(sets[key] for key in taken))
    found = {*taken, *(key for key, shown in prints.items() if shown <= names)}
    return [one for one in script.statements if id(one) in found]


def _set_by(command: Command | None) -> set[str] | None:
    """Return the variables that a command sets and does no more; empty for a plain `echo`."""
    if command is None or command.is_redirected:
        return None
    if not command.words:
        return set(command.assigned) or None
    if command.assigned:
        return None
    if command.program == "echo":
        return set()
    if command.program != "export":
        return None
    names = {word.raw.partition("=")[0] for word in command.words[1:]}
    return names if all(name in OWN or _NAMED_SO.search(name) for name in names) else None


def _shown(text: str) -> set[str]:
    """Return the variables that an `echo` shows; a name that nobody has where it shows more."""
    names = set(re.findall(r"\$\{?([A-Za-z_]\w*)", text))
    return names if names and not re.search(r"\$\(|`|\$[^A-Za-z_{]", text) else {""}


def _words(text: str) -> set[str]:
    return set(_IDENTIFIER.findall(text))


def _of_launch(launch: LaunchLine) -> tuple[set[str], set[str]]:
    """Return the words of a launch line, and those of the options that hpcrun says itself."""
    kept: set[str] = set()
    dropped: set[str] = set()
    follows = False
    for word in launch.command.words:
        name, equals, _ = word.raw.partition("=")
        is_own = rendezvous_option(name)
        (dropped if is_own or follows else kept).update(_words(word.raw))
        follows = is_own and not equals
    return kept, dropped - kept
