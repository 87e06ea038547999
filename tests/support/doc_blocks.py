"""The fenced blocks of the documentation, and which file of the reader's each of them is."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
# Every page that may show an example, by its path.
PAGES = {
    str(path.relative_to(ROOT)): path
    for directory in (".", "docs", "bench", "configs", "jobs", "templates", "tests")
    for path in sorted((ROOT / directory).glob("*.md" if directory in (".", "docs") else "**/*.md"))
}
_FENCE = re.compile(r"^( *)```(\S*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_NAMED = re.compile(r"`([\w./~-]+\.(\w+))`")
_SUFFIXES = {"yaml": "yaml", "json": "json", "python": "py", "sh": "sh"}


@dataclass(frozen=True)
class Block:
    """One fenced block.

    Attributes
    ----------
    page, line
        Where its first line stands.
    language
        What the fence says; empty for a drawing or for what a program prints.
    file
        The file that the sentence before it names, or that its own `name` makes it; None for a
        fragment, and for lines of a shell.
    adds
        Whether it goes to the end of that file, which the page has shown before.
    """

    page: str
    line: int
    language: str
    text: str
    file: str | None
    adds: bool = False

    @property
    def key(self) -> str:
        """Return the block's first line, by which a table names it."""
        return self.text.partition("\n")[0].strip()

    @property
    def is_shell(self) -> bool:
        """Check whether it has lines to type, rather than a script."""
        return self.language == "sh" and not self.text.startswith("#!")

    def commands(self) -> Iterator[tuple[int, str]]:
        """Return its lines to type with the number of each; continued lines are one."""
        text = re.sub(r"\\\n *", lambda found: " " + "\0" * found[0].count("\n"), self.text)
        number = self.line
        for line in text.split("\n"):
            command = uncommented(line.replace("\0", ""))
            if command:
                yield number, command
            number += 1 + line.count("\0")


def uncommented(line: str) -> str:
    """Return a line of a shell without the comment at its end."""
    return re.sub(r"(^|\s+)#.*$", "", line).strip()


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page, in order."""
    text = PAGES[page].read_text()
    found = []
    for fence in _FENCE.finditer(text):
        language, body = fence[2], textwrap.dedent(fence[3])
        before = text[: fence.start()].rstrip()
        paragraph = before[before.rfind("\n\n") + 1 :]
        line = text.count("\n", 0, fence.start(3)) + 1
        file, adds = _file(language, body, paragraph), " more in `" in paragraph
        found.append(Block(page, line, language, body, file, adds))
    return found


def _file(language: str, body: str, paragraph: str) -> str | None:
    if language not in _SUFFIXES or (language == "sh" and not body.startswith("#!")):
        return None
    named = [name for name, suffix in _NAMED.findall(paragraph) if suffix == _SUFFIXES[language]]
    if named:
        return str(named[-1])
    name = (yaml.safe_load(body) or {}).get("name") if language == "yaml" else None
    return f"{name}.yaml" if name else None
