"""Tables on a terminal and in a pipe."""

from __future__ import annotations

import io

import pytest

from hpcrun.observe.tables import Table, number


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def table() -> Table:
    table = Table(["RUN", "NOTE", "STATE", "NONE"], styled=frozenset({"STATE"}))
    table.add("study/1", "x" * 120, "failed", "")
    table.add("study/2", "two\nlines [bold]not markup[/]", "completed", "")
    return table


def test_a_pipe_gets_everything_in_aligned_columns(table: Table) -> None:
    stream = io.StringIO()
    table.print(color=True, stream=stream)
    header, first, second = stream.getvalue().splitlines()
    assert header.index("STATE") == first.index("failed") == second.index("completed")
    assert "x" * 120 in first
    assert "two lines [bold]not markup[/]" in second
    assert first.split()[-1] == "-"
    assert "\x1b" not in stream.getvalue()


def test_a_terminal_gets_what_fits(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    table.print(color=True, stream=stream)
    text = stream.getvalue()
    assert "\x1b[31mfailed" in text
    assert "[bold]not markup[/]" in text
    assert "NONE" not in text


def test_a_terminal_that_is_too_narrow_loses_nothing(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    stream = Terminal()
    table.print(color=True, stream=stream)
    assert stream.getvalue() == table.plain()


def test_no_color(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    table.print(color=False, stream=stream)
    assert "\x1b[31m" not in stream.getvalue()


def test_an_empty_table_has_its_header() -> None:
    assert Table(["A", "B"]).plain() == "A  B\n"


@pytest.mark.parametrize(
    ("value", "text"), [(None, ""), (0.1, "0.1"), (1 / 3, "0.333333"), (float("nan"), "nan")]
)
def test_number(value: float | None, text: str) -> None:
    assert number(value) == text
