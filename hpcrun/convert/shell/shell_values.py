"""Expands words of shell from what a script says itself; what only a job knows stays unknown.

An unknown part of a text is a mark of two private characters around a number, which `Unknowns`
explains; nothing is executed, and no file is looked at.
"""

from __future__ import annotations

import ast
import fnmatch
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from hpcrun.convert.shell.shell_tokens import (
    MOST_WORDS,
    ShellSyntaxError,
    brace_end,
    braces,
    closing,
)

OPEN, CLOSE = "\ue000", "\ue001"
MARK = re.compile(f"{OPEN}([0-9]+){CLOSE}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_INDEXED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\[(.*)\]", re.DOTALL)
_CUT = re.compile(
    r"(#?)([A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-])(\[(?:[^\[\]]|\[[^\[\]]*\])*\])?(.*)", re.DOTALL
)
_LITERAL = re.compile(r"[^\\'\"$`]+")
MOST_TEXT = 200_000


@dataclass(frozen=True)
class Unknown:
    """A part of a text that the script alone does not tell."""

    kind: str
    """``environment``, ``rank``, ``job``, ``nodes``, ``argument``, ``date``, ``random``,
    ``scratch``, ``output`` (of a command) or ``text`` (cut from something unknown)."""
    text: str
    """As it is written: ``$SCRATCH``."""
    name: str = ""
    """The variable."""
    default: str | None = None


@dataclass
class Unknowns:
    """The unknown parts of a conversion, each by its mark."""

    found: list[Unknown] = field(default_factory=list)

    def mark(self, one: Unknown) -> str:
        """Return the mark of an unknown part."""
        try:
            at = self.found.index(one)
        except ValueError:
            at = len(self.found)
            self.found.append(one)
        return f"{OPEN}{at}{CLOSE}"

    def of(self, text: str) -> list[Unknown]:
        """Return the unknown parts of a text, in their order."""
        return [self.found[int(number)] for number in MARK.findall(text)]

    def shown(self, text: str) -> str:
        """Return a text with its unknown parts as they are written in the script."""
        return MARK.sub(lambda found: self.found[int(found[1])].text, text)


Variables = Callable[[str], "str | list[str] | None"]


