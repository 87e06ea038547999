"""Decides the conditions of a script that can be decided without running it."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hpcrun.convert.shell.shell_syntax import ShellCommand, ShellNode
from hpcrun.convert.shell.shell_tokens import ShellSyntaxError, tokens
from hpcrun.convert.shell.shell_values import MARK, Expander

_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
}
_MOST_WORDS = 200
_OF_FILES = ("-f", "-d", "-e", "-s", "-r", "-w", "-x", "-L", "-h", "-v", "-t", "-p")
# Commands that are asked, so that nothing can be said of whether they succeed.
_ASK = frozenset(
    {
        *("grep", "egrep", "command", "which", "type", "hash", "pgrep", "nvidia-smi", "diff"),
        *("cmp", "ls", "cat", "find", "ping", "!"),
    }
)
_PLAIN = re.compile(r"[A-Za-z_]\w*(?:\[[^\]]*\])?\+?=[^`]*", re.DOTALL)


@dataclass
class ChainState:
    """The result of the last command in a chain of ``&&`` and ``||``, on which the next depends."""

    value: bool | None = True
    is_presumed: bool = False
    """A command of them is taken to succeed."""
    _piped: bool | None = True

    def runs(self, joined: str) -> bool | None:
        """Return whether what is joined by that operator runs; None where only a job can tell."""
        if joined not in ("&&", "||"):
            return True if not joined else self._piped
        if self.value is None or (joined == "||" and self.is_presumed and self.value):
            self._piped = None
        else:
            self._piped = self.value == (joined == "&&")
        return self._piped

    def ran(self, node: ShellNode, decide_: Callable[[Sequence[ShellNode]], bool | None]) -> None:
        """Note a command that was reached."""
        words = node.words if isinstance(node, ShellCommand) else []
        if is_condition(node):
            self.value = decide_([replace(node, joined="")])
        elif words and all(_PLAIN.fullmatch(one) and "$(" not in one for one in words):
            self.value = True
        else:
            self.value, self.is_presumed = (None if words[:1] and words[0] in _ASK else True), True


def is_condition(node: ShellNode) -> bool:
    """Check whether a node is nothing but a condition."""
    words = [one for one in node.words if one != "!"] if isinstance(node, ShellCommand) else []
    if not words or any(one.target != "/dev/null" for one in node.redirects):
        return False
    return words[0] in ("test", "true", "false", ":", "[") or words[0].startswith(("[[", "(("))


def is_question(node: ShellNode) -> bool:
    """Check whether a node asks whether a command is there."""
    words = node.words[:2] if isinstance(node, ShellCommand) else []
    return words == ["command", "-v"] or words[:1] in (["which"], ["type"], ["hash"])


def decide(nodes: Sequence[ShellNode], expander: Expander) -> bool | None:
    """Return whether a condition holds; None where only a job can tell."""
    result: bool | None = None
    for node in nodes:
        if not isinstance(node, ShellCommand):
            return None
        found = _command(node, expander)
        if node.joined == "&&":
            result = _both(result, found)
        elif node.joined == "||":
            result = _either(result, found)
        elif node.joined:
            return None
        else:
            result = found
    return result


def _both(first: bool | None, second: bool | None) -> bool | None:
    if first is False or second is False:
        return False
    return None if None in (first, second) else True


def _either(first: bool | None, second: bool | None) -> bool | None:
    if first is True or second is True:
        return True
    return None if None in (first, second) else False


def _not(value: bool | None) -> bool | None:
    return None if value is None else not value


def _command(node: ShellCommand, expander: Expander) -> bool | None:
    words = list(node.words)
    negated = False
    while words[:1] == ["!"]:
        negated, words = not negated, words[1:]
    found: bool | None = None
    if not words:
        return None
    if words[0].startswith("[["):
        found = _test(_words_of(words[0][2:-2]), expander, patterns=True)
    elif words[0].startswith("(("):
        number = expander.number(words[0][2:-2])
        found = None if number is None else number != 0
    elif words[0] == "[" and words[-1] == "]":
        found = _test(words[1:-1], expander)
    elif words[0] == "test":
        found = _test(words[1:], expander)
    elif words[0] in ("true", "false", ":"):
        found = words[0] != "false"
    return _not(found) if negated else found


def _words_of(inner: str) -> list[str]:
    try:
        return [one.text for one in tokens(inner) if one.kind != "newline"]
    except ShellSyntaxError:
        return ["-f", inner]


def _test(words: Sequence[str], expander: Expander, patterns: bool = False) -> bool | None:
    """Return the value of ``[ … ]``, with the words as they are written."""
    if len(words) > _MOST_WORDS:
        return None
    for joint, combine in (("||", _either), ("-o", _either), ("&&", _both), ("-a", _both)):
        if joint in words[1:]:
            at = list(words).index(joint, 1)
            left = _test(words[:at], expander, patterns)
            return combine(left, _test(words[at + 1 :], expander, patterns))
    if words[:1] == ["!"]:
        return _not(_test(words[1:], expander, patterns))
    if words[:1] == ["("] and words[-1:] == [")"]:
        return _test(words[1:-1], expander, patterns)
    if len(words) == 1:
        text = expander.text(words[0])
        return None if MARK.search(text) else text != ""
    if len(words) == 2:
        if words[0] in _OF_FILES:
            return None
        text = expander.text(words[1])
        if MARK.search(text):
            return None
        return {"-z": text == "", "-n": text != ""}.get(words[0])
    if len(words) != 3:
        return None
    return _compared(expander.text(words[0]), words[1], expander.text(words[2]), patterns)


def _compared(left: str, operator: str, right: str, patterns: bool) -> bool | None:
    if MARK.search(left) or MARK.search(right):
        return None
    if operator in ("=", "=="):
        return fnmatch.fnmatchcase(left, right) if patterns else left == right
    if operator == "!=":
        return not (fnmatch.fnmatchcase(left, right) if patterns else left == right)
    if operator in _NUMBERS:
        whole = [re.fullmatch(r"\s*[-+]?\d{1,18}\s*", one) for one in (left, right)]
        if all(whole):
            return _NUMBERS[operator](int(left), int(right))
    return None
