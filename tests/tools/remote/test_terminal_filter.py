"""What passes to a terminal of what a login node sends."""

from __future__ import annotations

import pytest

from hpcrun.tools.remote.terminal_filter import RESTORED, TerminalFilter

HARMFUL = [
    "\x1b]52;c;ZXZpbA==\x07",
    "\x1b]0;title\x1b\\",
    "\x1b]8;;file:///etc/passwd\x1b\\",
    "\x1b[6n",
    "\x1b[c",
    "\x1b[>0c",
    "\x1b[21t",
    "\x1b[5i",
    "\x1bc",
    "\x1b[!p",
    "\x1bPq#0\x1b\\",
    "\x1b_Gi=1\x1b\\",
    "\x1b^pm\x1b\\",
    "\x1b(0",
    "\x9b6n",
    "\x1b[?1h;\x1b[?47;9999h",
    "\x1b[?2026$p",
    "\x1b[?u",
    "\x1b[20h",
    "\x1b[12l",
]
SCREEN = [
    "\x1b[?1049h",
    "\x1b[2J",
    "\x1b[10;20H",
    "\x1b[?25l",
    "\x1b[?1000;1006h",
    "\x1b[K",
    "\x1b7\x1b8",
    "\x1b[>1u",
]


@pytest.mark.parametrize("screens", [True, False])
@pytest.mark.parametrize("harm", HARMFUL)
def test_what_acts_on_a_terminal_is_left_out_however_it_is_cut(harm: str, screens: bool) -> None:
    data = f"before {harm}after".encode()
    for cut in range(len(data)):
        kept = TerminalFilter(screens=screens)
        shown = kept.feed(data[:cut]) + kept.feed(data[cut:]) + kept.end()
        plain = shown.replace(b"\x1b[?1h;", b"").replace(RESTORED, b"")
        assert b"\x1b" not in plain
        assert "\x9b" not in plain.decode()
        assert plain.startswith(b"before ")
        assert plain.endswith(b"after")


@pytest.mark.parametrize("sequence", SCREEN)
def test_screens_are_drawn_and_nothing_else_draws(sequence: str) -> None:
    assert TerminalFilter(screens=True).feed(sequence.encode()) == sequence.encode()
    assert b"\x1b" not in TerminalFilter(screens=False).feed(sequence.encode())


@pytest.mark.parametrize("screens", [True, False])
def test_text_and_colours_pass(screens: bool) -> None:
    text = "\x1b[1;31mrot\x1b[0m ünïcode ☃\tx\n".encode()
    kept = TerminalFilter(screens=screens)
    assert b"".join(kept.feed(bytes([one])) for one in text) + kept.end() == text


def test_other_characters_that_act_are_shown() -> None:
    assert TerminalFilter(screens=True).feed("a\u202eb".encode()) == b"a\\u202eb"
    assert TerminalFilter(screens=False).feed(b"a\x00b\x07") == b"a\\x00b\\x07"
    assert TerminalFilter(screens=True).feed(b"a\rb\x08") == b"a\rb\x08"


def test_a_screen_that_ends_in_the_middle_leaves_the_terminal_as_it_was() -> None:
    kept = TerminalFilter(screens=True)
    kept.feed(b"\x1b[?1049h\x1b[?1003h\x1b[?25ltext")
    end = kept.end()
    assert b"\x1b[?1049l" in end
    assert b"\x1b[?25h" in end
    assert b"1003" in end
    assert TerminalFilter(screens=True).end() == b""


def test_a_string_without_an_end_holds_nothing_back_for_ever() -> None:
    kept = TerminalFilter(screens=True)
    shown = kept.feed(b"\x1b]0;" + b"x" * 10_000)
    assert b"x" * 1000 in shown
    assert b"\x1b" not in shown
