"""A list of rows under headers; only the visible ones are drawn, however many there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from hpcrun.observe.tables import STYLES, Table
from hpcrun.tools.top.column_fit import FittedColumn, cell, fit

# What stands before each row: the cursor, and a mark. It needs no colour.
_GUTTER = 2
# The width from which on columns are as wide as what is in them, and what they have before.
_WIDE = 120
_MOST = {"CAUSE": 9}


class RowList(Widget):
    """Rows with a cursor. Set `show` after each change of what they are."""

    class Moved(Message):
        """Other rows are visible, or the cursor is on another one."""

    def __init__(self) -> None:
        super().__init__()
        self.cursor = 0
        """The row of the cursor."""
        self._first = 0
        self._table = Table(())
        self._drop: Sequence[str] = ()
        self._columns: list[FittedColumn] = []
        self._has_trend = False
        self._marked: frozenset[int] = frozenset()
        self._cells: Callable[[int], Sequence[str]] = lambda row: self._table.rows[row]

    def show(
        self,
        table: Table,
        drop: Sequence[str],
        cells: Callable[[int], Sequence[str]],
        marked: frozenset[int],
        *,
        has_trend: bool = False,
    ) -> None:
        """Show the rows of a table.

        Parameters
        ----------
        drop
            Headers of columns that a narrow terminal omits, the first ones first.
        cells
            Returns the cells of a row, which may differ from the table's.
        marked
            Rows that are marked.
        has_trend
            The column ``TREND`` is filled in by ``cells``.
        """
        self._table, self._drop, self._cells = table, drop, cells
        self._marked, self._has_trend = marked, has_trend
        self._fit()
        self.go(self.cursor)

    @property
    def visible_rows(self) -> range:
        """The rows on the screen."""
        return range(self._first, min(self._first + self._height, len(self._table.rows)))

    @property
    def trend_width(self) -> int:
        """Columns for the course of a metric."""
        return 16 if self._is_wide else 8

    @property
    def _is_wide(self) -> bool:
        return self.size.width >= _WIDE

    @property
    def page(self) -> int:
        """The rows by which one turns a page."""
        return max(1, self._height - 1)

    def on_resize(self, _event: events.Resize) -> None:
        self._fit()
        self.go(self.cursor)

    @property
    def _height(self) -> int:
        return max(1, self.size.height - 1)

    def _fit(self) -> None:
        fixed = {"TREND": self.trend_width} if self._has_trend else {}
        most = {} if self._is_wide else _MOST
        width = max(1, self.size.width - _GUTTER)
        self._columns = fit(self._table, width, self._drop, fixed=fixed, most=most)

    def go(self, row: int) -> None:
        """Move the cursor to a row, or as near to it as there is one."""
        count = len(self._table.rows)
        self.cursor = max(0, min(row, count - 1))
        highest = max(0, count - self._height)
        first = min(self._first, self.cursor, highest)
        self._first = max(first, self.cursor - self._height + 1)
        self.refresh()
        self.post_message(self.Moved())

    def render_line(self, y: int) -> Strip:
        """Draw the headers (line 0) or the row at this line of the screen."""
        width = self.size.width
        row = self._first + y - 1
        if y == 0:
            segments = self._segments(self._table.headers, "  ", Style(bold=True, underline=True))
        elif row < len(self._table.rows):
            is_chosen = row == self.cursor
            gutter = (">" if is_chosen else " ") + ("*" if row in self._marked else " ")
            segments = self._segments(self._cells(row), gutter, Style(reverse=is_chosen))
        else:
            segments = []
        return Strip(segments).adjust_cell_length(width)

    def _segments(self, cells: Sequence[str], gutter: str, style: Style) -> list[Segment]:
        segments = [Segment(gutter, style)]
        headers = self._table.headers
        for column in self._columns:
            header, text = headers[column.place], cells[column.place]
            shown = cell(
                text,
                column.width,
                right=header in self._table.right,
                keep_end=column.place == 0,
            )
            colour = STYLES.get(text) if header == "STATE" else None
            segments.append(Segment(shown, style + Style.parse(colour) if colour else style))
            segments.append(Segment(" " * column.gap, style))
        return segments
