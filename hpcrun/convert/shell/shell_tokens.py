"""Splits a shell script into tokens, each with its lines; nothing of it is expanded or executed."""

from __future__ import annotations

import re
from dataclasses import dataclass

# Longest first, so that `&&` is not read as two `&`.
_OPERATORS = (
    *("&>>", "<<-", "<<<", "&>", "&&", "||", "|&", ";;&", ";;", ";&", ">>", "<<", ">&", "<&"),
    *(">|", "<>", ";", "&", "|", "<", ">", "(", ")"),
)
REDIRECTS = frozenset({"&>>", "<<-", "<<<", "&>", ">>", "<<", ">&", "<&", ">|", "<>", "<", ">"})
_PLAIN = re.compile(r"[\w./:,-]+")
_ENDS_WORD = " \t\n;&|<>()"
_SEQUENCE = re.compile(r"\{(-?\d{1,18})\.\.(-?\d{1,18})(?:\.\.(-?\d{1,18}))?\}")
_MOST_NESTED = 60
MOST_WORDS = 5_000


class ShellSyntaxError(Exception):
    """What bash would not take, or what is nested deeper than scripts are; ``line`` begins it."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.message, self.line = message, line


@dataclass
class ShellToken:
    """A word with its quotes, an operator, ``[[ … ]]``, ``(( … ))`` or the end of a line."""

    kind: str
    """``word``, ``op``, ``test``, ``arithmetic`` or ``newline``."""
    text: str
    line: int
    last: int
    """The line in which it ends; of a here-document's operator, that of the document."""
    body: str | None = None
    """The document of ``<<``; None of other tokens."""
    is_literal: bool = False
    """The document's word was quoted, so that nothing in it is expanded."""
    start: int = 0
    end: int = 0
    """The token's place in the text."""


def tokens(text: str) -> list[ShellToken]:
    """Return the tokens of a script without its comments; raise ShellSyntaxError."""
    return _Scanner(text).scan()


def closing(text: str, start: int, line: int = 1, depth: int = 0) -> int:
    """Return the index after the ``)`` that closes what begins before ``start``."""
    return _Scanner(text, line, depth).to_parenthesis(start)


