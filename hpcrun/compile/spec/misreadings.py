"""Values that are read otherwise than the person who typed them may have meant."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from hpcrun.compile.source import yaml_reader
from hpcrun.compile.source.marked_tree import (
    COMMAND_LINE,
    Key,
    Reporter,
    SourceMark,
    Tree,
    dotted,
    get_at,
    leaves,
)
from hpcrun.compile.source.problems import Problems, kind_of, listing
from hpcrun.compile.spec import schema
from hpcrun.compile.spec.compose import Override
from hpcrun.compile.sweep import foreign_forms
from hpcrun.compile.sweep.draws import is_whole
from hpcrun.compile.sweep.foreign_forms import HYDRA
from hpcrun.compile.sweep.point import Point
from hpcrun.compile.target.entry import SHELL_SIGNS
from hpcrun.slurm.parse import parse_duration
from hpcrun.state.spec.experiment import Spec
from hpcrun.text import duration, shortened

_FREE = ("config", "deepspeed")
# Blocks whose texts reach the program as they are written.
_LITERAL: tuple[Key, ...] = (
    ("config",),
    ("deepspeed",),
    ("entry",),
    ("args",),
    ("environment", "variables"),
)
_VARIABLE = re.compile(r"\$([A-Z_][A-Z0-9_]*)")
# An option with its value, in one word of a list.
_OPTION = re.compile(r"--?[A-Za-z][\w-]* \S+")
# Signs that word processors, mails and PDF put in place of what was typed.
_PLAIN = str.maketrans("\u201c\u201d\u201e\u2018\u2019\u2212\xa0", '"""\'\'- ')
_QUOTED_OR_NUMBER = re.compile(r"\s*(?:([\"']).*\1|[-+]?\.?\d\S*)\s*")
# What comes before the script of a shell.
_SCRIPT = re.compile(r"-[a-z]*c")
_OCTAL = re.compile(r"[-+]?0[0-7_]+")
_DAY = 24 * 60
_TIMES: tuple[Key, ...] = (
    ("resources", "time"),
    ("recovery", "hang_after"),
    ("recovery", "stop_before"),
    ("recovery", "warm_after"),
)
_MEMORY: Key = ("resources", "mem")
# Fewer MB than a Python with torch takes.
_LITTLE = 2_000
# Notes of one kind.
_MOST = 5


def check_override(
    override: Override, known: Tree, earlier: Mapping[Key, Override], problems: Problems
) -> bool:
    """Report or note a value of the command line that is not what it seems; False after a problem.

    ``known`` is the spec with all keys that may be overridden, before this one is.
    """
    key, name = override.key, dotted(override.key)
    value, text = get_at(override.value.data, key), override.typed.partition("=")[2]
    old = get_at(known.data, key)
    report = Reporter(override.value, problems)
    if key in earlier:
        first = earlier[key].typed
        found = f"is given twice, {first} and {override.typed}: the last one counts"
        report.note(key, found, "`--sweep key=a,b` sweeps")
    elif isinstance(value, str) and text[:1] not in ("'", '"'):
        sweep = f"--sweep {name}={text}"
        if HYDRA.fullmatch(text):
            found = f"found {text!r}, which is Hydra's or numpy's and here a text"
            inside = text.partition("(")[2][:-1]
            hint = f"to sweep: --sweep {name}={inside}; the text: {name}='\"{text}\"'"
            report.at(key, found, hint)
            return False
        if "," in text and _is_number_at(key, old) and _are_plain(text.split(",")):
            found = f"found {text!r}; accepted is one value, {_default_text(old, key, known)}"
            hint = f"to sweep: {sweep}; the text: {name}='\"{text}\"'"
            report.at(key, found, hint)
            return False
        was_one = old is None or (isinstance(old, str) and "," not in old)
        if "," in text and key[0] in _FREE and was_one:
            report.note(key, f"is the one text {text!r}", f"to sweep: {sweep}")
    problem = _change(old, value, key, known)
    if problem is not None:
        report.note(key, *problem)
    return True


def note_swept(points: Iterable[Point], known: Tree, problems: Problems) -> None:
    """Note swept values that are of another kind than what the spec has at their key."""
    said: set[Key] = set()
    seen: set[int] = set()
    for point in points:
        for one in point:
            if id(one) in seen or one.key in said:
                continue
            seen.add(id(one))
            report = Reporter(Tree({}, {one.key: one.mark}), problems)
            old = get_at(known.data, one.key)
            if one.key[0] in _FREE:
                _note_some(report, _yaml_words(one.value, one.key, report.tree.marks))
            if isinstance(one.value, list) and _is_number(old):
                found = f"takes the list {json.dumps(one.value)} as one value"
                items = ",".join(map(str, one.value))
                said.add(one.key)
                report.note(one.key, found, f"--sweep {dotted(one.key)}={items} sweeps its items")
            elif (problem := _change(old, one.value, one.key, known)) is not None:
                said.add(one.key)
                report.note(one.key, *problem)


