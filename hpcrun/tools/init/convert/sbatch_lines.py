"""Reads the #SBATCH lines of a script: sbatch's options, in all their forms.

What becomes of each line, here and elsewhere, is a `LineFate`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hpcrun.compile.target.slurm_options import SBATCH_OPTIONS
from hpcrun.errors import UsageError
from hpcrun.policy import secret_names
from hpcrun.text import one_line

SHORT = {
    **{"A": "account", "a": "array", "b": "begin", "C": "constraint", "c": "cpus-per-task"},
    **{"D": "chdir", "d": "dependency", "e": "error", "F": "nodefile", "G": "gpus", "H": "hold"},
    **{"h": "help", "I": "immediate", "i": "input", "J": "job-name", "k": "no-kill"},
    **{"L": "licenses", "M": "clusters", "m": "distribution", "N": "nodes", "n": "ntasks"},
    **{"O": "overcommit", "o": "output", "p": "partition", "Q": "quiet", "q": "qos"},
    **{"S": "core-spec", "s": "oversubscribe", "t": "time", "V": "version", "v": "verbose"},
    **{"W": "wait", "w": "nodelist", "x": "exclude", "B": "extra-node-info", "u": "usage"},
}
_ALIASES = {"tasks-per-node": "ntasks-per-node", "workdir": "chdir", "share": "oversubscribe"}
# Options without a value; those in `_OPTIONAL` may have one, after an equals sign alone.
_NO_VALUE = """
contiguous get-user-env help hold ignore-pbs kill-on-invalid-dep no-requeue overcommit parsable
quiet reboot requeue spread-job test-only usage use-min-nodes verbose version wait stepmgr
"""
_MAY_HAVE = "exclusive immediate no-kill oversubscribe propagate nice x11"
_FLAGS, _OPTIONAL = frozenset(_NO_VALUE.split()), frozenset(_MAY_HAVE.split())
_TEMPLATE = re.compile(r"\{\{|\{%|<%|\$\{?\w")
_LONGEST = 10_000
SPEC, SHELL, DROPPED, ASKED = "in the spec", "as it is", "dropped", "asked for"
_MOST_SHOWN = 160


@dataclass(frozen=True)
class LineFate:
    """The fate of a command of the script, or of one of its #SBATCH lines."""

    line: int
    last: int
    text: str
    """The line as it is written, shortened, without the values of secrets."""
    fate: str
    """``in the spec``, ``as it is``, ``dropped`` or ``asked for``."""
    what: str
    """The key, the shell file, why it was dropped, or what is in the way."""


def quoted(text: str) -> str:
    """Return a line of a script as it is shown: in one line, and without a secret."""
    shown = " ".join(text[: 4 * _MOST_SHOWN].replace("\\\n", " ").split())
    if is_secret(shown):
        shown = re.split(r"[=\s]", re.sub(r"^export ", "", shown))[0] + " …"
    shown = one_line(shown)
    return shown if len(shown) <= _MOST_SHOWN else f"{shown[: _MOST_SHOWN - 1]}…"


def is_secret(text: str) -> bool:
    """Check whether a line holds what looks like a secret."""
    return any(True for _ in secret_names.places(text[:4000].split(" "), "line"))


@dataclass
class SbatchOption:
    """One option of a #SBATCH line."""

    name: str
    """The long one."""
    value: str
    line: int
    text: str
    """The line as it is shown."""
    is_known: bool = True
    """It can be read as sbatch would; false for templates that somebody fills in."""


def read(lines: Sequence[str]) -> tuple[dict[str, SbatchOption], list[LineFate]]:
    """Return the options of the #SBATCH lines that count, and what becomes of the others.

    Slurm reads up to the first command.

    Raise UsageError where the job is heterogeneous.
    """
    found: dict[str, SbatchOption] = {}
    fates, first = [], None
    for number, line in enumerate(lines, 1):
        if not is_directive(line):
            if first is None and line.strip() and line[:1] != "#":
                first = number
            continue
        text = quoted(line)
        if first is not None:
            why = f"Slurm does not read it: it stands after the first command, line {first}"
            fates.append(LineFate(number, number, text, SHELL, why))
            continue
        if not {"hetjob", "packjob", ":"}.isdisjoint(line.split()):
            raise UsageError(
                f"line {number}: {text}: heterogeneous jobs cannot be converted",
                hint="write a spec with a role for each part, and `resources` in those on nodes "
                "of another kind: `hpcrun help roles`; or a spec for each, joined by depends_on",
            )
        for option in _options(line, number, text):
            if before := found.get(option.name):
                fate, why = DROPPED, f"line {number} gives --{option.name} again: the last counts"
                if option.name == "mail-type":
                    # The one option that adds up.
                    option.value = f"{before.value},{option.value}"
                    fate, why = SPEC, f"notify.mail_types, with line {number}"
                fates.append(LineFate(before.line, before.line, before.text, fate, why))
            found[option.name] = option
    return found, fates


def is_directive(line: str) -> bool:
    """Check whether Slurm takes a line for its own."""
    return re.match(r"#SBATCH(?:\s|$)", line) is not None


def _options(line: str, number: int, text: str) -> Iterator[SbatchOption]:
    rest = line[len("#SBATCH") :].strip()
    if len(rest) > _LONGEST or _TEMPLATE.search(rest):
        # What fills it in later is not known: one option, whatever it is made of.
        name, value = re.match(r"-*([\w-]*)[= ]*(.*)", rest, re.DOTALL).groups()  # type: ignore[union-attr]
        full = _full(name if rest.startswith("--") else SHORT.get(name, name))
        yield SbatchOption(full, value[:80], number, text, is_known=False)
        return
    try:
        words = shlex.split(rest, comments=True)
    except ValueError:
        words = rest.split("#")[0].split()
    while words:
        word = words.pop(0)
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("-"):
            yield SbatchOption("", word, number, text, is_known=False)
            continue
        if not word.startswith("--"):
            letter = word[1:2]
            name = SHORT.get(letter, letter)
            value = word[2:].removeprefix("=")
            equals = value
        name = _full(name)
        takes = name not in _FLAGS and name not in _OPTIONAL
        if not equals and takes and words and not words[0].startswith("--"):
            value = words.pop(0)
        yield SbatchOption(name, value, number, text)


def _full(name: str) -> str:
    """Return the long option that a name, or its beginning, means."""
    name = _ALIASES.get(name, name)
    if name in SBATCH_OPTIONS:
        return name
    known = [*SBATCH_OPTIONS, *_ALIASES]
    near = {_ALIASES.get(one, one) for one in known if name and one.startswith(name)}
    return near.pop() if len(near) == 1 else name
