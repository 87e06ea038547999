"""The variables of a script: what is certain of their values, and which come from outside."""

from __future__ import annotations

import re
from collections import Counter

from hpcrun.compile.target.launch_words import OF_SHAPE, UNKNOWN
from hpcrun.tools.init.convert.shell_scan import ShellScript, ShellWord

_SET = re.compile(r"(?<![\w$])([A-Za-z_]\w*)(?:\[[^]\n]*\])?\+?=", re.ASCII)
_COMMENT = re.compile(r"(?m)(?:^|(?<=[ \t;]))#.*$")
_NAMED = re.compile(r"([A-Za-z_]\w*)=", re.ASCII)
_SETTERS = re.compile(
    r"\b(?:for|read|unset|select|mapfile|readarray|getopts|printf -v|local|declare)\b([^\n;]*)"
)
_DECLARES = frozenset(("export", "readonly"))
_ONE_WORD = re.compile(r"[\w./:=,@%+-]*", re.ASCII)
# Of the shell, of every login, or of Slurm.
_OF_EVERY_JOB = """
HOME USER LOGNAME PATH SHELL PWD OLDPWD HOSTNAME HOSTTYPE OSTYPE LANG TERM TMPDIR RANDOM SECONDS
LINENO UID EUID PPID IFS PS1 PS4 OPTARG OPTIND REPLY FUNCNAME PIPESTATUS SHELLOPTS EPOCHSECONDS
BASHPID BASH_VERSION BASH_SOURCE BASH_REMATCH BASH_LINENO BASH_COMMAND MACHTYPE SHLVL
CUDA_VISIBLE_DEVICES LD_LIBRARY_PATH LIBRARY_PATH CPATH PYTHONPATH MANPATH MODULEPATH
"""
_ALWAYS = frozenset(_OF_EVERY_JOB.split())


class Variables:
    """What the text of a script says of its variables."""

    def __init__(self, script: ShellScript) -> None:
        self._script = script
        self._times = Counter(_SET.findall(script.text))
        # Variable -> the line that sets it first; comments set nothing.
        self._set: dict[str, int] = {}
        for match in _SET.finditer(_COMMENT.sub(lambda one: " " * len(one[0]), script.text)):
            self._set.setdefault(match[1], script.line(match.start()))
        for match in _SETTERS.finditer(script.text):
            names = re.findall(r"[A-Za-z_]\w*", match[1][:2000])
            self._times.update(2 * names)
            self._set |= dict.fromkeys(names, 0)
        self._values = dict(self._constants())

    def _constants(self) -> dict[str, ShellWord]:
        """Return what plain statements of the script's own level set once, and nobody may change.

        A file that is sourced, and `eval`, may change all that was set before.
        """
        found: dict[str, ShellWord] = {}
        for statement in self._script.statements:
            command = statement.simple
            if any(one.program in ("source", ".", "eval") for one in statement.commands):
                found.clear()
            if command is None or command.is_redirected:
                continue
            given = dict(command.assigned) if not command.words else {}
            if command.program in _DECLARES:
                for word in command.words[1:]:
                    if match := _NAMED.match(word.raw):
                        given[match[1]] = word.after(match.end())
            once = ((name, value) for name, value in given.items() if self._times[name] == 1)
            found |= {name: value for name, value in once if value is not None}
        return found

    def text(self, word: ShellWord) -> list[str] | None:
        """Return the words that bash makes of a word, with `UNKNOWN` for what is not certain.

        None where not even their number is.
        """
        if word.is_pattern:
            return None
        made, is_open = [""], False
        for part in word.parts:
            value = part.text
            if part.kind == "variable":
                value = self._value(part.text)
            elif part.kind == "other":
                value = UNKNOWN
            is_whole = part.kind == "text" or part.is_quoted
            if is_whole or (UNKNOWN in value and not re.search(r"\s", value)):
                made[-1] += value
                is_open = is_open or is_whole
                continue
            if not all(_ONE_WORD.fullmatch(one) for one in value.split()):
                return None
            first, *others = [*re.split(r"\s+", value)] if value else [""]
            made[-1] += first
            made += others
        return [one for one in made if one or (is_open and len(made) == 1)]

    def _value(self, name: str, depth: int = 0) -> str:
        word = self._values.get(name)
        if name in OF_SHAPE:
            return f"{UNKNOWN}{name}"
        if word is None or depth > 5 or word.is_pattern:
            return UNKNOWN
        found = ""
        for part in word.parts:
            if part.kind == "variable":
                found += self._value(part.text, depth + 1)
            else:
                found += part.text if part.kind == "text" else UNKNOWN
        return found

    def outside(self) -> dict[str, tuple[int, bool]]:
        """Return variables that nothing in the script sets before, as `ShellScript.reads` has them.

        ``X=${X:-1}`` sets one that may be set outside; without a default it would be its own.
        """
        found = {}
        for name, (line, is_given) in self._script.reads.items():
            is_outside = name not in self._set or (is_given and line <= self._set[name])
            is_known = name in _ALWAYS or name.startswith(("SLURM_", "SLURMD_", "HPCRUN_"))
            if is_outside and not is_known:
                found[name] = line, is_given
        return found
