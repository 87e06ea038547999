"""The choice of columns that a terminal has room for, and cells of exactly their width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size

from hpcrun.observe.tables import Table

# Columns between two others, where there is room.
_GAP = 2
# The part of the screen that one column takes at most, and its least width.
_LARGEST_PART, _LEAST = 3, 12


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

    Parameters
    ----------
    fixed
        Header -> the width of a column that is filled in later.
    most
        Header -> the greatest width of a column.
    """
    widths: dict[int, int] = {}
    for place, header in enumerate(table.headers):
        longest = max((len(row[place]) for row in table.rows), default=0)
        if header in fixed or longest or not table.rows:
            widths[place] = max(fixed.get(header, longest), len(header))
    limit = max(_LEAST, width // _LARGEST_PART)
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


def cell(text: str, width: int, *, right: bool = False, keep_end: bool = False) -> str:
    """Return a text in exactly so many columns; what is cut is marked by ``…``."""
    length = cell_len(text)
    if length > width:
        end = text[-(width // 2) :] if keep_end else ""
        start = set_cell_size(text, max(0, width - 1 - cell_len(end))).rstrip()
        return set_cell_size(f"{start}…{end}", width)
    return " " * (width - length) + text if right else text + " " * (width - length)
