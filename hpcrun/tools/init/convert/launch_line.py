"""Finds the line that starts the ranks, where it is certain what hpcrun starts in its place.

With it the lines that only make a rendezvous, which hpcrun makes itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePath

from hpcrun.compile.target.launch_words import PYTHON, RENDEZVOUS, LaunchWords, Uncertain, read
from hpcrun.compile.target.sbatch_request import ScriptRequest
from hpcrun.tools.init.convert.shell_scan import ShellCommand, ShellScript, ShellWord, Statement
from hpcrun.tools.init.convert.variables import Variables

_LAUNCHERS = """
srun mpirun mpiexec mpiexec.hydra orterun ibrun jsrun aprun torchrun accelerate deepspeed horovodrun
composer colossalai ray julia Rscript apptainer singularity shifter enroot podman docker parallel
"""
_BEFORE = """
exec time env nohup command numactl timeout bash sh kernprof nsys stdbuf taskset uv conda
"""
_STARTERS, _WRAPPERS = frozenset(_LAUNCHERS.split()), frozenset(_BEFORE.split())
# What hpcrun gives to each of its ranks.
_GIVEN = "MASTER_ADDR MASTER_PORT WORLD_SIZE RANK LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK"
OWN = frozenset(_GIVEN.split())
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)


@dataclass(kw_only=True)
class LaunchLine(LaunchWords):
    """The line of a script that starts the ranks, and what hpcrun starts in its place."""

    statement: Statement
    command: ShellCommand


def starts(command: ShellCommand) -> bool:
    """Check whether a command may start a program that trains, or ranks of it."""
    names = [PurePath(word.text or "").name for word in command.words[:4]]
    if not names:
        return False
    found = names if names[0] in _WRAPPERS else names[:1]
    python = (name for name in found if PYTHON.fullmatch(name) or name.endswith(".py"))
    is_known = not _STARTERS.isdisjoint(found) or any(python)
    return is_known or command.words[0].text is None


def find(script: ShellScript, variables: Variables, job: ScriptRequest) -> LaunchLine:
    """Return the launch line of a script; raise Uncertain where it is to stay as it is."""
    if script.problem:
        raise Uncertain(f"bash may read it otherwise: {script.problem}")
    if not job.is_certain:
        raise Uncertain("hpcrun's ranks would not be what its #SBATCH lines ask for")
    if script.positional:
        raise Uncertain(f"line {script.positional[0]} reads the script's arguments")
    if at := [f"line {number} has {one}" for one, number in script.templates.items()]:
        raise Uncertain(f"{at[0]}, which somebody fills in")
    found = [(each, one) for each in script.statements for one in each.commands if starts(one)]
    if len(found) != 1:
        raise Uncertain(f"{len(found) or 'no'} lines of it start programs that are known here")
    statement, command = found[0]
    place = f"line {script.line(command.start)}"
    if statement.simple is not command:
        raise Uncertain(f"{place} starts it together with other commands, or in the background")
    if command.is_redirected:
        raise Uncertain(f"{place} sends its output to a file")
    for one in script.commands:
        if one.program == "trap" and "EXIT" not in [word.text for word in one.words]:
            raise Uncertain(f"line {script.line(one.start)} waits for signals, which hpcrun gets")
        if one.program in ("exec", "wait", "sbatch"):
            raise Uncertain(f"line {script.line(one.start)} has {one.program}")
    if re.search(r"\$\?|PIPESTATUS", script.text[command.end :]):
        raise Uncertain(f"what follows {place} asks how it ended")
    line = LaunchLine(statement=statement, command=command)
    try:
        words = [text for word in command.words for text in _certain(word, variables)]
        read(words, line, job, _inner)
    except Uncertain as why:
        raise Uncertain(f"{place}: {why}") from None
    return line


def _certain(word: ShellWord, variables: Variables) -> list[str]:
    found = variables.text(word)
    if found is None:
        raise Uncertain(f"only bash can tell what {word.raw[:60]} is")
    return found


def _inner(texts: list[str]) -> list[str]:
    """Return the words of ``bash -c TEXT``, where it is one plain command."""
    inner = ShellScript(texts[0])
    command = inner.statements[0].simple if len(inner.statements) == len(texts) == 1 else None
    if inner.problem or command is None or command.is_redirected or command.assigned:
        raise Uncertain("the shell that it starts has more than one plain command")
    nothing = Variables(inner)
    return [text for word in command.words for text in _certain(word, nothing)]


def rendezvous(script: ShellScript, launch: LaunchLine) -> list[Statement]:
    """Return statements that set, or print, nothing but what a rendezvous is made of.

    What they set is used by each other and by options that hpcrun says in the launcher's place,
    and nowhere else: without them nothing is lost.
    """
    words = {id(one): _names(script.text[one.start : one.end]) for one in script.statements}
    words[id(launch.statement)], seeds = _of_launch(launch)
    # What each sets, and what it shows.
    found: dict[int, tuple[set[str], set[str]]] = {}
    for one in script.statements:
        names = _set_by(one.simple) if one is not launch.statement else None
        if names is not None:
            shown = set() if names else _shown_by(script.text[one.start : one.end])
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


def _set_by(command: ShellCommand | None) -> set[str] | None:
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


def _shown_by(text: str) -> set[str]:
    """Return the variables that an `echo` shows; a name that nobody has where it shows more."""
    names = set(re.findall(r"\$\{?([A-Za-z_]\w*)", text))
    return names if names and not re.search(r"\$\(|`|\$[^A-Za-z_{]", text) else {""}


def _names(text: str) -> set[str]:
    return set(_IDENTIFIER.findall(text))


def _of_launch(launch: LaunchLine) -> tuple[set[str], set[str]]:
    """Return the words of a launch line, and those of the options that hpcrun says itself."""
    kept: set[str] = set()
    dropped: set[str] = set()
    follows = False
    for word in launch.command.words:
        name, equals, _ = word.raw.partition("=")
        # An option of torchrun's that hpcrun gives in its place.
        is_own = name.startswith("-") and name.lstrip("-").replace("-", "_") in RENDEZVOUS
        (dropped if is_own or follows else kept).update(_names(word.raw))
        follows = is_own and not equals
    return kept, dropped - kept
