"""The streams of a command: text is made visible, whoever writes it."""

from __future__ import annotations

import io
import sys

import pytest

from hpcrun import terminal


def test_all_text_is_made_visible_and_colours_go_around(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = io.BytesIO()
    stream = io.TextIOWrapper(taken, encoding="utf-8", line_buffering=True)
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with terminal.guarded(), terminal.guarded():
        print("a\x1b[31mb\udcff\tc")
        print("red", file=terminal.styled(sys.stdout), end="\x1b[0m\n", flush=True)
        print("after")
    assert sys.stdout is stream
    assert taken.getvalue() == b"a\\x1b[31mb\\xff\tc\nred\x1b[0m\nafter\n"
