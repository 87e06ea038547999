"""A list of rows under headers; only the visible ones are drawn, however many there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from hpcrun.observe.tables import STYLES, Table

# What stands before each row: the cursor, and a mark. It needs no colour.
_GUTTER = 2
# The width from which on columns are as wide as what is in them, and what they have before.
_WIDE = 120
_MOST = {"CAUSE": 9}
# Columns between two others, where there is room.
_GAP = 2
# The part of the screen that one column takes at most, and its least width.
_LARGEST_PART, _LEAST_WIDTH = 3, 12


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
        """Show the rows of a table, of which some are ``marked``.

        ``drop`` are headers of columns that a narrow terminal omits, the first ones first.
        ``cells`` returns the cells of a row, which may differ from the table's: with ``has_trend``
        it fills in the column ``TREND``.
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
            shown = _cell(
                text,
                column.width,
                right=header in self._table.right,
                keep_end=column.place == 0,
            )
            colour = STYLES.get(text) if header == "STATE" else None
            segments.append(Segment(shown, style + Style.parse(colour) if colour else style))
            segments.append(Segment(" " * column.gap, style))
        return segments


class FittedColumn(NamedTuple):
    """One column of the screen: its place in the table, and its width with the gap after it."""

    place: int
    width: int
    gap: int


def fit(
    table: Table,
    width: int,
    drop: Sequence[str],
    *,
    fixed: Mapping[str, int],
    most: Mapping[str, int],
) -> list[FittedColumn]:
    """Return the columns of ``table`` that ``width`` has room for.

    Empty columns are left out, then those of ``drop``, the first ones first, then the last ones.

    ``fixed`` are the widths of columns that are filled in later, ``most`` the greatest widths of
    others, by their headers.
    """
    widths: dict[int, int] = {}
    for place, header in enumerate(table.headers):
        longest = max((len(row[place]) for row in table.rows), default=0)
        if header in fixed or longest or not table.rows:
            widths[place] = max(fixed.get(header, longest), len(header))
    limit = max(_LEAST_WIDTH, width // _LARGEST_PART)
    sizes = {
        place: min(wide, most.get(table.headers[place], limit)) for place, wide in widths.items()
    }
    shown = list(widths)
    for dropped in (None, *drop):
        shown = [place for place in shown if table.headers[place] != dropped]
        if _total(shown, sizes) <= width:
            break
    while len(shown) > 1 and _total(shown, sizes) > width:
        shown.pop()
    gap = _GAP if _total(shown, sizes, _GAP) <= width else 1
    room = width - _total(shown, sizes, gap)
    # What is left goes to the first column, which names the row, and to the last one.
    for place in dict.fromkeys((*shown[:1], *shown[-1:])):
        more = min(max(0, room), widths[place] - sizes[place])
        sizes[place] += more
        room -= more
    return [FittedColumn(place, min(sizes[place], width), gap) for place in shown]


def _total(shown: Sequence[int], sizes: Mapping[int, int], gap: int = 1) -> int:
    return sum(sizes[place] + gap for place in shown) - gap


def _cell(text: str, width: int, *, right: bool = False, keep_end: bool = False) -> str:
    """Return a text in exactly so many columns; what is cut is marked by ``…``."""
    length = cell_len(text)
    if length > width:
        end = text[-(width // 2) :] if keep_end else ""
        start = set_cell_size(text, max(0, width - 1 - cell_len(end))).rstrip()
        return set_cell_size(f"{start}…{end}", width)
    return " " * (width - length) + text if right else text + " " * (width - length)
