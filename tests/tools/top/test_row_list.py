"""Which columns a terminal has room for."""

from __future__ import annotations

from hpcrun.observe.tables import Table
from hpcrun.tools.top.row_list import _cell, fit

TABLE = Table(
    ("RUN", "STATE", "CAUSE", "TREND", "EMPTY", "JOB"),
    [("study/0", "running", "out_of_memory", "", "", "100_0"), ("study/11", "pending", *4 * [""])],
)


def _shown(
    width: int, drop: tuple[str, ...] = (), fixed: dict[str, int] | None = None, **most: int
) -> dict[str, int]:
    columns = fit(TABLE, width, drop, fixed=fixed or {}, most=most)
    assert sum(one.width + one.gap for one in columns) - columns[-1].gap <= width
    return {TABLE.headers[one.place]: one.width for one in columns}


def test_empty_columns_are_left_out() -> None:
    assert _shown(80) == {"RUN": 8, "STATE": 7, "CAUSE": 13, "JOB": 5}


def test_what_is_filled_in_later_has_its_width() -> None:
    assert _shown(80, fixed={"TREND": 16})["TREND"] == 16


def test_a_narrow_terminal_goes_without_some_columns() -> None:
    assert list(_shown(40, ("JOB", "CAUSE"))) == ["RUN", "STATE", "CAUSE", "JOB"]
    assert list(_shown(30, ("JOB", "CAUSE"))) == ["RUN", "STATE", "CAUSE"]
    assert list(_shown(20, ("JOB", "CAUSE"))) == ["RUN", "STATE"]
    assert list(_shown(20)) == ["RUN", "STATE"]
    assert list(_shown(3)) == ["RUN"]


def test_a_column_may_have_a_greatest_width() -> None:
    assert _shown(80, CAUSE=9)["CAUSE"] == 9


def test_a_table_without_rows_shows_its_headers() -> None:
    columns = fit(Table(("JOB", "WHY")), 80, (), fixed={}, most={})
    assert [one.place for one in columns] == [0, 1]


def test_a_cell_has_exactly_its_width() -> None:
    assert _cell("ab", 4) == "ab  "
    assert _cell("ab", 4, right=True) == "  ab"
    assert _cell("out_of_memory", 9) == "out_of_m…"
    # The number of a run stays to be seen.
    assert _cell("a-very-long-name/17", 10, keep_end=True) == "a-ve…me/17"
    # Two columns each.
    assert _cell("実験室", 5) == "実験…"
    assert _cell("実験", 6) == "実験  "
