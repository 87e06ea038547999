"""The grammar of conditions: ``state=failed and not (lr>=1e-3 or seed=2)``.

Comparisons of a key and a value, joined by ``and``, ``or``, ``not`` and brackets; two that stand
side by side, or have a comma between, are joined by ``and``. ``~`` is "contains". Where runs are
searched as one types, as in ``hpcrun top``, words alone are looked for in their names.
``templates/report/filter.js`` reads the same; tests/support/filter_cases.py has what both have to
answer.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from hpcrun.errors import UsageError
from hpcrun.shared_dataclass import dataclass
from hpcrun.text import shortened

SIGNS = ("=", "!=", "<", "<=", ">", ">=", "~")
# What begins a path, and so no condition.
_PATH = re.compile(r"[/~]|[.][.]?/")
# A word with ``~`` may be a file, too: what stands before it has to be a key.
_SIGN = re.compile(r"[=<>]|^[\s(]*(?:not[\s(]+)?[A-Za-z][\w.]*~[^/~]")
_CONNECTIVE = re.compile(r"\(|(?:and|or|not|\))$", re.IGNORECASE)
_COMPARISON = re.compile(r"""(?:"([^"]+)"|([^\s<>=!()"]+))\s*(<=|>=|!=|==?|<|>|~)\s*""")
# A comma, where the next comparison follows it: ``lr=0.1,seed=0``, as labels are written.
_COMMA = re.compile(r""",\s*(?=(?:"[^"]+"|[^\s<>=!()",]+)\s*(?:[<>=~]|!=))""")
_QUOTED = re.compile(rf"""(?:"([^"]*)"|'([^']*)')(?=\s|\)|$|{_COMMA.pattern})""")
_WORD = re.compile(r"[^\s()<>=]+")
# What ends a value: a word of the language, or the next comparison.
_NEXT = re.compile(
    r"\s+(?=(?:and|or|not)(?:[\s()]|$))|\s+(?=[(]*[^\s<>=!()]+\s*(?:[<>=~]|!=))|\s*$",
    re.IGNORECASE,
)
# What ends a row of conditions.
_ENDS = re.compile(r"\)|or(?:[\s()]|$)", re.IGNORECASE)
# Words that other languages have for those of this one.
_OTHER_WORDS = {"&&": "and", "||": "or", "!": "not"}
_OTHER_WORD = re.compile(r"(?:^|(?<=\s))(?:&&|\|\|)(?=\s|$)")
_MOST_DEEP = 50
_EXAMPLES = "such as state=failed, 'lr>=1e-3', 'state=failed and not (seed=2 or attempts>2)'"
_NAMED = "; runs are named without --where, such as study/0"
_QUOTES = "; a value with such words or brackets wants quotes of its own: 'note=\"this and that\"'"


@dataclass(frozen=True)
class Comparison:
    """A key, one of `SIGNS`, and a value."""

    key: str
    sign: str
    text: str

    def __str__(self) -> str:
        return shortened(f"{self.key}{self.sign}{self.text}", 200)


@dataclass(frozen=True)
class SearchedWord:
    """A word that is looked for in what runs are called."""

    text: str
    is_quoted: bool
    """In quotes, it is neither a pattern nor the name of runs."""


@dataclass(frozen=True)
class Combination:
    """Conditions joined by ``and`` or ``or``, or one that is negated by ``not``."""

    word: str
    parts: tuple[Expression, ...]


Expression = Comparison | SearchedWord | Combination


def comparisons(expression: Expression) -> Iterator[Comparison]:
    """Yield the comparisons of an expression, in their order."""
    if isinstance(expression, Comparison):
        yield expression
    elif isinstance(expression, Combination):
        for part in expression.parts:
            yield from comparisons(part)


def is_condition(word: str) -> bool:
    """Check whether a word of WHERE has the form of a condition, not of a name or a path."""
    return bool(_SIGN.search(word)) and not _PATH.match(word)


def split_words(words: Sequence[str], names: Collection[str] = ()) -> tuple[list[str], list[str]]:
    """Split WHERE into the words that name runs, and at most one condition made of all others.

    ``and``, ``or``, ``not`` and brackets belong to the condition, if there is one. ``names`` are
    words that name runs whatever they look like.
    """
    parts = [word for word in words if is_condition(word) and word not in names]
    if parts:
        parts = [
            word
            for word in words
            if word not in names and (is_condition(word) or _CONNECTIVE.match(word))
        ]
    taken = set(parts)
    return [word for word in words if word not in taken], [" ".join(parts)] if parts else []


