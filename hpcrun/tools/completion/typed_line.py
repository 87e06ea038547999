"""A command line up to the cursor, read without click, whose import takes longer than TAB may."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hpcrun import resources

# A word to which more is added, so that no space follows it.
PART = "part"


class Word(NamedTuple):
    """One answer to TAB."""

    value: str
    kind: str = "plain"
    """``plain``, `PART`, or ``yaml`` and ``file``, which the shell itself looks for."""
    about: str | None = ""
    is_condition: bool = False
    """Part of a condition such as ``lr>=1e-3``, in which more signs are usual."""


@dataclass(frozen=True)
class Parameter:
    """An option or an argument of a command, as ``templates/completion/commands.json`` has it."""

    name: str
    opts: tuple[str, ...] = ()
    """``-s``, ``--sweep``; empty for an argument."""
    takes: int = 1
    """Words of its value: 0 for a flag, -1 for any number."""
    multiple: bool = False
    about: str = ""
    choices: dict[str, str] = field(default_factory=dict)
    """What it may be -> what that is about."""
    is_path: bool = False


@dataclass
class TypedLine:
    """The words of a line before the one at the cursor, as the command will understand them."""

    command: str | None = None
    parameters: list[Parameter] = field(default_factory=list)
    """Those that the word at the cursor may be about: of the command, or before it of hpcrun."""
    values: dict[str, list[str]] = field(default_factory=dict)
    """Parameter's name -> what was typed for it so far."""
    open_option: Parameter | None = None
    """The option whose value comes next."""
    options_ended: bool = False
    """``--`` was typed: no word after it is an option."""

    def given(self, name: str) -> str | None:
        """Return what was typed for a parameter last."""
        typed = self.values.get(name)
        return typed[-1] if typed else None

    def option(self, name: str) -> Parameter | None:
        """Return the option ``--name`` or ``-n`` of the command."""
        return next((one for one in self.parameters if name in one.opts), None)

    def next_argument(self) -> Parameter | None:
        """Return the argument that a word at the cursor would be."""
        for one in self.parameters:
            if not one.opts and (one.takes < 0 or len(self.values.get(one.name, ())) < one.takes):
                return one
        return None

    def _take(self, parameter: Parameter, word: str) -> None:
        self.values.setdefault(parameter.name, []).append(word)

    def _read_option(self, word: str) -> None:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            option = self.option(name)
            if option and option.takes and not equals:
                self.open_option = option
            elif option:
                self._take(option, value)
            return
        # A cluster of short options: -qn, -s key=a,b, -skey=a,b.
        for place, letter in enumerate(word[1:], 2):
            option = self.option(f"-{letter}")
            if option and option.takes:
                if word[place:]:
                    self._take(option, word[place:])
                else:
                    self.open_option = option
                return
            if option:
                self._take(option, "")


def commands() -> dict[str, Any]:
    """Return what hpcrun takes: ``{"options": […], "commands": {name: {about, parameters}}}``."""
    text = (resources.directory("templates") / "completion" / "commands.json").read_bytes()
    found: dict[str, Any] = json.loads(text)
    return found


def parameters(records: Sequence[dict[str, Any]]) -> list[Parameter]:
    """Return the parameters of which commands.json has these records."""
    return [Parameter(**{**record, "opts": tuple(record.get("opts", ()))}) for record in records]


def split(line: str) -> tuple[list[str], bool]:
    """Split a line as a shell does; return its words and whether it ends inside quotes."""
    lexer: Any = shlex.shlex(line, posix=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    try:
        words.extend(iter(lexer.get_token, None))
    except ValueError:
        is_in_quotes = lexer.state in ("'", '"')
        return [*words, lexer.token], is_in_quotes
    return words, False


def read(words: Sequence[str], known: dict[str, Any]) -> TypedLine:
    """Read the words after ``hpcrun``; ``known`` is what `commands` returns."""
    line = TypedLine(parameters=parameters(known["options"]))
    for word in words:
        if line.open_option:
            line._take(line.open_option, word)
            line.open_option = None
        elif word == "--" and not line.options_ended:
            line.options_ended = True
        elif len(word) > 1 and word.startswith("-") and not line.options_ended:
            line._read_option(word)
        elif line.command is None:
            line.command = word
            line.parameters = parameters(known["commands"].get(word, {}).get("parameters", ()))
        elif argument := line.next_argument():
            line._take(argument, word)
    return line