class Expander:
    """Expands words by the values that ``look`` gives for names.

    Parameters
    ----------
    look
        Returns a variable's value, a list for an array, or None where it is not set.
    run
        Returns the output of a command substitution.
    unset
        Returns the text of a variable that is not set, with the default that the script gives.
    """

    def __init__(
        self,
        look: Variables,
        run: Callable[[str], str],
        unset: Callable[[str, str, str | None], str],
        unknowns: Unknowns,
    ) -> None:
        self._look, self._run, self._unset = look, run, unset
        self._unknowns = unknowns
        self._depth = 0

    def words(self, raw: str) -> list[str]:
        """Return the words that one word of the script becomes."""
        found: list[str] = []
        for each in braces(raw):
            found += self._fields(each)
            if len(found) > MOST_WORDS:
                raise ShellSyntaxError(f"a word becomes more than {MOST_WORDS:,} words", 0)
        return found

    def text(self, raw: str, is_quoted: bool = False) -> str:
        """Return a word's text, not split; within double quotes a single quote is text."""
        return "".join(text for text, _ in self._pieces(raw, literal=is_quoted))[:MOST_TEXT]

    def document(self, body: str) -> str:
        """Return a here-document with its expansions."""
        return "".join(text for text, _ in self._pieces(body, double=True))[:MOST_TEXT]

    def _fields(self, raw: str) -> list[str]:
        fields: list[str] = []
        current: str | None = None
        for text, splits in self._pieces(raw):
            if not splits:
                current = (current or "") + text
                continue
            parts = re.split(r"[ \t\n]+", text)
            if len(parts) == 1:
                current = (current or "") + text if text or current is not None else None
                continue
            head, *middle, tail = parts
            if head or current is not None:
                fields.append((current or "") + head)
            fields += middle
            current = tail or None
        if current is not None:
            fields.append(current)
        return fields

    def _pieces(
        self, raw: str, double: bool = False, literal: bool = False
    ) -> Iterator[tuple[str, bool]]:
        """Yield pieces of text, and whether the shell splits each at spaces."""
        self._depth += 1
        try:
            yield from self._each(raw, double, literal)
        finally:
            self._depth -= 1

    def _each(self, raw: str, double: bool, literal: bool) -> Iterator[tuple[str, bool]]:
        if self._depth > 30:
            raise ShellSyntaxError("expansions are nested too deeply", 0)
        at, quoted = 0, double
        if not double and (raw.startswith("~/") or raw == "~"):
            yield self._parameter("HOME", "~"), False
            at = 1
        while at < len(raw):
            one = raw[at]
            if one == "\\":
                following = raw[at + 1 : at + 2]
                if following == "\n":
                    pass
                elif quoted and following not in ("$", "`", '"', "\\"):
                    yield one + following, False
                else:
                    yield following, False
                at += 2
            elif one == "'" and not (quoted or literal):
                end = raw.find("'", at + 1)
                if end < 0:
                    raise ShellSyntaxError("a quote is not closed", 0)
                yield raw[at + 1 : end], False
                at = end + 1
            elif one == '"' and not double:
                quoted = not quoted
                if raw[at + 1 : at + 2] == '"' or not quoted:
                    yield "", False
                at += 1
            elif one == "$" and raw[at + 1 : at + 2] == "'" and not (quoted or literal):
                end = at + 2
                while raw[end : end + 1] not in ("'", ""):
                    end += 2 if raw[end] == "\\" else 1
                if end >= len(raw):
                    raise ShellSyntaxError("a quote is not closed", 0)
                yield raw[at + 2 : end].replace("\\n", "\n").replace("\\t", "\t"), False
                at = end + 1
            elif one in "$`":
                text, end, is_list = self._expansion(raw, at, quoted or literal)
                if is_list is not None:
                    for number, item in enumerate(is_list):
                        if number:
                            yield " ", True
                        yield item, not quoted
                else:
                    yield text, not quoted
                at = end
            else:
                run = _LITERAL.match(raw, at)
                end = run.end() if run else at + 1
                yield raw[at:end], False
                at = end

    def _expansion(self, raw: str, at: int, quoted: bool) -> tuple[str, int, list[str] | None]:
        """Return the text of an expansion, the index after it, and the words of an array."""
        if raw[at] == "`":
            end = at + 1
            while end < len(raw) and raw[end] != "`":
                end += 2 if raw[end] == "\\" else 1
            inner = raw[at + 1 : end].replace("\\`", "`").replace("\\$", "$")
            return self._run(inner), end + 1, None
        if raw.startswith("$((", at):
            end = closing(raw, at + 2)
            if raw[end - 2 : end] == "))":
                return self._arithmetic(raw[at + 3 : end - 2], raw[at:end]), end, None
        if raw.startswith("$(", at):
            end = closing(raw, at + 2)
            return self._run(raw[at + 2 : end - 1]), end, None
        if raw.startswith("${", at):
            end = brace_end(raw, at + 2, quoted)
            text, items = self._braced(raw[at + 2 : end - 1], raw[at:end], quoted)
            return text, end, items
        name = _NAME.match(raw, at + 1)
        if name:
            return self._parameter(name[0], raw[at : name.end()]), name.end(), None
        special = raw[at + 1 : at + 2]
        if special and special in "0123456789@*#?$!-":
            if special in "@*" and isinstance(value := self._look("@"), list):
                return " ".join(value), at + 2, value
            return self._parameter(special, raw[at : at + 2]), at + 2, None
        return "$", at + 1, None

    def _parameter(self, name: str, shown: str) -> str:
        value = self._look(name)
        if isinstance(value, list):
            return value[0] if value else ""
        return self._unset(name, shown, None) if value is None else value

    def _braced(self, inner: str, shown: str, quoted: bool) -> tuple[str, list[str] | None]:
        found = _CUT.fullmatch(inner)
        if found is None:
            return self._unknowns.mark(Unknown("text", shown)), None
        counts, name, index, rest = found.groups()
        value = self._look("@" if name in "@*" else name)
        items: list[str] | None = None
        if index is not None:
            items = value if isinstance(value, list) else [] if value is None else [value]
            if index not in ("[@]", "[*]"):
                at = self.number(self.text(index[1:-1]))
                if at is None or value is None:
                    return self._unknowns.mark(Unknown("text", shown)), None
                in_range = -len(items) <= at < len(items)
                value, items = (items[at] if in_range else ""), None
        elif name in ("@", "*"):
            items = value if isinstance(value, list) else None
        if counts:
            if items is not None:
                return str(len(items)), None
            text = value if isinstance(value, str) else None
            is_known = text is not None and not MARK.search(text)
            return (str(len(text or "")) if is_known else shown), None
        if items is not None and not rest:
            return " ".join(items), items
        if isinstance(value, list):
            value = value[0] if value else ""
        return self._modified(name, value, rest, shown, quoted), None

    def _modified(self, name: str, value: str | None, rest: str, shown: str, quoted: bool) -> str:
        """Return a value by the operator of ``${NAME…}``."""
        if not rest:
            return self._unset(name, shown, None) if value is None else value
        colon = rest[0] == ":"
        operation, word = rest[colon : colon + 1], rest[colon + 1 :]
        if operation and operation in "-=?+":
            is_set = value is not None and not (colon and value == "")
            if operation == "+":
                return self.text(word, quoted) if is_set else ""
            if is_set:
                return value or ""
            if operation == "?":
                return self._unset(name, shown, None)
            default = self.text(word, quoted)
            return default if value is not None else self._unset(name, shown, default)
        if value is None or MARK.search(value):
            return self._unknowns.mark(Unknown("text", shown, name))
        cut = self._cut(value, rest)
        return self._unknowns.mark(Unknown("text", shown)) if cut is None else cut

    def _cut(self, value: str, rest: str) -> str | None:
        if rest[0] in "%#":
            longest = rest[1:2] == rest[0]
            pattern = self.text(rest[1 + longest :])
            sizes = range(len(value) + 1)
            for size in reversed(sizes) if longest else sizes:
                if rest[0] == "#" and fnmatch.fnmatchcase(value[:size], pattern):
                    return value[size:]
                if rest[0] == "%" and fnmatch.fnmatchcase(value[len(value) - size :], pattern):
                    return value[: len(value) - size]
            return value
        if rest[0] == "/" and "/" in rest[1:]:
            everywhere = rest[1:2] == "/"
            old, _, new = rest[1 + everywhere :].partition("/")
            plain = self.text(old)
            if re.search(r"[*?\[]", plain) or not plain:
                return None
            return value.replace(plain, self.text(new), -1 if everywhere else 1)
        if rest in ("^^", ",,"):
            return value.upper() if rest == "^^" else value.lower()
        if rest[0] == ":" and (found := re.fullmatch(r":\s*(\d+)(?::(\d+))?", rest)):
            start = int(found[1])
            return value[start : start + int(found[2])] if found[2] else value[start:]
        return None

    def _arithmetic(self, text: str, shown: str) -> str:
        number = self.number(text)
        if number is not None:
            return str(number)
        # What it depends on tells what it is.
        kinds = self._unknowns.of(self.text(self._dollars(text)))
        kind = kinds[0].kind if kinds else "text"
        return self._unknowns.mark(Unknown(kind, shown))

    def _dollars(self, text: str) -> str:
        return re.sub(r"(?<![\w${])([A-Za-z_]\w*)(?!\w*\[)", r"${\1}", text)

    def number(self, text: str) -> int | None:
        """Return the value of an arithmetic expression; None where it is not known."""
        if re.search(r"\+\+|--|[^=!<>]=(?!=)", text):
            # It changes what it reads.
            return None
        expanded = self.text(self._dollars(text)).strip()
        if len(expanded) > 300 or MARK.search(expanded):
            return None
        expanded = expanded.replace("&&", " and ").replace("||", " or ")
        expanded = re.sub(r"!(?!=)", " not ", expanded)
        expanded = re.sub(r"\b10#0*(?=\d)", "", expanded)
        expanded = re.sub(r"(?<![\w.])0(?=\d)", "0o", expanded)
        if "#" in expanded:
            return None
        try:
            return _evaluate(ast.parse(expanded, mode="eval").body)
        except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError, KeyError):
            return None


