"""Draw the tree of hpcrun from its docstrings, in docs/architecture.md and docs/modules.md.

The first shows rooms, the second every module. With
``--check``, only fail where a page is not up to date.
"""

from __future__ import annotations

import ast
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).parent
PACKAGE = DOCS.parent / "hpcrun"
BEGIN = "<!-- Drawn by `python docs/make_tree.py` from the docstrings of the packages. -->\n"
END = "<!-- End of the drawing. -->\n"
HEAD = """\
<!-- Drawn by `python docs/make_tree.py` from the first lines of the modules' docstrings. -->
# Modules
Every module in one line; [architecture](architecture.md) says how they work together.

"""
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
    "api",
    "tools",
)
WIDTH = 100


def pages() -> dict[Path, tuple[str, str]]:
    """Each page that holds a drawing: its text as it is, and as it should be."""
    architecture, modules = DOCS / "architecture.md", DOCS / "modules.md"
    text = architecture.read_text()
    before, begin, rest = text.partition(BEGIN)
    drawing = f"{BEGIN}```\n{''.join(_rooms())}```\n{END}"
    found = modules.read_text() if modules.is_file() else ""
    return {
        architecture: (text, before + drawing + rest.partition(END)[2] if begin else text),
        modules: (found, f"{HEAD}```\n{''.join(_modules())}```\n"),
    }


def _rooms() -> Iterator[str]:
    for depth, directory in _packages():
        yield _line(f"{directory.name}/", directory / "__init__.py", depth)
        names = [path.stem for path in _files(directory)]
        indent = "  " * depth + " " * 4
        yield from (
            f"{line}\n"
            for line in textwrap.wrap(
                " ".join(names), WIDTH, initial_indent=indent, subsequent_indent=indent
            )
        )


def _modules() -> Iterator[str]:
    for depth, directory in _packages():
        yield _line(f"{directory.name}/", directory / "__init__.py", depth)
        for path in _files(directory):
            yield _line(path.stem, path, depth + 1)


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
    """Write or check the pages."""
    for page, (found, wanted) in pages().items():
        if "--check" not in sys.argv[1:]:
            page.write_text(wanted)
        elif found != wanted:
            sys.exit(f"docs/{page.name} is out of date: run `make docs`")


if __name__ == "__main__":
    main()