def parse(text: str, option: str = "--where", *, words: bool = False) -> Expression:
    """Return the expression of a text; raise UsageError, naming the ``option``, if it is none.

    With ``words``, those that stand alone are searched for, and a value ends at a blank.
    """
    reader = _Reader(text, option, words)
    found = reader.any_of(0)
    if reader.place < len(text):
        raise reader.error()
    return found


class _Reader:
    """Reads an expression from left to right."""

    def __init__(self, text: str, option: str, words: bool) -> None:
        self.text, self.option, self.place = text, option, 0
        self._words = words
        self._open = 0
        self._go_to(0)

    def any_of(self, depth: int) -> Expression:
        parts = [self._all_of(depth)]
        while self._word("or"):
            parts.append(self._all_of(depth))
        return parts[0] if len(parts) == 1 else Combination("or", tuple(parts))

    def _all_of(self, depth: int) -> Expression:
        parts = [self._one(depth)]
        while self._word("and") or self._take(",") or self._goes_on():
            parts.append(self._one(depth))
        return parts[0] if len(parts) == 1 else Combination("and", tuple(parts))

    def _one(self, depth: int) -> Expression:
        if depth > _MOST_DEEP:
            raise UsageError(f"{self.option}: more than {_MOST_DEEP} brackets in one another")
        if self._word("not"):
            return Combination("not", (self._one(depth + 1),))
        if self._take("("):
            self._open += 1
            found = self.any_of(depth + 1)
            self._open -= 1
            if not self._take(")"):
                raise self.error("a closing bracket is missing")
            return found
        head = _COMPARISON.match(self.text, self.place)
        if not head:
            return self._searched()
        self.place = head.end()
        sign = "=" if head[3] == "==" else head[3]
        if sign == "=" and (turned := self.text[self.place : self.place + 1]) in ("<", ">"):
            self.place = head.start()
            raise self.error(f"={turned} is written {turned}=")
        return Comparison(head[1] or head[2], sign, self._value())

    def _searched(self) -> SearchedWord:
        quoted = self._quoted() if self._words else None
        if quoted is not None:
            return SearchedWord(quoted, True)
        word = _WORD.match(self.text, self.place) if self._words else None
        if not word or word[0].lower() in ("and", "or") or word[0].startswith((*_OTHER_WORDS,)):
            raise self.error()
        self._go_to(word.end())
        return SearchedWord(word[0], False)

    def _quoted(self) -> str | None:
        quoted = _QUOTED.match(self.text, self.place)
        if not quoted:
            return None
        self._go_to(quoted.end())
        return quoted[1] if quoted[1] is not None else quoted[2]

    def _value(self) -> str:
        quoted = self._quoted()
        if quoted is not None:
            return quoted
        begin, depth = self.place, 0
        while self.place < len(self.text):
            character = self.text[self.place]
            if character in "([{":
                depth += 1
            elif character in ")]}":
                if character == ")" and depth == 0 and self._open:
                    break
                depth = max(0, depth - 1)
            elif character == "," and depth == 0 and _COMMA.match(self.text, self.place):
                break
            elif character.isspace() and depth == 0:
                if self._words or _NEXT.match(self.text, self.place):
                    break
                self._go_to(self.place)
                continue
            self.place += 1
        found = self.text[begin : self.place].strip()
        if other := _OTHER_WORD.search(found):
            self.place = begin + other.start()
            raise self.error()
        self._go_to(self.place)
        return found

    def _goes_on(self) -> bool:
        return self.place < len(self.text) and not _ENDS.match(self.text, self.place)

    def _word(self, word: str) -> bool:
        end = self.place + len(word)
        if self.text[self.place : end].lower() != word or self.text[end : end + 1].strip(" \t\n()"):
            return False
        self._go_to(end)
        return True

    def _take(self, character: str) -> bool:
        if self.text[self.place : self.place + 1] != character:
            return False
        self._go_to(self.place + 1)
        return True

    def _go_to(self, place: int) -> None:
        """Go on at a place, or behind the blanks there."""
        while self.text[place : place + 1].isspace():
            place += 1
        self.place = place

    def error(self, why: str = "") -> UsageError:
        for other, word in _OTHER_WORDS.items():
            if not why and self.text.startswith(other, self.place):
                why = f"{other} is written {word}"
        rest = shortened(self.text[self.place :], 60)
        at = f" at {rest!r}" if rest and self.place else ""
        shown = shortened(self.text, 200)
        return UsageError(
            f"{self.option} {shown!r} is not of the form key=value{at}{f': {why}' * bool(why)}",
            hint=_EXAMPLES
            + _QUOTES * (self.place > 0)
            + _NAMED * (self.option == "--where" and "/" in self.text.partition("=")[0]),
        )
