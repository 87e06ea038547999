"""Resolves ``${…}`` with OmegaConf, except ``${hpcrun:NAME}``.

Those are filled in on compute nodes.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from typing import Any

from omegaconf import Container, DictConfig, ListConfig, OmegaConf
from omegaconf.errors import (
    GrammarParseError,
    InterpolationKeyError,
    InterpolationResolutionError,
    OmegaConfBaseException,
    UnsupportedInterpolationType,
)
from omegaconf.resolvers import oc

from hpcrun import feature
from hpcrun.compile.source import limits
from hpcrun.compile.source.marked_tree import Key, Reporter, Tree, dotted, get_at, keys, map_leaves
from hpcrun.compile.source.problems import Problems, did_you_mean, listing
from hpcrun.state.spec.recovery_block import NEWEST, NEWEST_DIRECTORY, NEWEST_STEP

NAMES = (
    *("directory", "work", "deepspeed_config", "attempt", "code", "scratch"),
    *(name for one in feature.every().values() for name in one.placeholders),
    *(NEWEST, NEWEST_DIRECTORY, NEWEST_STEP),
)
_SHELL = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
_CYCLE = re.compile(r"Recursive interpolation|Interpolation to parent node|recursion depth")
_MARKER = re.compile(r"there is no \$\{hpcrun:")
# The grammar takes time by the length of a string and the square of its depth.
_LONGEST, MOST_IN_ONE = 4_000, 50
_MOST_CHARACTERS, MOST_REFERENCES = 64_000, 2_000
# What references lead to, in values: a reference takes as long as about 30, or 6,000 characters.
_MOST_COPIED = 60_000


def _literal(name: str) -> str:
    if name not in NAMES:
        raise ValueError(f"there is no ${{hpcrun:{name}}}")
    return f"${{hpcrun:{name}}}"


# Each takes the names of variables that are read in the block of a `variables_read`.
_readers: list[set[str]] = []


def _variable(*arguments: Any) -> Any:
    """Resolve ``${oc.env:NAME}`` as OmegaConf does, and note the name of a variable that is set."""
    if arguments and arguments[0] in os.environ:
        for names in _readers:
            names.add(arguments[0])
    return oc.env(*arguments)


for _name, _resolver in (("hpcrun", _literal), ("oc.env", _variable)):
    try:
        OmegaConf.register_resolver(_name, _resolver, replace=True)
    except TypeError:  # before OmegaConf 2.4 this method had another meaning
        OmegaConf.register_new_resolver(_name, _resolver, replace=True)


@contextlib.contextmanager
def variables_read() -> Iterator[set[str]]:
    """Collect the names of the environment variables that interpolations read in the block.

    A reference can be put together from others, so that its text may not tell what it reads.
    """
    names: set[str] = set()
    _readers.append(names)
    try:
        yield names
    finally:
        _readers.pop()


class _Meter:
    """The count of what references led to, each of which may hold others, many times over."""

    def __init__(self) -> None:
        self.copied = 0

    @property
    def is_over(self) -> bool:
        return self.copied > _MOST_COPIED

    def take(self, values: int) -> None:
        """Count values; raise InterpolationResolutionError if they are too many."""
        self.copied += values
        if self.is_over:
            raise InterpolationResolutionError("too many references")

    def expand(self, value: Any, depth: int = 0) -> Any:
        """Return what a reference led to as plain data, all that it refers to itself copied in."""
        if not isinstance(value, (DictConfig, ListConfig)):
            return value
        if depth > 2 * limits.DEEPEST:
            raise RecursionError
        self.take(len(value))
        if isinstance(value, ListConfig):
            return [self._item(value, index, depth) for index in range(len(value))]
        return {key: self._item(value, key, depth) for key in value}

    def _item(self, around: Any, key: Any, depth: int) -> Any:
        plain = around._get_node(key)._value()
        is_final = plain == "???" or not isinstance(plain, (str, dict, list))
        return plain if is_final else self.expand(around[key], depth + 1)


@contextlib.contextmanager
def _metered() -> Iterator[_Meter]:
    """Count the references that OmegaConf follows, all of which pass through one function of it."""
    meter, select = _Meter(), Container._select_impl

    def metered(self: Container, *args: Any, **options: Any) -> Any:
        found = select(self, *args, **options)
        text = found[2]._value() if found[2] is not None else None
        meter.take(30 + (len(text) // 200 if isinstance(text, str) else 0))
        return found

    Container._select_impl = metered  # type: ignore[method-assign]
    try:
        yield meter
    finally:
        Container._select_impl = select  # type: ignore[method-assign]


def interpolate(tree: Tree, problems: Problems) -> dict[str, Any]:
    """Return the tree's data with every interpolation resolved; add what cannot be to problems."""
    report = Reporter(tree, problems)
    source = _with_valid_grammar(report)
    config = _created(source, report)

    def resolve(key: Key, value: Any) -> Any:
        if value == "???":
            report.at(key, "must be given", f"add {dotted(key)}=VALUE to the command")
            return None
        return _resolve(config, source, key, value, report, meter)

    with _metered() as meter:
        result: dict[str, Any] = map_leaves(resolve, source)
    problems.extent.copied += meter.copied
    return result


