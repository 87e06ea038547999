"""Reads the words of a shell script: quotes and expansions; nothing is evaluated."""

from __future__ import annotations

import re
from dataclasses import dataclass

NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_PLAIN = re.compile(r"[^\s'\"\\$`;&|<>()]+")
_DOUBLE = re.compile(r"[^\"\\$`]+")
_INSIDE = re.compile(r"[^'\"\\$`(){}#]*")
_DEEPEST = 60
# So many words, expansions and operators take a second; no script that a person wrote has them.
_MOST_STEPS = 40_000


@dataclass(frozen=True)
class Part:
    """A part of a word: text as it is, the value of a variable, or what only bash can tell."""

    kind: str
    """``text``, ``variable`` or ``other``."""
    text: str
    """The text without its quotes, or the variable's name."""
    is_quoted: bool


@dataclass
class ShellWord:
    """One word of a command."""

    raw: str
    parts: list[Part]

    @property
    def is_pattern(self) -> bool:
        """Bash finds files by it, or makes several words of it."""
        bare = "".join(p.text for p in self.parts if p.kind == "text" and not p.is_quoted)
        return self.raw[:1] == "~" or re.search(r"[*?\[]|\{.*[,.].*\}", bare) is not None

    @property
    def text(self) -> str | None:
        """The word where it is plain text; None where bash changes it."""
        is_text = not self.is_pattern and all(part.kind == "text" for part in self.parts)
        return "".join(part.text for part in self.parts) if is_text else None

    def after(self, count: int) -> ShellWord:
        """Return what follows the first so many characters, which are plain text."""
        first, *others = self.parts
        rest = Part(first.kind, first.text[count:], first.is_quoted)
        return ShellWord(self.raw[count:], [rest, *others] if rest.text else others)


class UnreadableError(Exception):
    """A script cannot be read beyond the character ``at``, because of ``what``."""

    def __init__(self, at: int, what: str) -> None:
        super().__init__(what)
        self.at, self.what = at, what


