"""Tables: rich ones on a terminal, plain aligned columns in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from hpcrun.shared_dataclass import dataclass, field
from hpcrun.terminal import styled
from hpcrun.text import one_line

if TYPE_CHECKING:
    from rich.table import Table as RichTable

STYLES = {
    "running": "green",
    "restarting": "yellow",
    "requeued": "yellow",
    "completed": "bright_blue",
    "pruned": "cyan",
    "failed": "red",
    "cancelled": "magenta",
    "unknown": "yellow",
}

# The least width to which a column of long cells is folded.
_FOLDED = 8


@dataclass
class Table:
    """Columns and rows of text."""

    headers: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    """An empty cell is ``-`` in a pipe, so that ``cut`` finds its column."""
    right: frozenset[str] = frozenset()
    """Headers of columns that are aligned to the right."""
    styled: frozenset[str] = frozenset()
    """Headers of columns whose cells choose their colour from `STYLES`."""
    spare: Sequence[str] = ()
    """Headers of columns that a narrow terminal omits, the first ones first."""

    def add(self, *cells: str) -> None:
        """Append a row; each cell becomes one line, without control characters."""
        plain = "".join(cells).isprintable()
        self.rows.append(cells if plain else [*map(one_line, cells)])

    def print(self, *, color: bool, stream: TextIO | None = None) -> None:
        """Write to ``stream`` (stdout), for a terminal or for a pipe.

        A terminal shows no empty columns, and folds long cells; if that is not enough, it omits
        ``spare`` columns, and then gets what a pipe gets. Nothing that is shown is ever cut.
        """
        stream = stream or sys.stdout
        if stream.isatty():
            from rich.console import Console

            console = Console(file=styled(stream), no_color=not color, highlight=False)
            table = self.fitted(console.width)
            if table is not None:
                console.print(table)
                return
        stream.write(self.plain())

    def plain(self) -> str:
        """Return aligned columns, two spaces apart, whole."""
        if not self.rows:
            return "  ".join(map(one_line, self.headers)).rstrip() + "\n"
        columns = []
        for header, cells in zip(self.headers, zip(*self.rows, strict=True), strict=False):
            column = [one_line(header), *(cell or "-" for cell in cells)]
            align = str.rjust if header in self.right else str.ljust
            width = max(map(len, column))
            columns.append([align(cell, width) for cell in column])
        return "".join("  ".join(line).rstrip() + "\n" for line in zip(*columns, strict=True))

    def fitted(self, width: int) -> RichTable | None:
        """Return the table for a terminal of so many columns; None if these are too few."""
        from rich.table import Table as RichTable
        from rich.text import Text

        whole = [i == 0 or each in self.styled | self.right for i, each in enumerate(self.headers)]
        widths = [
            max(len(header), *(len(row[i]) for row in self.rows), 0) if whole[i] else _FOLDED
            for i, header in enumerate(self.headers)
        ]
        shown = [i for i in range(len(widths)) if i == 0 or any(row[i] for row in self.rows)]
        for header in (None, *self.spare):
            shown = [i for i in shown if self.headers[i] != header]
            if sum(widths[i] + 2 for i in shown) <= width:
                break
        else:
            return None
        table = RichTable(box=None, header_style="bold", pad_edge=False, padding=(0, 1))
        for i in shown:
            table.add_column(
                Text(one_line(self.headers[i])),
                justify="right" if self.headers[i] in self.right else "left",
                overflow="fold",
                no_wrap=whole[i],
            )
        for row in self.rows:
            styles = [STYLES.get(row[i], "") * (self.headers[i] in self.styled) for i in shown]
            table.add_row(*(Text(row[i], style) for i, style in zip(shown, styles, strict=True)))
        return table


def number(value: float | None) -> str:
    """Format to six significant digits at most; empty for None."""
    return "" if value is None else f"{value:.6g}"
