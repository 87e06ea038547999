"""Reads the commands of a shell script, in time linear in its length; nothing is evaluated."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from hpcrun.tools.init.convert.shell_words import ShellWord, UnreadableError, WordScan

_BLANK = re.compile(r"(?:[ \t]|\\\n)*")
_OPERATOR = re.compile(r"<<<|<<-|&>>|\|\||&&|;;&|;;|;&|<<|>>|<&|>&|<>|>\||&>|\|&|[;&|<>()\n]")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^]]*\])?\+?=", re.ASCII)
_REDIRECTIONS = frozenset(("<", ">", ">>", "<<", "<<-", "<<<", "<&", ">&", "<>", ">|", "&>", "&>>"))
_OPENS = {"if": "fi", **dict.fromkeys(("for", "while", "until", "select"), "done"), "{": "}"}
_CONTINUES = frozenset(("then", "else", "elif", "do", "!", "time"))
_PATTERNS, _BRANCH = "patterns", "branch"  # of a case: its patterns, and what follows one


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


_TEMPLATE = re.compile(r"\{\{-?\s*[A-Za-z_][\w .|()'\",\[\]-]*\}\}|\{%[^%\n]*%\}")
_FUNCTION = re.compile(r"function\s|[\w.-]+[ \t]*\(\s*\)")  # its arguments are its own


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
        """Expect a program."""
        self.wants_program, self.command, self.after = True, None, ""

    def end(self) -> None:
        """Expect no more words."""
        self.wants_program, self.command, self.after = False, None, "end"


class _Scan(WordScan):
    """One pass over a script."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._heredocs: list[tuple[str, bool]] = []

    def script(self) -> Iterator[Statement]:
        text = self._text
        while True:
            self._skip(lines=True)
            if self._at >= len(text):
                return
            statement = Statement(self._at)
            try:
                self._statement(statement)
            finally:
                statement.end = self._at
            if statement.commands or statement.is_compound:
                yield statement

    def _skip(self, *, lines: bool) -> None:
        """Skip blanks and comments, and with ``lines`` the ends of lines."""
        text = self._text
        while self._at < len(text):
            found = _BLANK.match(text, self._at)
            self._at = found.end() if found else self._at
            if text.startswith("#", self._at):
                end = text.find("\n", self._at)
                self._at = len(text) if end < 0 else end
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
