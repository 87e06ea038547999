"""Answers to TAB, for the completion scripts of the shells: no click, and in less than 0.1 s."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

from hpcrun.errors import EXIT_OK, EXIT_USAGE
from hpcrun.text import one_line, shortened
from hpcrun.tools.completion import typed_line
from hpcrun.tools.completion.typed_line import Parameter, TypedLine, Word

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
    "conditions": "condition_keys:complete_condition",
    "filters": "condition_keys:complete_condition",
    "before": "run_names:complete_names",
    "after": "run_names:complete_names",
    "old": "run_names:complete_names",
}
# Seconds that an answer to TAB may take.
PATIENCE = 2.0
# What a shell that is given it unquoted takes as one word, and executes nothing of.
_SAFE = re.compile(r"[\w.+,/=@:%-]+", re.ASCII)
# The same of a condition: < and > are quoted by zsh, fish and bash's script; in quotes that were
# typed, blanks and brackets are part of a word too.
_CONDITION = re.compile(r"[\w.+,/=@:%<>-][\w.+,/=@:%<>~-]*", re.ASCII)
_QUOTED = re.compile(r"[\w.+,/=@:%<> ()-][\w.+,/=@:%<> ()~-]*", re.ASCII)
_CURSOR = "\x1f"
LONGEST_HELP = 60


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
        faulthandler.dump_traceback_later(PATIENCE, exit=True, file=nowhere)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()


def rows(text: str, current: str | None = None) -> Iterator[str]:
    """Yield the rows for a line up to the cursor, as `main` prints them."""
    words, is_in_quotes = typed_line.split(text + _CURSOR)
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
    known = typed_line.commands()
    line = typed_line.read(before, known)
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
        module, _, function = named.partition(":")
        complete: Any = getattr(
            importlib.import_module(f"hpcrun.tools.completion.{module}"), function
        )
        yield from complete(line, incomplete)
