"""Reads the words and commands of a shell script, in time linear in its length.

Nothing is evaluated.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_PLAIN = re.compile(r"[^\s'\"\\$`;&|<>()]+")
_DOUBLE = re.compile(r"[^\"\\$`]+")
_INSIDE = re.compile(r"[^'\"\\$`(){}#]*")
_DEEPEST = 60
# So many words, expansions and operators take a second; no script that a person wrote has them.
_MOST_STEPS = 40_000
_BLANK = re.compile(r"(?:[ \t]|\\\n)*(?:#[^\n]*)?")  # and a comment
_OPERATOR = re.compile(r"<<<|<<-|&>>|\|\||&&|;;&|;;|;&|<<|>>|<&|>&|<>|>\||&>|\|&|[;&|<>()\n]")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^]]*\])?\+?=", re.ASCII)
_REDIRECTIONS = frozenset(("<", ">", ">>", "<<", "<<-", "<<<", "<&", ">&", "<>", ">|", "&>", "&>>"))
_OPENS = {"if": "fi", **dict.fromkeys(("for", "while", "until", "select"), "done"), "{": "}"}
_CONTINUES = frozenset(("then", "else", "elif", "do", "!", "time"))
_PATTERNS, _BRANCH = "patterns", "branch"  # of a case: its patterns, and what follows one
_TEMPLATE = re.compile(r"\{\{-?\s*[A-Za-z_][\w .|()'\",\[\]-]*\}\}|\{%[^%\n]*%\}")
_FUNCTION = re.compile(r"function\s|[\w.-]+[ \t]*\(\s*\)")  # its arguments are its own


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
        """Return the word without its first characters, which are plain text."""
        first, *others = self.parts
        rest = Part(first.kind, first.text[count:], first.is_quoted)
        return ShellWord(self.raw[count:], [rest, *others] if rest.text else others)


class UnreadableError(Exception):
    """A script cannot be read beyond the character ``at``, because of ``what``."""

    def __init__(self, at: int, what: str) -> None:
        super().__init__(what)
        self.at, self.what = at, what


@dataclass
class ShellCommand:
    """A simple command with the characters of the script that it has."""

    start: int
    end: int = 0
    words: list[ShellWord] = field(default_factory=list)
    assigned: dict[str, ShellWord | None] = field(default_factory=dict)
    """What its words before the program set; None for a list, an element or an addition."""
    prefix_end: int = 0
    """Where these end."""
    is_redirected: bool = False

    @property
    def program(self) -> str:
        """The first word; empty where there is none, or bash changes it."""
        return (self.words[0].text or "") if self.words else ""


@dataclass
class Statement:
    """Commands on the script's own level that ``|``, ``&&`` and ``||`` join, or a compound one."""

    start: int
    end: int = 0
    commands: list[ShellCommand] = field(default_factory=list)
    """All in it, at whatever depth; those of substitutions are none."""
    is_compound: bool = False
    """It has reserved words or parentheses, or runs in the background."""

    @property
    def simple(self) -> ShellCommand | None:
        """Its only command, where it is no more than that."""
        return self.commands[0] if len(self.commands) == 1 and not self.is_compound else None


