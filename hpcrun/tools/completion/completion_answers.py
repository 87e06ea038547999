"""Answers to TAB, for the completion scripts of the shells: no click, and in less than 0.1 s."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hpcrun import resources
from hpcrun.errors import EXIT_OK, EXIT_USAGE
from hpcrun.extensions import attribute_at
from hpcrun.text import one_line, shortened

# The variable by which a shell asks for completions.
COMPLETE = "_HPCRUN_COMPLETE"
# Parameter, perhaps of one command -> the function of this package that completes it. It is called
# with the line and the word at the cursor.
COMPLETERS = {
    "spec": "spec_keys:complete_spec",
    "overrides": "spec_keys:complete_override",
    "sweeps": "spec_keys:complete_sweep",
    "words": "condition_keys:complete_only",
    "where": "condition_keys:complete_where",
    "tag where": "run_names:complete_tag",
    "update where": "condition_keys:complete_update",
    "conditions": "condition_keys:complete_condition",
    "filters": "condition_keys:complete_condition",
    "before": "run_names:complete_names",
    "after": "run_names:complete_names",
    "old": "run_names:complete_names",
    "on": "login_nodes:complete_host",
    "on cluster": "login_nodes:complete_host",
}
# Seconds that an answer to TAB may take; and one of a login node.
PATIENCE = 2.0
_FAR_PATIENCE = 6.0
# What a shell that is given it unquoted takes as one word, and executes nothing of.
_SAFE = re.compile(r"[\w.+,/=@:%-]+", re.ASCII)
# The same of a condition: < and > are quoted by zsh, fish and bash's script; in quotes that were
# typed, blanks and brackets are part of a word too.
_CONDITION = re.compile(r"[\w.+,/=@:%<>-][\w.+,/=@:%<>~-]*", re.ASCII)
_QUOTED = re.compile(r"[\w.+,/=@:%<> ()-][\w.+,/=@:%<> ()~-]*", re.ASCII)
# `hpcrun --on HOST …` and `hpcrun on HOST …`, once something follows.
_TYPED_FAR = re.compile(r"\s*\S+\s+(?:--on(?:=|\s+)|on\s+)([^\s=]+)\s+")
_CURSOR = "\x1f"
LONGEST_HELP = 60
# A word to which more is added, so that no space follows it.
PART = "part"


def main() -> None:
    """Print one row an answer: its kind, the word and what it is about, with tabs between.

    The shell passes its line up to the cursor as COMP_WORDS. bash completes only what comes after
    the last ``=`` or ``:``, and passes that as COMP_CURRENT.
    """
    if "COMP_WORDS" not in os.environ:
        sys.stderr.write(
            f"error: {COMPLETE} is set, by which a shell asks for completions, and COMP_WORDS is "
            f"not\nhint: unset {COMPLETE}\n"
        )
        sys.exit(EXIT_USAGE)
    gc.disable()
    with _quiet(), contextlib.suppress(Exception):
        told = "\n".join(rows(os.environ["COMP_WORDS"], os.environ.get("COMP_CURRENT")))
        sys.stdout.write(f"{told}\n")
        sys.stdout.flush()
    sys.exit(EXIT_OK)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Answer in time or not at all: the person typed TAB, and wants no message."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
        # Ends this process from a thread that needs no lock of Python's.
        typed = os.environ["COMP_WORDS"]
        patience = _FAR_PATIENCE if _TYPED_FAR.match(typed) else PATIENCE
        faulthandler.dump_traceback_later(patience, exit=True, file=nowhere)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()


def rows(text: str, current: str | None = None) -> Iterator[str]:
    """Yield the rows for a line up to the cursor, as `main` prints them."""
    if far := _TYPED_FAR.match(text):
        from hpcrun.tools.remote.on_command import completions

        yield from completions(far[1], f"hpcrun {text[far.end() :]}", current)
        return
    words, is_in_quotes = split_line(text + _CURSOR)
    incomplete = words[-1].replace(_CURSOR, "")
    name, equals, _ = incomplete.partition("=")
    head = name + equals if equals and name.startswith("-") else ""
    current = incomplete if current is None else current
    cut = len(incomplete) - len(current) if incomplete.endswith(current) else 0
    for word in _words(words[1:-1], incomplete):
        value = head + word.value
        if word.kind in ("yaml", "file"):
            yield f"{word.kind}\t\t"
        elif _accepted(word, is_in_quotes).fullmatch(value):
            about = shortened(one_line(word.about or ""), LONGEST_HELP)
            yield f"{word.kind}\t{value[cut:]}\t{about.replace(chr(9), ' ')}"


def _accepted(word: Word, is_in_quotes: bool) -> re.Pattern[str]:
    if not word.is_condition:
        return _SAFE
    return _QUOTED if is_in_quotes else _CONDITION


def _words(before: list[str], incomplete: str) -> Iterator[Word]:
    known = known_commands()
    line = read_line(before, known)
    if line.open_option:
        yield from _values(line, line.open_option, incomplete)
    elif incomplete.startswith("-") and not line.options_ended:
        name, equals, value = incomplete.partition("=")
        option = line.option(name)
        if equals and option and option.takes:
            yield from _values(line, option, value)
        elif not equals:
            yield from _options(line, incomplete)
    elif line.command is None:
        for name, command in known["commands"].items():
            if name.startswith(incomplete):
                yield Word(name, about=command["about"])
    elif argument := line.next_argument():
        yield from _values(line, argument, incomplete)


def _options(line: TypedLine, incomplete: str) -> Iterator[Word]:
    for option in line.parameters:
        if option.multiple or option.name not in line.values:
            for name in option.opts:
                if name.startswith(incomplete):
                    yield Word(name, about=option.about)


def _values(line: TypedLine, parameter: Parameter, incomplete: str) -> Iterator[Word]:
    for choice, about in parameter.choices.items():
        if choice.startswith(incomplete):
            yield Word(choice, about=about)
    if parameter.is_path:
        yield Word("", "file")
    named = COMPLETERS.get(f"{line.command} {parameter.name}") or COMPLETERS.get(parameter.name)
    if named:
        yield from attribute_at(f"hpcrun.tools.completion.{named}")(line, incomplete)


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


def known_commands() -> dict[str, Any]:
    """Return what hpcrun takes: ``{"options": […], "commands": {name: {about, parameters}}}``."""
    text = (resources.directory("templates") / "completion" / "commands.json").read_bytes()
    found: dict[str, Any] = json.loads(text)
    return found


def parameters_of(records: Sequence[dict[str, Any]]) -> list[Parameter]:
    """Return the parameters of which commands.json has these records."""
    return [Parameter(**{**record, "opts": tuple(record.get("opts", ()))}) for record in records]


def split_line(line: str) -> tuple[list[str], bool]:
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


def read_line(words: Sequence[str], known: dict[str, Any]) -> TypedLine:
    """Read the words after ``hpcrun``; ``known`` is what `known_commands` returns."""
    line = TypedLine(parameters=parameters_of(known["options"]))
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
            line.parameters = parameters_of(known["commands"].get(word, {}).get("parameters", ()))
        elif argument := line.next_argument():
            line._take(argument, word)
    return line
