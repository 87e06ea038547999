"""Reads YAML and JSON files into trees, without the surprises of YAML.

Duplicate keys and base-60 numbers (``12:00:00``) are problems, ``3e-4`` is a number, dates stay
strings, and every value keeps its file and line.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from hpcrun.compile.source import limits
from hpcrun.compile.source.limits import TooMuch, unwritable
from hpcrun.compile.source.marked_tree import (
    COMMAND_LINE,
    Key,
    Reporter,
    SourceMark,
    Tree,
    dotted,
    keys,
    leaves,
)
from hpcrun.compile.source.problems import Problems, kind_of
from hpcrun.errors import Problem
from hpcrun.state import files

_BASE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_AS_UTF8 = "save the file as UTF-8 (iconv -t UTF-8 converts)"
# libyaml's own limit, which its newer releases meet before a text's events tell its depth.
_TOO_DEEP = "exceeded maximum nesting depth"
_FLOAT = re.compile(
    r"""^(?:[-+]?(?:[0-9][0-9_]*)\.[0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?(?:[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)
    |[-+]?\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?\.(?:inf|Inf|INF)
    |\.(?:nan|NaN|NAN))$""",
    re.VERBOSE,
)
# What stands around an interpolation without quotes between commas and brackets.
_BEFORE = re.compile(r"""[^,\[\]{}"']*$""")
_INTERPOLATED = re.compile(r"""(?:\$\{[^{}"']*\}|[^,\[\]{}"'])*""")
_BASE60 = re.compile(r"^[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?$")


class _Loader(_BASE):  # type: ignore[misc]
    """Composes nodes only; `_Builder` makes the values."""


def _resolvers() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    table = {
        first: [
            (tag, pattern)
            for tag, pattern in pairs
            if tag not in (_TAG + "timestamp", _TAG + "float", _TAG + "value")
        ]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    for first in "-+0123456789.":
        table.setdefault(first, []).insert(0, (_TAG + "float", _FLOAT))
    return table


_Loader.yaml_implicit_resolvers = _resolvers()


def read_yaml(path: Path, shown: str, problems: Problems, text: str | None = None) -> Tree | None:
    """Read one YAML file whose top level is a mapping; None when nothing could be read from it.

    Messages name it as ``shown``; duplicate keys are among the problems. A file that is not written
    is its ``text``.
    """
    if text is None:
        problems.files.append(path)
        text = read_text(path, shown, problems)
    if text is None:
        return None
    builder = _Builder(shown, path.parent, problems)
    try:
        data = builder.parse(text)
    except (yaml.YAMLError, TooMuch) as error:
        problems.add(_unread(error, shown, text))
        return None
    marks = {**builder.marks, (): SourceMark(shown, 1, path.parent)}
    return _top_level(Tree(data, marks), "a mapping", problems)


def read_json(path: Path, shown: str, problems: Problems) -> Tree | None:
    """Read one JSON file whose top level is an object, as `read_yaml` does."""
    problems.data_files.append(path)
    text = read_text(path, shown, problems)
    if text is None:
        return None

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = "the key is given twice in one object"
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                problems.add(Problem(shown, name, found, "remove one"))
            seen.add(name)
        return dict(pairs)

    try:
        limits.check_json(text, problems.extent)
        data = json.loads(text, object_pairs_hook=unique)
    except TooMuch as error:
        problems.add(_unread(error, shown))
        return None
    except ValueError as error:
        line = getattr(error, "lineno", None)
        problems.add(Problem(shown, "", f"this is not JSON: {error}", None, line))
        return None
    mark = SourceMark(shown, None, path.parent)
    marks = {**dict.fromkeys(keys(data), mark), **_json_lines(text, mark), (): mark}
    tree = Tree(data, marks)
    for key, value in leaves(data):
        if what := unwritable("".join((*key, value if isinstance(value, str) else ""))):
            message = f"the key or its value holds {what}"
            problems.add(Problem(shown, dotted(key), message, None, tree.mark(key).line))
    return _top_level(tree, "an object", problems)


def _top_level(tree: Tree, accepted: str, problems: Problems) -> Tree | None:
    """Return a file's tree; None, with a problem, if its top level is no mapping."""
    if isinstance(tree.data, dict):
        return tree
    found = f"the file holds {kind_of(tree.data)}; accepted is {accepted}"
    hint = "its lines are KEY: VALUE, without `- `" if isinstance(tree.data, list) else None
    problems.add(Problem(tree.mark(()).file, "", found, hint, 1))
    return None


def _json_lines(text: str, mark: SourceMark) -> dict[Key, SourceMark]:
    """Return marks with lines, where the YAML parser can read the JSON (nearly always)."""
    builder = _Builder(mark.file, mark.directory, Problems(), base60=True)
    with contextlib.suppress(yaml.YAMLError, TooMuch):
        builder.parse(text)
    return builder.marks


def read_text(path: Path, shown: str, problems: Problems) -> str | None:
    """Read a UTF-8 file; None, with a problem, where it cannot be read."""
    try:
        data = files.read_bytes(path, limits.LARGEST_FILE)
    except OSError as error:
        problems.add(Problem(shown, "", f"cannot be read: {error.strerror}"))
        return None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        found = f"byte 0x{data[error.start]:02x} is not UTF-8"
        problems.add(Problem(shown, "", found, _AS_UTF8, line))
        return None


def parse_value(text: str, key: str, directory: Path, problems: Problems) -> Tree | None:
    """Parse the value of ``key=text`` on the command line, into a tree at the key ``value``.

    A text that starts with ``{``, ``[`` or a quote is YAML; any other is one scalar, in which
    commas, colons and ``#`` have no meaning, and ``12:00:00`` stays a string.
    """
    marks: dict[Key, SourceMark] = {("value",): SourceMark(COMMAND_LINE, None, directory, text)}
    builder = _Builder(COMMAND_LINE, directory, problems, base60=True)
    try:
        if not text.lstrip().startswith(("{", "[", '"', "'")):
            return Tree({"value": plain_value(text)}, marks)
        at = tuple(key.split("."))
        data = {"value": builder.parse(text, at)}
        marks |= {("value", *own[len(at) :]): mark for own, mark in builder.marks.items()}
        return Tree(data, marks)
    except TooMuch as error:
        problems.add(Problem(COMMAND_LINE, key, error.message, error.hint))
        return None
    except yaml.YAMLError as error:
        found = _unread(error, COMMAND_LINE, text)
        hint = found.hint or "quote the value for YAML"
        problems.add(Problem(COMMAND_LINE, key, found.message, hint))
        return None


def plain_value(text: str) -> Any:
    """Return the scalar that a text without quotes is, ``12:00:00`` a string."""
    if _BASE60.match(text) or not text:
        return text
    for tag, pattern in _Loader.yaml_implicit_resolvers.get(text[0], []):
        if pattern.match(text) and tag in _SCALARS:
            return _SCALARS[tag](yaml.ScalarNode(tag, text))
    return text


def _number(construct: Callable[[yaml.ScalarNode], Any]) -> Callable[[yaml.ScalarNode], Any]:
    """Return the constructor of a number, which raises TooMuch for one that is too large."""

    def number(node: yaml.ScalarNode) -> Any:
        line = node.start_mark.line + 1 if node.start_mark else 1
        is_short = len(node.value) <= limits.LONGEST_NUMBER
        value = construct(node) if is_short else None
        limits.check_number(node.value, line, value)
        return value

    return number


_constructor = yaml.constructor.SafeConstructor()
_SCALARS: dict[str, Callable[[yaml.ScalarNode], Any]] = {
    _TAG + "str": lambda node: node.value,
    _TAG + "null": lambda node: None,
    _TAG + "int": _number(_constructor.construct_yaml_int),
    _TAG + "float": _number(_constructor.construct_yaml_float),
    _TAG + "bool": _constructor.construct_yaml_bool,
}


class _Builder:
    """Builds plain data and marks from composed nodes."""

    def __init__(
        self, shown: str, directory: Path, problems: Problems, *, base60: bool = False
    ) -> None:
        self.shown, self.directory, self.problems = shown, directory, problems
        self.base60 = base60
        self.marks: dict[Key, SourceMark] = {}

    def parse(self, text: str, key: Key = ()) -> Any:
        """Return the data of a YAML text, an empty mapping for an empty text.

        Raises yaml.YAMLError where it is no YAML, TooMuch where it is more than a spec holds.
        """
        limits.check_yaml(text, _Loader, self.problems.extent)
        node = yaml.compose(text, Loader=_Loader)
        return self._build(node, key, set()) if node is not None else {}

    def _build(self, node: yaml.Node, key: Key, open_nodes: set[int]) -> Any:
        line = node.start_mark.line + 1
        text = node.value if isinstance(node, yaml.ScalarNode) else None
        self.marks[key] = self._mark(line, text)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, key, line)
        if id(node) in open_nodes:
            self._problem(key, "the YAML alias refers to itself", None, line)
            return None
        if node.tag not in (_TAG + "seq", _TAG + "map"):
            self._problem(key, f"the YAML tag {node.tag} is not accepted", "write plain YAML", line)
            return None
        inner = open_nodes | {id(node)}
        if isinstance(node, yaml.SequenceNode):
            items = enumerate(node.value)
            return [self._build(item, (*key, str(index)), inner) for index, item in items]
        return self._mapping(node, key, inner)

    def _mapping(self, node: Any, key: Key, open_nodes: set[int]) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        data: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for name_node, value_node in node.value:
            line = name_node.start_mark.line + 1
            if name_node.tag == _TAG + "merge":
                several = isinstance(value_node, yaml.SequenceNode)
                for one in reversed(value_node.value if several else [value_node]):
                    value = self._build(one, key, open_nodes)
                    merged.update(value if isinstance(value, dict) else {})
                continue
            name = self._name(name_node, key, line)
            if name is None:
                continue
            full = (*key, name)
            what = unwritable(name)
            if not what and (unseen := [one for one in name if not one.isprintable()]):
                what = f"{unseen[0]!r}, which is not seen"
            if what:
                self._problem(full, f"the key holds {what}", "write it without", line)
                continue
            if name in data:
                found = f"the key is given twice, first in line {lines[name]}"
                self._problem(full, found, "remove one of them", line)
                continue
            lines[name] = line
            data[name] = self._build(value_node, full, open_nodes)
            self.marks[full] = self._mark(line, self.marks[full].text)
        return {**merged, **data}

    def _name(self, node: yaml.Node, key: Key, line: int) -> str | None:
        if isinstance(node, yaml.ScalarNode) and node.tag == _TAG + "str":
            return str(node.value)
        if isinstance(node, yaml.ScalarNode):
            what = kind_of(_SCALARS[node.tag](node)) if node.tag in _SCALARS else node.tag
            found = f"the key {node.value} is {what}; keys are strings"
            self._problem(key, found, f'quote it: "{node.value}"', line)
        else:
            hint = 'in place of {{ NAME }} write "${NAME}"' if node.tag == _TAG + "map" else None
            self._problem(key, "a key is a list or a mapping; keys are strings", hint, line)
        return None

    def _scalar(self, node: yaml.ScalarNode, key: Key, line: int) -> Any:
        construct = _SCALARS.get(node.tag)
        if construct is None:
            self._problem(key, f"the YAML tag {node.tag} is not accepted", "write plain YAML", line)
            return None
        if node.tag == _TAG + "int" and _BASE60.match(node.value):
            if self.base60:
                return node.value
            number = construct(node)
            found = f"{node.value} without quotes is the number {number} in YAML (base 60)"
            self._problem(key, found, f'quote it: "{node.value}"', line)
            return node.value
        if what := unwritable(node.value):
            self._problem(key, f"the value holds {what}", "write it without", line)
            return None
        try:
            return construct(node)
        except ValueError:
            return node.value

    def _problem(self, key: Key, message: str, hint: str | None, line: int) -> None:
        Reporter(Tree({}), self.problems).at_mark(self._mark(line), key, message, hint)

    def _mark(self, line: int, text: str | None = None) -> SourceMark:
        """Return the mark of a line, which what is typed has none of."""
        is_typed = self.shown == COMMAND_LINE
        return SourceMark(self.shown, None if is_typed else line, self.directory, text)


def _unread(error: yaml.YAMLError | TooMuch, shown: str, text: str = "") -> Problem:
    """Return the problem with a file of a ``text`` that is too much, or no YAML."""
    if isinstance(error, TooMuch):
        return Problem(shown, "", error.message, error.hint, error.line)
    if isinstance(error, yaml.reader.ReaderError):
        place = text.encode("utf-8", "replace")[: error.position].count(b"\n") + 1
        found = f"found {chr(error.character)!r}, which YAML does not take"
        without = "write it without" if error.character else _AS_UTF8
        return Problem(shown, "", found, without, place)
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark and _TOO_DEEP in str(error):
        return _unread(limits.too_deep(mark.line + 1), shown)
    what = [getattr(error, name, None) for name in ("context", "problem")]
    message = ", ".join(part for part in what if part) or str(error)
    line = mark.line + 1 if mark else None
    column = f" (column {mark.column + 1})" if mark else ""
    begun = getattr(error, "context_mark", None)
    if begun and mark and begun.line != mark.line:
        column += f"; it began in line {begun.line + 1}"
    lines = text.split("\n")
    written = lines[mark.line] if mark and mark.line < len(lines) else ""
    hint = _syntax_hint(message, written, mark.column if mark else 0)
    if mark and "\xa0" in "".join(lines[max(0, mark.line - 1) : mark.line + 1]):
        hint = "a no-break space stands here or in the line before: type it as a blank"
    return Problem(shown, "", f"YAML syntax error: {message}{column}", hint, line)


def _syntax_hint(message: str, written: str, column: int) -> str | None:
    """Return what to write for a message of the YAML parser about a line, None if unknown."""
    if written[column : column + 1] == "\t":
        return "YAML indents with spaces"
    if "another document" in message:
        return "a file is one spec: `---` and what is below it go into a file of their own"
    if "unknown escape" in message:
        return "write the text in single quotes, in which a backslash is one"
    if "a flow" in message:
        if written[max(0, column - 1) : column + 1] != "${":
            return "in { } and [ ], a text with , : { or [ is quoted"
        before = _BEFORE.search(written[: column - 1])
        begun = before[0].rpartition(": ")[2].lstrip() if before else ""
        bare = _INTERPOLATED.match(written, column - 1)
        return f'quote it: "{begun}{bare[0].rstrip() if bare else ""}"'
    if "cannot start any token" in message:
        word = re.split(r"[\s,\]}]", written[column:], maxsplit=1)[0]
        return f'quote it: "{word}"' if word and '"' not in word else None
    if "mapping values are not allowed" in message:
        return 'a text with ": " in it is quoted, and keys of one block begin in one column'
    if "could not find expected ':'" in message:
        return "a key is KEY: VALUE, with a blank after the colon"
    if "block mapping" in message:
        return "keys of one block begin in one column, and a text with quotes in it is quoted whole"
    return None
