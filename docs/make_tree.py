"""Draw the tree of hpcrun in docs/architecture.md, each room with the first line of its docstring.

With ``--check``, only fail where the drawing is not up to date.
"""

from __future__ import annotations

import ast
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

PAGE = Path(__file__).with_name("architecture.md")
PACKAGE = PAGE.parents[1] / "hpcrun"
BEGIN = "<!-- Drawn by `python docs/make_tree.py` from the docstrings of the packages. -->\n"
END = "<!-- End of the drawing. -->\n"
# In the order in which data flows, what all stands on first.
ORDER = (
    "state",
    "policy",
    "slurm",
    "site",
    "compile",
    "submission",
    "check",
    "container",
    "run",
    "observe",
    "control",
    "cli",
    "features",
    "tools",
    "testing",
)
WIDTH = 100


def drawn() -> tuple[str, str]:
    """Return the page as it is, and with the drawing of now."""
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    drawing = f"{BEGIN}```\n{''.join(_rooms())}```\n{END}"
    return text, before + drawing + rest.partition(END)[2]


def _rooms() -> Iterator[str]:
    """Yield a line on each room, and the names of the packages in it."""
    yield _line("hpcrun/", PACKAGE / "__init__.py", 0)
    for name in ORDER:
        yield _line(f"{name}/", PACKAGE / name / "__init__.py", 1)
        room = PACKAGE / name
        inner = [f"{directory.relative_to(room)}/" for _, directory in _below(room, 1)][1:]
        indent = " " * 6
        lines = textwrap.wrap(
            " ".join(inner), WIDTH, initial_indent=indent, subsequent_indent=indent
        )
        yield from (f"{line}\n" for line in lines)


def _packages() -> Iterator[tuple[int, Path]]:
    yield 0, PACKAGE
    for name in ORDER:
        yield from _below(PACKAGE / name, 1)


def _below(directory: Path, depth: int) -> Iterator[tuple[int, Path]]:
    yield depth, directory
    for path in sorted(directory.iterdir()):
        if (path / "__init__.py").is_file():
            yield from _below(path, depth + 1)


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.glob("*.py") if not path.name.startswith("__"))


def _line(name: str, path: Path, depth: int) -> str:
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return f"{'  ' * depth + name:<24} {text.partition(chr(10))[0]}".rstrip() + "\n"


def main() -> None:
    """Write or check the drawing."""
    found, wanted = drawn()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(wanted)
    elif found != wanted:
        sys.exit(f"docs/{PAGE.name} is out of date: run `make docs`")


if __name__ == "__main__":
    main()
