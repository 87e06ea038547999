"""Parses a shell script into commands and blocks, each with its lines."""

from __future__ import annotations

from dataclasses import dataclass, field

from hpcrun.convert.shell.shell_tokens import REDIRECTS, ShellSyntaxError, ShellToken, tokens

_MOST_NESTED = 40
_MOST_PROBLEMS = 20
_CLOSES = {
    **{"if": "fi", "for": "done", "while": "done", "until": "done", "select": "done"},
    **{"case": "esac", "{": "}", "(": ")"},
}


@dataclass
class Redirect:
    """A redirection: ``> file``, ``<<EOF`` with its document."""

    operator: str
    target: str
    """The word as it is written."""
    body: str | None = None
    is_literal: bool = False


@dataclass
class ShellCommand:
    """A simple command: assignments, words and redirections."""

    line: int
    last: int
    words: list[str]
    """As they are written, assignments first."""
    redirects: list[Redirect] = field(default_factory=list)
    joined: str = ""
    """The operator before it: ``|``, ``&&``, ``||`` or empty."""
    is_background: bool = False
    is_piped: bool = False
    """Its output goes to another command."""


@dataclass
class ShellBlock:
    """A compound command: ``if``, ``for``, a function, …"""

    kind: str
    line: int
    last: int
    header: list[str] = field(default_factory=list)
    """The words of ``for NAME in …`` and ``case WORD in``, the name of a function."""
    branches: list[tuple[list[ShellNode], list[ShellNode]]] = field(default_factory=list)
    """Condition and body of each branch; of ``case`` the body's pattern is in ``patterns``."""
    patterns: list[list[str]] = field(default_factory=list)
    redirects: list[Redirect] = field(default_factory=list)
    joined: str = ""
    is_background: bool = False
    is_piped: bool = False


ShellNode = ShellCommand | ShellBlock


@dataclass
class ParsedScript:
    """The nodes of a script, and what bash would not take of it."""

    nodes: list[ShellNode]
    problems: list[tuple[int, str]] = field(default_factory=list)
    """Line and message: a block that is not closed, which is read as if it were not there."""
    unread_from: int | None = None
    """The line from which on nothing could be read; None where all was."""
    unread_why: str = ""


def parse(text: str) -> ParsedScript:
    """Parse a script; what cannot be read is told in the result."""
    unread: ShellSyntaxError | None = None
    found: list[ShellToken] = []
    lines = text.split("\n")
    end = len(lines)
    for _ in range(_MOST_PROBLEMS):
        try:
            found = tokens("\n".join(lines[:end]) + "\n")
            break
        except ShellSyntaxError as error:
            # What stands before it may be cut in the middle of something else.
            unread = unread or error
            end = min(end, error.line) - 1
    else:
        end = 0
    parser = _Parser(found)
    nodes = parser.script()
    result = ParsedScript(nodes, parser.problems)
    if parser.left is not None and unread is None:
        unread = ShellSyntaxError("too many blocks are not closed", parser.left)
    if unread is not None:
        result.unread_from = parser.left or end + 1
        result.unread_why = unread.message
    return result


def chains(nodes: list[ShellNode]) -> list[list[ShellNode]]:
    """Return nodes by what joins them: ``a && b``, ``c | d``."""
    found: list[list[ShellNode]] = []
    for node in nodes:
        if node.joined and found:
            found[-1].append(node)
        else:
            found.append([node])
    return found


class _Unclosed(Exception):
    """The script ends, or something else is closed, before a block is."""