class WordScan:
    """A place in a script, from which the next word can be read."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self._nested = self._steps = 0
        self.positional: list[int] = []
        """Where the script reads its own arguments."""
        self.own_path: list[int] = []
        """Where it reads its own path."""
        self.reads: dict[str, tuple[int, bool]] = {}
        """Variable -> where it is read first, and whether it is said there what it is without."""

    def _step(self) -> None:
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise UnreadableError(self._at, "there is more than a person would write")

    def _deepen(self, by: int) -> None:
        self._nested += by
        if self._nested > _DEEPEST:
            raise UnreadableError(self._at, "expansions are nested too deeply")

    def _word(self) -> ShellWord:
        """Read a word; raise where a quote or an expansion in it is not closed."""
        text, start = self._text, self._at
        parts: list[Part] = []
        while self._at < len(text):
            self._step()
            if found := _PLAIN.match(text, self._at):
                parts.append(Part("text", found[0], False))
                self._at = found.end()
                continue
            one = text[self._at]
            if one == "'":
                end = text.find("'", self._at + 1)
                if end < 0:
                    raise UnreadableError(self._at, "a quote ' is not closed")
                parts.append(Part("text", text[self._at + 1 : end], True))
                self._at = end + 1
            elif one == '"':
                self._double(parts)
            elif one == "\\":
                if text.startswith("\\\n", self._at):
                    self._at += 2
                    continue
                parts.append(Part("text", text[self._at + 1 : self._at + 2], True))
                self._at += 2
            elif one in "$`":
                parts.append(self._expansion(is_quoted=False))
            elif text.startswith(("<(", ">("), self._at):
                begun = self._at
                self._at += 1
                self._substitution()
                parts.append(Part("other", text[begun : self._at], False))
            else:
                break
        if self._at == start:
            raise UnreadableError(start, f"found {text[start : start + 1]!r} in place of a word")
        return ShellWord(text[start : self._at], parts)

    def _double(self, parts: list[Part]) -> None:
        begun, text = self._at, self._text
        self._at += 1
        count = len(parts)
        while self._at < len(text):
            self._step()
            if found := _DOUBLE.match(text, self._at):
                parts.append(Part("text", found[0], True))
                self._at = found.end()
                continue
            one = text[self._at]
            if one == '"':
                self._at += 1
                if len(parts) == count:
                    parts.append(Part("text", "", True))
                return
            if one == "\\":
                escaped = text[self._at + 1 : self._at + 2]
                if escaped != "\n":
                    shown = escaped if escaped in ('"', "\\", "$", "`") else "\\" + escaped
                    parts.append(Part("text", shown, True))
                self._at += 2
            else:
                parts.append(self._expansion(is_quoted=True))
        raise UnreadableError(begun, 'a quote " is not closed')

    def _expansion(self, *, is_quoted: bool) -> Part:
        """Read what begins with ``$`` or a backtick."""
        text, begun = self._text, self._at
        if text[begun] == "`":
            self._quote("`")
            return Part("other", text[begun : self._at], is_quoted)
        self._at += 1
        if found := NAME.match(text, self._at):
            self._at = found.end()
            self._read(found[0], begun, is_given=False)
            return Part("variable", found[0], is_quoted)
        following = text[self._at : self._at + 1]
        if following == "(":
            if text.startswith("((", self._at):
                self._balanced("(", ")")
            else:
                self._substitution()
        elif following == "{":
            self._balanced("{", "}")
            inner = text[begun + 2 : self._at - 1]
            if name := re.match(r"[#!]?([A-Za-z_]\w*)(:?[-=+])?", inner):
                self._read(name[1], begun, is_given=bool(name[2]))
                if NAME.fullmatch(inner):
                    return Part("variable", inner, is_quoted)
            elif re.match(r"#?[1-9@*]", inner):
                self.positional.append(begun)
            elif inner.startswith("0"):
                self.own_path.append(begun)
        elif following == "'" and not is_quoted:
            self._quote("'")
        elif following and following in "0123456789@*#?$!-_":
            self._at += 1
            if following in "123456789@*#":
                self.positional.append(begun)
            elif following == "0":
                self.own_path.append(begun)
        elif not (following == '"' and not is_quoted):
            return Part("text", "$", is_quoted)
        return Part("other", text[begun : self._at], is_quoted)

    def _quote(self, mark: str) -> None:
        """Pass a quote in which a backslash keeps the mark from ending it."""
        found = re.compile(rf"{mark}(?:[^{mark}\\]|\\.)*{mark}", re.DOTALL).match(
            self._text, self._at
        )
        if found is None:
            raise UnreadableError(self._at, f"a quote {mark} is not closed")
        self._at = found.end()

    def _read(self, name: str, at: int, *, is_given: bool) -> None:
        if name == "BASH_SOURCE":
            self.own_path.append(at)
        self.reads.setdefault(name, (at, is_given))

    def _substitution(self) -> None:
        """Read the commands in ``(…)`` of a substitution."""
        raise NotImplementedError

    def _balanced(self, opening: str, closing: str) -> None:
        """Pass a list or arithmetic in parentheses."""
        begun, text, depth = self._at, self._text, 0
        while self._at < len(text):
            one = text[self._at]
            if one == opening:
                depth += 1
                self._at += 1
            elif one == closing:
                depth -= 1
                self._at += 1
                if not depth:
                    return
            elif one == "#" and text[self._at - 1].isspace():
                end = text.find("\n", self._at)
                self._at = len(text) if end < 0 else end
            else:
                self._inside(one)
        raise UnreadableError(begun, f"no {closing!r} ends {opening!r}")

    def _inside(self, one: str) -> None:
        """Pass a quote, an expansion or a character inside of an expansion."""
        self._step()
        if one == '"':
            self._double([])
        elif one == "'":
            end = self._text.find("'", self._at + 1)
            if end < 0:
                raise UnreadableError(self._at, "a quote ' is not closed")
            self._at = end + 1
        elif one in "$`":
            self._deepen(1)
            self._expansion(is_quoted=True)
            self._deepen(-1)
        elif one == "\\":
            self._at += 2
        else:
            found = _INSIDE.match(self._text, self._at)
            self._at = max(found.end() if found else 0, self._at + 1)
