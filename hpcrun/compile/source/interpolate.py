"""Resolves ``${…}`` with OmegaConf, except ``${hpcrun:NAME}``.

Those are filled in on compute nodes.
"""

from __future__ import annotations

import re
from typing import Any

from omegaconf import Container, OmegaConf
from omegaconf.errors import (
    GrammarParseError,
    InterpolationKeyError,
    OmegaConfBaseException,
    UnsupportedInterpolationType,
)

from hpcrun.compile.source.marked_tree import Key, Tree, dotted, get_at, keys, map_leaves
from hpcrun.compile.source.problems import Problems, Reporter, did_you_mean, listing

NAMES = ("directory", "deepspeed_config", "attempt", "code", "scratch")
_SHELL = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
_CYCLE = re.compile(r"Recursive interpolation|Interpolation to parent node|recursion depth")
_MARKER = re.compile(r"there is no \$\{hpcrun:")


def _literal(name: str) -> str:
    if name not in NAMES:
        raise ValueError(f"there is no ${{hpcrun:{name}}}")
    return f"${{hpcrun:{name}}}"


try:
    OmegaConf.register_resolver("hpcrun", _literal, replace=True)
except TypeError:  # before OmegaConf 2.4 this name had another meaning
    OmegaConf.register_new_resolver("hpcrun", _literal, replace=True)


def interpolate(tree: Tree, problems: Problems) -> dict[str, Any]:
    """Return the tree's data with every interpolation resolved; add what cannot be to problems."""
    report = Reporter(tree, problems)
    source = _with_valid_grammar(tree, report)
    config = OmegaConf.create(source)

    def resolve(key: Key, value: Any) -> Any:
        if value == "???":
            report.at(key, "must be given", f"add {dotted(key)}=VALUE to the command")
            return None
        return _resolve(config, source, key, value, report)

    result: dict[str, Any] = map_leaves(resolve, source)
    return result


def interpolate_one(tree: Tree, key: Key, problems: Problems) -> Any:
    """Return one value of the tree, resolved; None and a problem when it cannot be."""
    value = get_at(tree.data, key)
    if not isinstance(value, str) or "${" not in value:
        return value
    before = len(problems.found)
    report = Reporter(tree, problems)
    data = _with_valid_grammar(tree, report)
    if len(problems.found) > before:
        return None
    return _resolve(OmegaConf.create(data), data, key, value, report)


def _resolve(config: Any, source: dict[str, Any], key: Key, value: Any, report: Reporter) -> Any:
    if not isinstance(value, str) or "${" not in value:
        return value
    try:
        return _get(config, source, key)
    except (OmegaConfBaseException, RecursionError) as error:
        report.at(key, *_explain(error, value, source))
        return None


def _get(config: Any, source: Any, key: Key) -> Any:
    node, plain = config, source
    for part in key:
        index: Any = int(part) if isinstance(plain, list) else part
        node, plain = node[index], plain[index]
    if isinstance(node, Container):
        return OmegaConf.to_container(node, resolve=True)
    return node


def _with_valid_grammar(tree: Tree, report: Reporter) -> dict[str, Any]:
    """Return the data, with null for interpolations that OmegaConf cannot even read."""

    def check(key: Key, value: Any) -> Any:
        if isinstance(value, str) and "${" in value:
            try:
                OmegaConf.create({"value": value})
            except GrammarParseError:
                hint = r"interpolations are ${key} and ${oc.env:NAME}; a literal ${ is written \${"
                report.at(key, f"{value!r} is not a valid interpolation", hint)
                return None
        return value

    result: dict[str, Any] = map_leaves(check, tree.data)
    return result


def _explain(error: Exception, value: str, data: dict[str, Any]) -> tuple[str, str | None]:
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    if isinstance(error, RecursionError) or _CYCLE.search(text):
        return f"{value} is an interpolation cycle: it refers back to itself", None
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
    hint = did_you_mean(name, (dotted(key) for key in keys(data)))
    if not hint and _SHELL.match(name):
        hint = (
            f"for a variable of the job's shell write ${name} or \\${{{name}}}, for one of "
            f"this shell ${{oc.env:{name}}}"
        )
    return f"{value} refers to the key {name!r}, which does not exist", hint