class _Parser:
    def __init__(self, found: list[ShellToken]) -> None:
        self._tokens, self._at, self._depth = found, 0, 0
        self.problems: list[tuple[int, str]] = []
        self._broken: set[int] = set()
        self._unclosed: set[int] = set()

    @property
    def left(self) -> int | None:
        """The line from which on nothing was parsed; None if all was."""
        token = self._peek()
        return None if token is None else token.line

    def script(self) -> list[ShellNode]:
        nodes: list[ShellNode] = []
        while self._at < len(self._tokens):
            before = self._at
            try:
                nodes += self._list(())
            except _Unclosed:
                self._at = before
                if len(self.problems) >= _MOST_PROBLEMS:
                    return nodes
                self._skip_opener()
                continue
            if self._at < len(self._tokens):
                token = self._tokens[self._at]
                self.problems.append((token.line, f"{token.text} closes nothing"))
                nodes.append(ShellCommand(token.line, token.last, [token.text]))
                self._at += 1
        return nodes

    def _skip_opener(self) -> None:
        """Take the first block that is not closed for a word of its own."""
        opener = min(self._unclosed)
        token = self._tokens[opener]
        self.problems.append((token.line, f"the block that begins with {token.text} is not closed"))
        self._broken.add(opener)
        self._unclosed = set()

    def _peek(self) -> ShellToken | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _is(self, *texts: str) -> bool:
        token = self._peek()
        return token is not None and token.kind in ("word", "op") and token.text in texts

    def _skip_newlines(self) -> None:
        while (token := self._peek()) is not None and (
            token.kind == "newline" or token.text == ";"
        ):
            self._at += 1

    def _list(self, until: tuple[str, ...]) -> list[ShellNode]:
        """Parse commands up to a closing word, which is not taken."""
        nodes: list[ShellNode] = []
        joined = ""
        while True:
            token = self._peek()
            if token is None:
                if until:
                    raise _Unclosed
                return nodes
            if token.kind == "newline" or (token.kind == "op" and token.text in (";", "&")):
                if token.text == "&" and nodes:
                    nodes[-1].is_background = True
                if token.kind != "newline":
                    joined = ""
                self._at += 1
                continue
            if token.kind == "op" and token.text in ("|", "|&", "&&", "||"):
                joined = token.text
                if nodes and joined.startswith("|") and joined != "||":
                    nodes[-1].is_piped = True
                self._at += 1
                continue
            closes = token.kind in ("word", "op") and token.text in (
                *("fi", "done", "esac", "}", ")", "then", "do", "else", "elif", ";;", ";&", ";;&"),
            )
            if closes and (token.text in until or not until):
                return nodes
            if closes:
                raise _Unclosed
            node = self._command()
            node.joined, joined = joined, ""
            nodes.append(node)

    def _command(self) -> ShellNode:
        token = self._tokens[self._at]
        start = self._at
        opens = token.text in _CLOSES or token.text == "function"
        if token.kind in ("word", "op") and opens and start not in self._broken:
            self._depth += 1
            try:
                if self._depth > _MOST_NESTED:
                    raise _Unclosed
                return self._block(token)
            except _Unclosed:
                self._unclosed = self._unclosed | {start}
                raise
            finally:
                self._depth -= 1
        if self._is_function():
            try:
                return self._function(start)
            except _Unclosed:
                self._unclosed = self._unclosed | {start}
                raise
        return self._simple()

    def _is_function(self) -> bool:
        following = [one.text for one in self._tokens[self._at + 1 : self._at + 3]]
        token = self._tokens[self._at]
        is_name = token.kind == "word" and self._at not in self._broken
        return is_name and following == ["(", ")"]

    def _function(self, start: int) -> ShellBlock:
        token = self._tokens[start]
        if token.text == "function":
            self._at += 1
        name = self._tokens[self._at].text if self._at < len(self._tokens) else ""
        self._at += 1
        if self._is("("):
            self._at += 2
        self._skip_newlines()
        if not self._is("{", "("):
            raise _Unclosed
        inner = self._command()
        assert isinstance(inner, ShellBlock)
        return ShellBlock("function", token.line, inner.last, [name], inner.branches)

    def _block(self, token: ShellToken) -> ShellBlock:
        if token.text == "function":
            return self._function(self._at)
        self._at += 1
        block = ShellBlock(token.text, token.line, token.last)
        if token.text == "if":
            self._if(block)
        elif token.text == "case":
            self._case(block)
        elif token.text in ("{", "("):
            close = _CLOSES[token.text]
            block.kind = "group" if token.text == "{" else "subshell"
            block.branches.append(([], self._list((close,))))
        else:
            condition: list[ShellNode] = []
            if token.text in ("for", "select"):
                self._for_header(block)
            else:
                condition = self._list(("do",))
            self._take("do")
            block.branches.append((condition, self._list(("done",))))
        end = self._peek()
        if end is None:
            raise _Unclosed
        block.last = end.last
        self._at += 1
        block.redirects = self._redirects(block)
        return block

    def _take(self, word: str) -> None:
        self._skip_newlines()
        if not self._is(word):
            raise _Unclosed
        self._at += 1

    def _if(self, block: ShellBlock) -> None:
        while True:
            condition = self._list(("then",))
            self._take("then")
            block.branches.append((condition, self._list(("elif", "else", "fi"))))
            if self._is("elif"):
                self._at += 1
                continue
            if self._is("else"):
                self._at += 1
                block.branches.append(([], self._list(("fi",))))
            return

    def _for_header(self, block: ShellBlock) -> None:
        while (token := self._peek()) is not None and token.kind in ("word", "arithmetic"):
            if token.text == "do" and block.header:
                return
            block.header.append(token.text)
            self._at += 1
        self._skip_newlines()

    def _case(self, block: ShellBlock) -> None:
        token = self._peek()
        if token is None:
            raise _Unclosed
        block.header.append(token.text)
        self._at += 1
        self._take("in")
        while True:
            self._skip_newlines()
            if self._is("esac"):
                return
            if self._is("("):
                self._at += 1
            patterns: list[str] = []
            while (token := self._peek()) is not None and not (
                token.kind == "op" and token.text == ")"
            ):
                if token.kind == "newline":
                    raise _Unclosed
                if token.kind == "word":
                    patterns.append(token.text)
                self._at += 1
            self._take(")")
            block.patterns.append(patterns)
            block.branches.append(([], self._list((";;", ";&", ";;&", "esac"))))
            if not self._is("esac"):
                self._at += 1

    def _redirects(self, node: ShellBlock | ShellCommand) -> list[Redirect]:
        found: list[Redirect] = []
        while (token := self._peek()) is not None and self._is_redirect(token):
            found.append(self._redirect(node))
        return found

    def _is_redirect(self, token: ShellToken) -> bool:
        return token.kind == "op" and token.text in REDIRECTS

    def _redirect(self, node: ShellBlock | ShellCommand) -> Redirect:
        token = self._tokens[self._at]
        self._at += 1
        target = self._peek()
        text = ""
        if target is not None and target.kind == "word":
            text = target.text
            node.last = max(node.last, target.last)
            self._at += 1
        node.last = max(node.last, token.last)
        return Redirect(token.text, text, token.body, token.is_literal)

    def _simple(self) -> ShellCommand:
        token = self._tokens[self._at]
        node = ShellCommand(token.line, token.last, [])
        while (token_ := self._peek()) is not None:
            if self._is_redirect(token_):
                # A number before it, as in 2>&1, names a descriptor.
                if node.words and node.words[-1].isdigit() and self._touches():
                    node.words.pop()
                node.redirects.append(self._redirect(node))
            elif token_.kind in ("word", "test", "arithmetic"):
                node.words.append(token_.text)
                node.last = max(node.last, token_.last)
                self._at += 1
            else:
                break
        if not node.words and not node.redirects:
            # Such as a ( in the middle of a command.
            stray = self._tokens[self._at]
            node.words.append(stray.text)
            self._at += 1
        return node

    def _touches(self) -> bool:
        return self._tokens[self._at - 1].end == self._tokens[self._at].start