class ShellScript:
    """A script and its statements.

    ``problem`` is why a rest of it could not be read; None where all was.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.statements: list[Statement] = []
        self.problem: str | None = None
        self._ends = [match.end() for match in re.finditer("\n", text)]
        scan = _Scan(text)
        try:
            self.statements.extend(scan.script())
        except UnreadableError as error:
            self.problem = f"line {self.line(error.at)}: {error.what}"
        self.commands = [one for each in self.statements for one in each.commands]
        bodies = [one for one in self.statements if _FUNCTION.match(text, one.start)]
        readers = [one.start for one in self.commands if one.program in ("getopts", "shift")]
        places = sorted([*scan.positional, *readers])
        self.positional = [
            self.line(at) for at in places if not any(one.start <= at < one.end for one in bodies)
        ]
        self.own_path = [self.line(at) for at in scan.own_path]
        # Variable -> the line that reads it first, and whether it says what it is where unset.
        self.reads = {name: (self.line(at), given) for name, (at, given) in scan.reads.items()}

    @property
    def templates(self) -> dict[str, int]:
        """Return the placeholders in its commands, such as ``{{ lr }}``, and their first lines."""
        found: dict[str, int] = {}
        for statement in self.statements:
            for one in _TEMPLATE.finditer(self.text, statement.start, statement.end):
                found.setdefault(one[0], self.line(one.start()))
        return found

    def line(self, at: int) -> int:
        """Return the line, from 1, of a character."""
        return bisect_right(self._ends, at) + 1


@dataclass
class _State:
    """Where in a statement a scan is."""

    wants_program: bool
    command: ShellCommand | None = None
    after: str = ""
    """The reserved word whose own words follow, ``end`` after one that closes; else empty."""
    is_joined: bool = False
    """It goes on in the next line: ``&&`` and its like."""

    def begin(self) -> None:
        self.wants_program, self.command, self.after = True, None, ""

    def end(self) -> None:
        self.wants_program, self.command, self.after = False, None, "end"


class _Scan:
    """One pass over a script."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self._nested = self._steps = 0
        self._heredocs: list[tuple[str, bool]] = []
        self.positional: list[int] = []
        """Where the script reads its own arguments."""
        self.own_path: list[int] = []
        """Where it reads its own path."""
        self.reads: dict[str, tuple[int, bool]] = {}
        """Variable -> where it is read first, and whether it is said there what it is without."""

    def script(self) -> Iterator[Statement]:
        text = self._text
        while True:
            self._skip(lines=True)
            if self._at >= len(text):
                return
            statement = Statement(self._at)
            self._statement(statement)
            statement.end = self._at
            if statement.commands or statement.is_compound:
                yield statement

    def _skip(self, *, lines: bool) -> None:
        """Skip blanks and comments, and with ``lines`` the ends of lines."""
        text = self._text
        while self._at < len(text):
            found = _BLANK.match(text, self._at)
            self._at = found.end() if found else self._at
            if not lines or not text.startswith("\n", self._at):
                return
            self._newline()

    def _newline(self) -> None:
        """Pass the end of a line, and the here-documents that begin there."""
        self._at += 1
        for delimiter, has_tabs in self._heredocs:
            begun = self._at
            while True:
                if self._at >= len(self._text):
                    raise UnreadableError(begun, f"no line ends the here-document {delimiter!r}")
                end = self._text.find("\n", self._at)
                end = len(self._text) if end < 0 else end
                line = self._text[self._at : end] if end - self._at < 1000 else ""
                self._at = min(end + 1, len(self._text))
                if (line.lstrip("\t") if has_tabs else line) == delimiter:
                    break
        self._heredocs.clear()

    def _statement(self, statement: Statement, closing: str | None = None) -> None:
        """Read one statement; with ``closing`` all up to the parenthesis that ends them."""
        text, levels = self._text, [")"] if closing else []
        state = _State(wants_program=True)
        while True:
            self._step()
            self._skip(lines=False)
            if self._at >= len(text):
                if levels:
                    raise UnreadableError(statement.start, f"no {levels[-1]!r} ends this")
                return
            found = _OPERATOR.match(text, self._at)
            if found is None or text.startswith(("<(", ">("), self._at):
                self._take(statement, levels, state)
                continue
            operator = found[0]
            if operator in _REDIRECTIONS:
                is_closed = state.after == "end"  # of all of a compound command
                own = ShellCommand(self._at) if is_closed else self._command(statement, state)
                self._redirection(operator, own)
            elif operator == "(":
                self._parenthesis(statement, levels, state)
            elif operator == ")" and levels[-1:] == [_PATTERNS]:
                self._at += 1
                levels[-1] = _BRANCH
                state.begin()
            elif operator == ")":
                if levels[-1:] != [")"]:
                    raise UnreadableError(self._at, "')' closes nothing")
                levels.pop()
                self._at += 1
                state.end()
                if closing and not levels:
                    return
            else:
                if operator == "\n":
                    if not levels and not state.is_joined:
                        return
                    self._newline()
                else:
                    self._at = found.end()
                    state.is_joined = operator in ("&&", "||", "|", "|&")
                if operator in (";;", ";&", ";;&") and levels[-1:] == [_BRANCH]:
                    levels[-1] = _PATTERNS
                if not levels and operator in (";", "&"):
                    statement.is_compound = statement.is_compound or operator == "&"
                    return
                state.begin()

    def _take(self, statement: Statement, levels: list[str], state: _State) -> None:
        """Take a word, which may be a reserved one."""
        start, word = self._at, self._word()
        state.is_joined = False
        if levels[-1:] == [_PATTERNS]:
            if word.raw == "esac":
                levels.pop()
                state.end()
        elif state.after == "function":
            state.begin()
        elif state.after == "case":
            if word.raw == "in":
                levels.append(_PATTERNS)
                state.after = ""
        elif state.after:
            pass
        elif not state.wants_program or not self._reserved(word.raw, start, levels, state):
            self._add(self._command(statement, state, start), word)
            state.wants_program = False
        elif word.raw != "time":
            statement.is_compound = True
        if state.command is not None:
            state.command.end = self._at

    def _command(
        self, statement: Statement, state: _State, start: int | None = None
    ) -> ShellCommand:
        if state.command is None:
            begun = self._at if start is None else start
            state.command = ShellCommand(begun, end=begun, prefix_end=begun)
            statement.commands.append(state.command)
        return state.command

    def _reserved(self, raw: str, start: int, levels: list[str], state: _State) -> bool:
        """Take a reserved word, where a program is expected; return whether it is one."""
        if raw == "[[":
            self._test()
            state.end()
        elif raw == "case":
            state.after = "case"
        elif raw in _OPENS:
            levels.append(_OPENS[raw])
            state.after = raw if raw in ("for", "select") else ""
        elif raw == "function":
            state.after = "function"
        elif levels and raw == ("esac" if levels[-1] == _BRANCH else levels[-1]):
            levels.pop()
            state.end()
        elif raw in ("fi", "done", "esac", "}"):
            raise UnreadableError(start, f"{raw!r} closes nothing")
        else:
            return raw in _CONTINUES
        return True

    def _test(self) -> None:
        """Pass ``[[ … ]]``, in which operators are words."""
        begun = self._at
        while self._at < len(self._text):
            self._skip(lines=False)
            found = _OPERATOR.match(self._text, self._at)
            if found is not None:
                self._at = found.end()
            elif self._at < len(self._text) and self._word().raw == "]]":
                return
        raise UnreadableError(begun, "no ']]' ends '[['")

    def _parenthesis(self, statement: Statement, levels: list[str], state: _State) -> None:
        """Pass an opening parenthesis: of arithmetic, a list, a function or a subshell."""
        text, statement.is_compound = self._text, True
        if text.startswith("((", self._at) and (state.wants_program or state.after == "for"):
            self._balanced("(", ")")
            state.end()
        elif levels[-1:] == [_PATTERNS]:
            self._at += 1
        elif state.after == "function" or (
            state.command is not None and re.match(r"\(\s*\)", text[self._at : self._at + 20])
        ):
            # The definition of a function, whose name starts nothing.
            if state.command is not None:
                statement.commands.remove(state.command)
            self._at = text.find(")", self._at) + 1 or len(text)
            self._skip(lines=True)
            state.begin()
        else:
            levels.append(")")
            self._at += 1
            state.begin()

    def _redirection(self, operator: str, command: ShellCommand) -> None:
        self._at += len(operator)
        command.is_redirected = True
        self._skip(lines=False)
        word = self._word()
        command.end = self._at
        if operator in ("<<", "<<-"):
            delimiter = re.sub(r"['\"\\]", "", word.raw)
            self._heredocs.append((delimiter, operator == "<<-"))

    def _add(self, command: ShellCommand, word: ShellWord) -> None:
        """Add a word to a command: as one of its own, or as what it sets before that."""
        found = _ASSIGNMENT.match(word.raw) if not command.words else None
        if found is None:
            command.words.append(word)
            return
        is_whole = not found[2] and not found[0].endswith("+=")
        if self._text.startswith("(", self._at):
            is_whole = False  # a list
            self._balanced("(", ")")
        command.assigned[found[1]] = word.after(found.end()) if is_whole else None
        command.prefix_end = self._at

    def _substitution(self) -> None:
        """Read the commands in ``(…)`` of a substitution."""
        inner, heredocs = Statement(self._at), self._heredocs
        self._at += 1
        self._heredocs = []
        self._deepen(1)
        self._statement(inner, ")")
        self._deepen(-1)
        self._heredocs = [*heredocs, *self._heredocs]

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
                parts.append(Part("text", self._single(), True))
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

    def _single(self) -> str:
        """Read what is between single quotes."""
        begun = self._at
        end = self._text.find("'", begun + 1)
        if end < 0:
            raise UnreadableError(begun, "a quote ' is not closed")
        self._at = end + 1
        return self._text[begun + 1 : end]

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

    def _balanced(self, opening: str, closing: str) -> None:
        """Pass a list or arithmetic in parentheses."""
        begun, text, depth = self._at, self._text, 0
        while self._at < len(text):
            one = text[self._at]
            if one in (opening, closing):
                depth += 1 if one == opening else -1
                self._at += 1
                if not depth:
                    return
            elif one == "#" and text[self._at - 1].isspace():
                self._skip(lines=False)
            else:
                self._inside(one)
        raise UnreadableError(begun, f"no {closing!r} ends {opening!r}")

    def _inside(self, one: str) -> None:
        """Pass a quote, an expansion or a character inside of an expansion."""
        self._step()
        if one == '"':
            self._double([])
        elif one == "'":
            self._single()
        elif one in "$`":
            self._deepen(1)
            self._expansion(is_quoted=True)
            self._deepen(-1)
        elif one == "\\":
            self._at += 2
        else:
            found = _INSIDE.match(self._text, self._at)
            self._at = max(found.end() if found else 0, self._at + 1)