def interpolate_one(tree: Tree, key: Key, problems: Problems) -> Any:
    """Return one value of the tree, resolved; None and a problem when it cannot be."""
    value = get_at(tree.data, key)
    if not isinstance(value, str) or "${" not in value:
        return value
    before = len(problems.found)
    report = Reporter(tree, problems)
    data = _with_valid_grammar(report)
    if len(problems.found) > before:
        return None
    with _metered() as meter:
        return _resolve(_created(data, report), data, key, value, report, meter)


def _created(source: dict[str, Any], report: Reporter) -> Any:
    try:
        return OmegaConf.create(source)
    except RecursionError:
        report.at((), "the spec with what is swept and overridden is nested too deeply")
        report.problems.check()


def _resolve(
    config: Any, source: dict[str, Any], key: Key, value: Any, report: Reporter, meter: _Meter
) -> Any:
    if not isinstance(value, str) or "${" not in value:
        return value
    try:
        return meter.expand(_get(config, source, key))
    except (OmegaConfBaseException, RecursionError) as error:
        if meter.is_over:
            found = "by here, what interpolations refer to refers to others too many times over"
            report.at(key, found, "write the value out, or have the program compute it")
            report.problems.check()
        report.at(key, *_explain(error, value, source))
        return None


def _get(config: Any, source: Any, key: Key) -> Any:
    node, plain = config, source
    for part in key:
        index: Any = int(part) if isinstance(plain, list) else part
        node, plain = node[index], plain[index]
    return node


def _with_valid_grammar(report: Reporter) -> dict[str, Any]:
    """Return a tree's data, with null for interpolations that OmegaConf cannot even read."""
    characters = references = 0

    def check(key: Key, value: Any) -> Any:
        nonlocal characters, references
        if not isinstance(value, str) or "${" not in value:
            return value
        characters, references = characters + len(value), references + value.count("${")
        if len(value) > _LONGEST or value.count("${") > MOST_IN_ONE:
            found = f"{len(value):,} characters with {value.count('${'):,} interpolations"
            accepted = f"accepted in one value are {_LONGEST:,} with {MOST_IN_ONE}"
            report.at(key, f"found {found}; {accepted}", "have the program put it together")
            return None
        if characters > _MOST_CHARACTERS or references > MOST_REFERENCES:
            found = f"more than {MOST_REFERENCES:,} interpolations, or {_MOST_CHARACTERS:,} "
            report.at(
                (), f"{found}characters in values with them", "have the program put it together"
            )
            report.problems.check()
        try:
            OmegaConf.create({"value": value})
        except (GrammarParseError, RecursionError):
            hint = r"interpolations are ${key} and ${oc.env:NAME}; a literal ${ is written \${"
            report.at(key, f"{value!r} is not a valid interpolation", hint)
            return None
        return value

    result: dict[str, Any] = map_leaves(check, report.tree.data)
    return result


def _explain(error: Exception, value: str, data: dict[str, Any]) -> tuple[str, str | None]:
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    if isinstance(error, RecursionError) or _CYCLE.search(text):
        found = "it refers back to itself, or through too many others"
        return f"{value} is an interpolation cycle: {found}", None
    if isinstance(error, UnsupportedInterpolationType):
        name = text.rsplit(" ", 1)[-1]
        known = ("oc.env", "oc.decode", "oc.select", "hpcrun")
        hint = did_you_mean(name, known) or f"there are {listing(known)}"
        return f"{value} asks for a resolver {name!r} that does not exist", hint
    if _MARKER.search(text):
        names = listing(f"${{hpcrun:{name}}}" for name in NAMES)
        unknown = re.search(r"\$\{hpcrun:([^}]*)\}", text)
        word = unknown[1] if unknown else ""
        return f"{value} does not exist; accepted are {names}", did_you_mean(word, NAMES)
    if missing := re.search(r"Environment variable '([^']*)' not found", text):
        name = missing[1]
        hint = f"export it, or give a default: ${{oc.env:{name},VALUE}}"
        return f"the environment variable {name} is not set", hint
    if isinstance(error, InterpolationKeyError):
        unknown = re.search(r"'([^']*)'", text)
        wanted = unknown[1] if unknown else ""
        return _unknown_key(value, wanted, data)
    return f"{value} cannot be resolved: {text}", None


def _unknown_key(value: str, name: str, data: dict[str, Any]) -> tuple[str, str | None]:
    # The mapping that it would be in is not what was meant by it.
    known = (dotted(key) for key in keys(data))
    hint = did_you_mean(name, (one for one in known if not name.startswith(f"{one}.")))
    if not hint and _SHELL.match(name):
        hint = (
            f"for a variable of the job's shell write ${name} or \\${{{name}}}, for one of "
            f"this shell ${{oc.env:{name}}}"
        )
    return f"{value} refers to the key {name!r}, which does not exist", hint