class _Scanner:
    def __init__(self, text: str, line: int = 1, depth: int = 0) -> None:
        self._text, self._depth = text, depth
        self._first = line
        self._found: list[ShellToken] = []
        self._documents: list[ShellToken] = []
        self._line_at, self._line = 0, line

    def scan(self) -> list[ShellToken]:
        text, at = self._text, 0
        while at < len(text):
            one = text[at]
            if one in " \t\r":
                at += 1
            elif text.startswith("\\\n", at):
                at += 2
            elif one == "#":
                at = self._end_of_line(at)
            elif one == "\n":
                self._add("newline", at, at + 1)
                at = self._read_documents(at + 1)
            elif text.startswith("((", at) and (end := self._arithmetic(at)):
                self._add("arithmetic", at, end)
                at = end
            elif text.startswith("[[", at) and text[at + 2 : at + 3].isspace():
                end = self._test(at)
                self._add("test", at, end)
                at = end
            elif text[at : at + 2] in ("<(", ">("):
                end = self.word(at)
                self._add("word", at, end)
                at = end
            elif operator := next((op for op in _OPERATORS if text.startswith(op, at)), None):
                self._add("op", at, at + len(operator))
                at += len(operator)
                if operator in ("<<", "<<-"):
                    at = self._document_word(at)
            else:
                end = self.word(at)
                self._add("word", at, end)
                at = end
        if self._documents:
            begun = self._documents[0]
            raise ShellSyntaxError("a here-document is not closed", begun.line)
        return self._found

    def line_of(self, at: int) -> int:
        """Return the line of an index; indexes are asked for in ascending order."""
        if at < self._line_at:
            self._line_at, self._line = 0, self._first
        self._line += self._text.count("\n", self._line_at, at)
        self._line_at = at
        return self._line

    def _add(self, kind: str, start: int, end: int) -> None:
        text = self._text[start:end]
        line = self.line_of(start)
        last = line if kind == "newline" else line + text.count("\n")
        self._found.append(ShellToken(kind, text, line, last, start=start, end=end))

    def _end_of_line(self, at: int) -> int:
        end = self._text.find("\n", at)
        return len(self._text) if end < 0 else end

    def _document_word(self, at: int) -> int:
        while at < len(self._text) and self._text[at] in " \t":
            at += 1
        end = self.word(at)
        operator = self._found[-1]
        self._add("word", at, end)
        self._documents.append(operator)
        operator.body = self._text[at:end]
        return end

    def _read_documents(self, at: int) -> int:
        """Read the here-documents that begin after this line's end."""
        for operator in self._documents:
            word = operator.body or ""
            mark = word.replace("'", "").replace('"', "").replace("\\", "")
            operator.is_literal = mark != word
            lines: list[str] = []
            while True:
                if at >= len(self._text):
                    raise ShellSyntaxError("a here-document is not closed", operator.line)
                end = self._end_of_line(at)
                line = self._text[at:end]
                at = min(end + 1, len(self._text))
                if operator.text == "<<-":
                    line = line.lstrip("\t")
                if line == mark:
                    break
                lines.append(line)
            operator.body = "".join(f"{line}\n" for line in lines)
            operator.last = self.line_of(max(0, end - 1))
        self._documents = []
        return at

    def word(self, at: int) -> int:
        """Return the index after the word that begins here."""
        text, start = self._text, at
        if text[at : at + 2] in ("<(", ">("):
            return self.to_parenthesis(at + 2)
        while at < len(text):
            if plain := _PLAIN.match(text, at):
                at = plain.end()
                continue
            one = text[at]
            if one == "(" and text[at - 1 : at] == "=" and at > start:
                at = self.to_parenthesis(at + 1)  # name=(a b c)
            elif one == "(" and text[at - 1 : at] in ("@", "?", "*", "+", "!") and at > start:
                at = self.to_parenthesis(at + 1)  # a pattern
            elif one in _ENDS_WORD:
                break
            else:
                at = self._part(at)
        return at

    def _part(self, at: int) -> int:
        """Return the index after a character, a quoted text or an expansion."""
        text, one = self._text, self._text[at]
        if one == "\\":
            return min(at + 2, len(text))
        if one == "'":
            return self._until("'", at)
        if one == '"':
            return self._double(at)
        if one == "`":
            return self._until("`", at, escapes=True)
        if one == "$":
            following = text[at + 1 : at + 2]
            if following == "'":
                return self._until("'", at + 1, escapes=True)
            if following == "(":
                return self.to_parenthesis(at + 2)
            if following == "{":
                return self._brace(at + 2)
        return at + 1

    def _until(self, quote: str, at: int, escapes: bool = False) -> int:
        end = at + 1
        while end < len(self._text):
            if escapes and self._text[end] == "\\":
                end += 1
            elif self._text[end] == quote:
                return end + 1
            end += 1
        raise ShellSyntaxError(f"{quote} is not closed", self.line_of(at))

    def _double(self, at: int) -> int:
        end = at + 1
        while end < len(self._text):
            one = self._text[end]
            if one == '"':
                return end + 1
            # Inside, a single quote is only a character.
            end = end + 1 if one == "'" else self._part(end)
        raise ShellSyntaxError('" is not closed', self.line_of(at))

    def _brace(self, at: int) -> int:
        with self._deeper(at):
            end = at
            while end < len(self._text):
                if self._text[end] == "}":
                    return end + 1
                end = self._part(end)
        raise ShellSyntaxError("${ is not closed", self.line_of(at))

    def to_parenthesis(self, at: int) -> int:
        """Return the index after the ``)`` that closes what begins before ``at``."""
        with self._deeper(at):
            end, text = at, self._text
            while end < len(text):
                one = text[end]
                if one == ")":
                    return end + 1
                if one == "(":
                    end = self.to_parenthesis(end + 1)
                elif one == "#" and text[end - 1 : end] in (" ", "\t", "\n", "("):
                    end = self._end_of_line(end)
                else:
                    end = self._part(end)
        raise ShellSyntaxError("( is not closed", self.line_of(at - 1))

    def _arithmetic(self, at: int) -> int:
        """Return the index after ``(( … ))``; 0 if these are subshells."""
        try:
            end = self.to_parenthesis(at + 1)
        except ShellSyntaxError:
            return 0
        return end if self._text[end - 2 : end] == "))" else 0

    def _test(self, at: int) -> int:
        end = at + 2
        while end < len(self._text):
            if self._text.startswith("]]", end) and self._text[end - 1].isspace():
                return end + 2
            end = self._part(end)
        raise ShellSyntaxError("[[ is not closed", self.line_of(at))

    def _deeper(self, at: int) -> _Depth:
        return _Depth(self, at)

    def enter(self, at: int) -> None:
        """Go one level deeper; raise ShellSyntaxError beyond the deepest."""
        self._depth += 1
        if self._depth > _MOST_NESTED:
            raise ShellSyntaxError(f"nested more than {_MOST_NESTED} levels deep", self.line_of(at))

    def leave(self) -> None:
        """Come back from a level."""
        self._depth -= 1


class _Depth:
    def __init__(self, scanner: _Scanner, at: int) -> None:
        self._scanner, self._at = scanner, at

    def __enter__(self) -> None:
        self._scanner.enter(self._at)

    def __exit__(self, *_: object) -> None:
        self._scanner.leave()


def brace_end(raw: str, at: int, is_quoted: bool = False) -> int:
    """Return the index after the ``}`` of ``${``; within double quotes a single one is text."""
    depth, quote = 1, ""
    while at < len(raw):
        one = raw[at]
        if one == "\\":
            at += 1
        elif quote:
            quote = "" if one == quote else quote
        elif one == '"' or (one == "'" and not is_quoted):
            quote = one
        elif one == "{" and raw[at - 1] == "$":
            depth += 1
        elif one == "}":
            depth -= 1
            if not depth:
                return at + 1
        at += 1
    return len(raw) + 1


def braces(raw: str) -> list[str]:
    """Return the words of ``{1..5}`` in a word without quotes, of others the word alone."""
    found = _SEQUENCE.search(raw)
    if found is None or any(one in raw for one in "\"'`$"):
        return [raw]
    first, last = int(found[1]), int(found[2])
    step = abs(int(found[3] or 1)) or 1
    if abs(last - first) // step > MOST_WORDS:
        raise ShellSyntaxError(f"a word becomes more than {MOST_WORDS:,} words", 0)
    width = max(len(found[1]), len(found[2])) if found[1].startswith("0") else 0
    numbers = range(first, last + 1, step) if last >= first else range(first, last - 1, -step)
    return [f"{raw[: found.start()]}{n:0{width}d}{raw[found.end() :]}" for n in numbers]
