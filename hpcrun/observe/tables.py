"""Tables: a rich one on a terminal, plain aligned columns in a pipe, where nothing is cut."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.table import Table as RichTable

STYLES = {
    "running": "green",
    "restarting": "yellow",
    "requeued": "yellow",
    "completed": "bright_blue",
    "failed": "red",
    "cancelled": "magenta",
    "unknown": "yellow",
}


@dataclass
class Table:
    """Columns and rows of text.

    Attributes
    ----------
    headers
        One a column.
    rows
        As many cells each; an empty cell is shown as ``-`` in a pipe, so that columns can be cut.
    right
        Headers of columns that are aligned to the right.
    styled
        Headers of columns whose cells choose their colour from `STYLES`.
    spare
        Headers of columns that a narrow terminal goes without, the first ones first.
    """

    headers: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    right: frozenset[str] = frozenset()
    styled: frozenset[str] = frozenset()
    spare: Sequence[str] = ()

    def add(self, *cells: str) -> None:
        """Append a row."""
        self.rows.append(cells)

    def print(self, *, color: bool, stream: TextIO | None = None) -> None:
        """Write it to ``stream`` (stdout), for a terminal or for a pipe.

        On a terminal, columns in which no row has anything are left out, and long cells are folded;
        where that would not be enough, columns of ``spare`` go, and then it gets what a pipe gets.
        Nothing that is shown is ever cut.
        """
        stream = stream or sys.stdout
        if not stream.isatty():
            stream.write(self.plain())
            return
        from rich.console import Console

        console = Console(file=stream, no_color=not color, highlight=False)
        table = self.fitted(console.width)
        if table is None:
            stream.write(self.plain())
        else:
            console.print(table)

    def plain(self) -> str:
        """Aligned columns, two spaces apart, whole."""
        columns = []
        for header, cells in zip(self.headers, zip(*self.rows, strict=True), strict=False):
            column = [header, *(_one_line(cell) or "-" for cell in cells)]
            align = str.rjust if header in self.right else str.ljust
            width = max(map(len, column))
            columns.append([align(cell, width) for cell in column])
        if not self.rows:
            return "  ".join(self.headers).rstrip() + "\n"
        return "".join("  ".join(line).rstrip() + "\n" for line in zip(*columns, strict=True))

    def fitted(self, width: int) -> RichTable | None:
        """The table for a terminal of so many columns; None where they are too few."""
        from rich.table import Table as RichTable
        from rich.text import Text

        columns = range(len(self.headers))
        shown = [i for i in columns if i == 0 or any(row[i] for row in self.rows)]
        for header in (None, *self.spare):
            shown = [i for i in shown if self.headers[i] != header]
            if self._needed(shown) <= width:
                break
        else:
            return None
        table = RichTable(box=None, header_style="bold", pad_edge=False, padding=(0, 1))
        for i in shown:
            table.add_column(
                self.headers[i],
                justify="right" if self.headers[i] in self.right else "left",
                overflow="fold",
                no_wrap=self._is_rigid(i),
            )
        for row in self.rows:
            table.add_row(
                *(
                    Text(row[i], style=STYLES.get(row[i], ""))
                    if self.headers[i] in self.styled
                    else Text(row[i])
                    for i in shown
                )
            )
        return table

    def _is_rigid(self, column: int) -> bool:
        return column == 0 or self.headers[column] in self.styled | self.right

    def _needed(self, shown: Sequence[int]) -> int:
        widths = [
            max(len(self.headers[i]), *(len(row[i]) for row in self.rows), 0)
            if self._is_rigid(i)
            else _FOLDED
            for i in shown
        ]
        return sum(widths) + 2 * len(widths)


# To which a cell may be folded.
_FOLDED = 8


def _one_line(text: str) -> str:
    return text if text.isprintable() else " ".join(text.split())


def number(value: float | None) -> str:
    """Six significant digits at most; empty for None."""
    if value is None:
        return ""
    return f"{value:.6g}"
