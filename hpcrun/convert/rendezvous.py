"""Finds the lines of a script that only make a rendezvous, which hpcrun makes itself."""

from __future__ import annotations

import re

from hpcrun.convert.launch_line import LaunchLine, rendezvous_option
from hpcrun.convert.shell_scan import Command, ShellScript, Statement

# What hpcrun gives to each of its ranks.
_GIVEN = "MASTER_ADDR MASTER_PORT WORLD_SIZE RANK LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK"
OWN = frozenset(_GIVEN.split())
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def lines(script: ShellScript, launch: LaunchLine) -> list[Statement]:
    """Return statements that set, or print, nothing but what a rendezvous is made of.

    What they set is used by each other and by options that hpcrun says in the launcher's place,
    and nowhere else: without them nothing is lost.
    """
    words = {id(one): _words(script.text[one.start : one.end]) for one in script.statements}
    words[id(launch.statement)], seeds = _of_launch(launch)
    # What each sets, and what it shows.
    found: dict[int, tuple[set[str], set[str]]] = {}
    for one in script.statements:
        names = _set_by(one.simple) if one is not launch.statement else None
        if names is not None:
            shown = set() if names else _shown(script.text[one.start : one.end])
            found[id(one)] = names, shown
    while True:
        names = set().union(*(own for own, _ in found.values()))
        kept = set().union(*(own for key, own in words.items() if key not in found))
        left = {
            key: one for key, one in found.items() if not one[0] & kept and one[1] <= names - kept
        }
        if len(left) == len(found):
            break
        found = left
    wanted, size = {*OWN, *seeds}, -1
    taken: set[int] = set()
    while len(taken) != size:
        size = len(taken)
        taken = {key for key, (own, _) in found.items() if own & wanted}
        wanted.update(*(words[key] for key in taken))
    names = set().union(*(found[key][0] for key in taken))
    taken |= {key for key, (own, shown) in found.items() if not own and shown <= names}
    return [one for one in script.statements if id(one) in taken]


def _set_by(command: Command | None) -> set[str] | None:
    """Return the variables that a command sets and does no more; empty for a plain `echo`."""
    if command is None or command.is_redirected or (command.words and command.assigned):
        return None
    if not command.words or command.program == "echo":
        return set(command.assigned)
    if command.program != "export":
        return None
    # Others may be read by the program.
    names = {word.raw.partition("=")[0] for word in command.words[1:]}
    return names if names <= OWN else None


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