_OPERATIONS: dict[type, Callable[[int, int], int]] = {
    **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul},
    ast.Div: lambda a, b: int(a / b) if abs(a) < 2**50 else a // b,
    ast.Mod: lambda a, b: a - b * int(a / b),
    ast.Pow: lambda a, b: a**b if 0 <= b < 64 and abs(a) < 10_000 else _too_much(),
}
_COMPARISONS: dict[type, Callable[[int, int], bool]] = {
    **{ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le},
    **{ast.Gt: operator.gt, ast.GtE: operator.ge},
}


def _too_much() -> int:
    raise ArithmeticError


def _evaluate(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        found = node.value
    elif isinstance(node, ast.BinOp):
        found = _OPERATIONS[type(node.op)](_evaluate(node.left), _evaluate(node.right))
    elif isinstance(node, ast.UnaryOp):
        inner = _evaluate(node.operand)
        found = -inner if isinstance(node.op, ast.USub) else inner
        if isinstance(node.op, ast.Not):
            found = int(not inner)
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        compared = _COMPARISONS[type(node.ops[0])]
        found = int(compared(_evaluate(node.left), _evaluate(node.comparators[0])))
    elif isinstance(node, ast.BoolOp):
        values = [bool(_evaluate(one)) for one in node.values]
        found = int(all(values) if isinstance(node.op, ast.And) else any(values))
    else:
        raise ValueError
    if abs(found) > 2**63:
        raise ArithmeticError
    return found
