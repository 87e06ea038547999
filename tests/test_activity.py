"""What a command says while it is busy."""

from __future__ import annotations

import io
import os
import pty
import time

import pytest

from hpcrun import activity
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "SILENCE", 0.3)
    monkeypatch.delenv(activity.VARIABLE, raising=False)


def test_nothing_is_said_where_nobody_waits() -> None:
    with activity.doing("anything"), activity.printing():
        assert activity.current() is None


def test_nobody_may_want_to_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(activity.VARIABLE, "0")
    stream = io.StringIO()
    with activity.tell_on(stream), activity.doing("the whole"):
        time.sleep(0.8)
    assert stream.getvalue() == ""


def test_what_is_done_quickly_is_not_told() -> None:
    stream = io.StringIO()
    with activity.tell_on(stream):
        for _ in range(50):
            with activity.doing("something short"):
                pass
    assert stream.getvalue() == ""


def test_lines_tell_the_innermost_and_go_on() -> None:
    stream, step = io.StringIO(), 0
    with activity.tell_on(stream), activity.doing("the whole"):
        until(lambda: "the whole (0 s)\n" in stream.getvalue(), timeout=20)
        with activity.doing(lambda: f"step {step}\x1b[2J"):
            until(lambda: "step 0" in stream.getvalue(), timeout=20)
            step = 1
            until(lambda: "step 1" in stream.getvalue(), timeout=20)
        before = stream.getvalue().count("the whole")
        until(lambda: stream.getvalue().count("the whole") > before, timeout=20)
    said = stream.getvalue()
    assert said.endswith(" s)\n")
    assert "\x1b" not in said
    time.sleep(0.5)
    assert stream.getvalue() == said


def test_a_line_that_differs_in_numbers_alone_comes_ever_more_seldom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(activity, "SILENCE", 0.05)
    stream, state, looks = io.StringIO(), "pending", 0

    def told() -> str:
        nonlocal looks
        looks += 1
        return f"e/0 {state}, step {looks} of 1,000"

    with activity.tell_on(stream), activity.doing(told):
        until(lambda: looks > 40, timeout=20)
        assert 2 <= stream.getvalue().count("pending") <= 10
        state = "running"
        until(lambda: "running" in stream.getvalue(), timeout=20)


def test_output_puts_the_next_line_off() -> None:
    stream = io.StringIO()
    with activity.tell_on(stream), activity.doing("the rest"):
        began = time.monotonic()
        while time.monotonic() < began + 1:
            with activity.printing():
                stream.write(".")
            time.sleep(0.02)
        # A thread may be held up for as long on a busy machine.
        assert stream.getvalue().count("the rest") <= 1


def test_silent_short_steps_are_told_as_one_long_one() -> None:
    stream = io.StringIO()
    with activity.tell_on(stream):
        deadline = time.monotonic() + 20
        while "a step" not in stream.getvalue():
            assert time.monotonic() < deadline
            with activity.doing("a step"):
                time.sleep(0.2)


def test_a_failure_in_what_is_told_ends_nothing() -> None:
    stream = io.StringIO()

    def broken() -> str:
        raise OSError("gone")

    with activity.tell_on(stream), activity.doing("the whole"):
        with activity.doing(broken):
            time.sleep(0.5)
        until(lambda: "the whole" in stream.getvalue(), timeout=20)


def test_on_a_terminal_one_line_is_drawn_anew_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(activity, "_REDRAWN", 0.1)
    reader, writer = pty.openpty()
    text = b""
    with os.fdopen(writer, "w") as stream:
        with activity.tell_on(stream), activity.doing("the whole"):
            while text.count(b"the whole") < 3:
                text += os.read(reader, 1000)
            reporter = activity.current()
            assert reporter is not None
            reporter.say("a message\nof two lines")
        while b"of two lines" not in text:
            text += os.read(reader, 1000)
    os.close(reader)
    assert b"\r\x1b[Ka message\r\n    of two lines\r\n" in text
    assert b"the whole (0 s)\n" not in text


def test_a_dumb_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    reader, writer = pty.openpty()
    stream = os.fdopen(writer, "w")
    with stream, activity.tell_on(stream), activity.doing("the whole"):
        text = os.read(reader, 1000)
    os.close(reader)
    assert text.startswith(b"the whole (0 s)")


def test_items_are_counted_as_they_are_done() -> None:
    stream, done = io.StringIO(), []
    with activity.tell_on(stream):
        for item in activity.count(["a", "b"], "reading runs"):
            until(lambda: f"reading runs: {len(done)} of 2 (" in stream.getvalue(), timeout=20)
            done.append(item)
    assert done == ["a", "b"]