def check_swept_overrides(
    overrides: Mapping[Key, Override],
    points: Sequence[Point],
    problems: Problems,
    *,
    conditions: Mapping[Key, Mapping[str, list[Any]]] | None,
) -> None:
    """Report values of the command line that no run has, as each sweeps the key.

    ``conditions`` has the ``when`` of each key of a search; it is None for a sweep.
    """
    for key, override in overrides.items():
        having = sum(any(one.key == key for one in point) for point in points)
        name, report = dotted(key), Reporter(override.value, problems)
        if when := (conditions or {}).get(key):
            names = listing(when)
            report.note(key, f"counts in runs whose {names} is not as its when says")
        elif having == len(points):
            value = override.typed.partition("=")[2]
            found = f"found {override.typed}, and the spec sweeps {name}: no run would have it"
            hint = f"in place of the swept values: --sweep {name}={value}"
            is_search = conditions is not None
            report.at(key, found, "without the search: sweep=null beside it" if is_search else hint)
        elif having:
            found = f"counts in {len(points) - having} of {len(points)} runs: the others sweep it"
            report.note(key, found)


def note_values(tree: Tree, problems: Problems) -> None:
    """Note what YAML reads as something else, and what no shell will expand."""
    report = Reporter(tree, problems)
    for name in _FREE:
        _note_some(report, _yaml_words(tree.data.get(name), (name,), tree.marks))
    for block in _LITERAL:
        value = get_at(tree.data, block)
        words = value if isinstance(value, list) else []
        if not any(_SCRIPT.fullmatch(str(word)) for word in words):
            _note_some(report, _unexpanded(value, block))
    _note_some(report, _bare_numbers(tree.data))
    time = get_at(tree.data, ("resources", "time"))
    if isinstance(time, (str, int)) and (reading := time_reading(str(time))):
        hours = parse_duration(f"{time}:00") if ":" in str(time) else None
        hint = None if hours is None else f'"{time}:00" is {duration(hours)}'
        report.note(("resources", "time"), f"{time} is read as {reading}, as sbatch does", hint)


def _bare_numbers(data: dict[str, Any]) -> Iterator[tuple[Key, str, str]]:
    """Yield times and sizes without a unit, of which few mean Slurm's."""
    for key in _TIMES:
        text = str(get_at(data, key))
        if text.isdecimal() and 0 < int(text) < _DAY:
            found = f"{text} is read as {duration(60.0 * int(text))}, as sbatch does"
            minutes, seconds = divmod(int(text), 60)
            meant = f"{text}:00:00" if key[0] == "resources" else f"00:{minutes:02}:{seconds:02}"
            yield key, found, f'"{meant}" is {duration(parse_duration(meant) or 0.0)}'
    memory = str(get_at(data, _MEMORY))
    if memory.isdecimal() and 0 < int(memory) < _LITTLE:
        yield _MEMORY, f"{memory} is read as {memory} MB, as sbatch does", f"{memory}G is in GB"


def time_reading(text: str) -> str | None:
    """Return what Slurm reads a short form of a time limit as; None for forms that are plain."""
    seconds = parse_duration(text)
    if seconds is None or text.count(":") > 1 or "-" in text:
        return None
    if ":" in text:
        return f"{duration(seconds)} (minutes:seconds)"
    return f"{text} minutes, {duration(seconds)}" if seconds >= _DAY * 60 else None


def _note_some(report: Reporter, found: Iterator[tuple[Key, str, str]]) -> None:
    for key, message, hint in itertools.islice(found, _MOST):
        report.note(key, message, hint)


def _yaml_words(
    value: Any, block: Key, marks: Mapping[Key, SourceMark]
) -> Iterator[tuple[Key, str, str]]:
    """Yield the values that are words or numbers only to YAML 1.1."""
    for key, leaf in leaves(value, block):
        mark = marks.get(key)
        if mark is None or (text := mark.text) is None or isinstance(leaf, str):
            continue
        if isinstance(leaf, bool) and text.lower() not in ("true", "false"):
            read, or_else = str(leaf).lower(), ""
        elif isinstance(leaf, int) and _OCTAL.fullmatch(text) and leaf != int(text):
            read, or_else = f"{leaf} (octal)", f"; the number: {int(text)}"
        else:
            continue
        quoted = f"'\"{text}\"'" if mark.file == COMMAND_LINE else f'"{text}"'
        yield key, f"{text} is read as {read}, as YAML does", f"the text: {quoted}{or_else}"


def _unexpanded(value: Any, block: Key) -> Iterator[tuple[Key, str, str]]:
    """Yield texts that a shell would expand, and that reach the program as they are."""
    for key, leaf in leaves(value, block):
        if not isinstance(leaf, str):
            continue
        if block in (("args",), ("entry",)) and (words := leaf.split())[:1]:
            if words[0] in SHELL_SIGNS:
                found = f"{shortened(leaf, 80)!r} is an argument: no shell reads it"
                yield key, found, "`entry: [sh, -c, TEXT]` is read by one"
                return
            if _OPTION.fullmatch(leaf):
                found = f"{shortened(leaf, 80)!r} is one argument, with its blank"
                yield key, found, f"two are [{words[0]}, {json.dumps(' '.join(words[1:]))}]"
        plain = leaf.translate(_PLAIN)
        if plain != leaf and _QUOTED_OR_NUMBER.fullmatch(plain):
            signs = " ".join(sorted(repr(one) for one in {*leaf} - {*plain}))
            found = f"{shortened(leaf, 80)!r} holds {signs}, which stays a part of it"
            yield key, found, f"typed: {plain.strip()}"
        elif leaf.startswith("~/"):
            found = f"{shortened(leaf, 80)!r} stays as it is: no shell reads it"
            yield key, found, "${oc.env:HOME}" + leaf[1:]
        elif variable := _VARIABLE.search(leaf):
            found = f"{shortened(leaf, 80)!r} stays as it is: no shell reads it"
            yield key, found, f"${{oc.env:{variable[1]}}} is this shell's"


def _change(old: Any, value: Any, key: Key, known: Tree) -> tuple[str, str | None] | None:
    """Return what is said of a value of another kind than before; None where nothing is."""
    if isinstance(value, str) and value == "None" and key[0] in _FREE:
        return "is the text 'None'", f"null is none: {dotted(key)}=null"
    if isinstance(old, bool) or _is_number(old):
        if isinstance(value, str) and value != "auto" and "${" not in value:
            if key[0] not in _FREE:
                return None
            return f"is the text {value!r}, and was {_default_text(old, key, known)}", _range(
                key, value
            )
        if isinstance(old, bool) and _is_number(value):
            return (
                f"is the number {value}, and was {_default_text(old, key, known)}",
                "true or false",
            )
    if isinstance(old, dict) and old and not isinstance(value, dict) and value is not None:
        inside = f"{dotted(key)}.{next(iter(old))}=VALUE sets one of them"
        return f"is {json.dumps(value)}, and was a mapping of {listing(old, 4)}", inside
    if is_whole(old) and isinstance(value, float) and value.is_integer():
        return f"is {value}, and was {_default_text(old, key, known)}", f"type {int(value)}"
    if is_whole(old) and isinstance(value, float) and abs(old) > 1:
        hint = "whole numbers of a sweep are drawn by {int_uniform: [LOW, HIGH]}"
        return f"is {value}, and was {_default_text(old, key, known)}", hint
    return None


def _range(key: Key, value: str) -> str | None:
    """Return what to type for ``0:5`` or ``0-5``, which mean numbers in a row elsewhere."""
    row = foreign_forms.row_of(value)
    return f"--sweep {dotted(key)}={','.join(map(str, row))}" if row else None


def _is_number_at(key: Key, old: Any) -> bool:
    """Return whether a key has a number, or true or false, or may have nothing else."""
    annotation = schema.find(Spec, key)
    typed = {annotation, *get_args(annotation)}
    return isinstance(old, bool) or _is_number(old) or not typed.isdisjoint({int, float, bool})


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _are_plain(words: Iterable[str]) -> bool:
    """Return whether words are numbers, or true and false."""
    found = (yaml_reader.parse_value(word, "", Path(), Problems()) for word in words)
    return all(
        one is not None and isinstance(one.data["value"], (bool, int, float)) for one in found
    )


def _default_text(old: Any, key: Key, known: Tree) -> str:
    if old is None:
        return "a number"
    mark = known.mark(key)
    where = f", {mark.file}:{mark.line}" if mark.line is not None else ""
    return f"{kind_of(old)} ({json.dumps(old)}{where})"
