"""Lines of ``logs -f`` over several connections, at every place where one may be cut."""

from __future__ import annotations

import json

import pytest

from hpcrun.observe.logs.log_places import MARK
from hpcrun.tools.remote.followed_lines import FollowedLines


def _sent(lines: list[str], begin: int, every: int) -> bytes:
    """What a connection prints of numbered lines: from a place on, with a mark every few lines."""
    parts = []
    for number, line in enumerate(lines[begin:], begin + 1):
        parts.append(line.encode() + b"\n")
        if number % every == 0:
            parts.append(MARK + json.dumps({"log": number}).encode() + b"\n")
    return b"".join(parts)


@pytest.mark.parametrize("every", [1, 3, 100])
def test_each_line_comes_once_wherever_the_connection_is_cut(every: int) -> None:
    lines = [f"line {number % 5}" for number in range(12)]
    whole = "".join(f"{line}\n" for line in lines).encode()
    first = _sent(lines, 0, every)
    for cut in range(len(first) + 1):
        followed = FollowedLines()
        followed.begin()
        shown = followed.feed(first[:cut])
        begin = json.loads(followed.known()).get("log", 0)
        followed.begin()
        rest = _sent(lines, begin, every)
        shown += b"".join(followed.feed(rest[at : at + 7]) for at in range(0, len(rest), 7))
        assert shown == whole


def test_a_mark_that_is_none_changes_nothing() -> None:
    followed = FollowedLines()
    followed.begin()
    none = b"".join(MARK + one + b"\n" for one in (b"{", b"[1]", b'{"a": "b"}'))
    assert followed.feed(none + b"line\n") == b"line\n"
    assert json.loads(followed.known()) == {}


def test_a_line_without_an_end_does_not_grow_for_ever() -> None:
    followed = FollowedLines()
    followed.begin()
    shown = b"".join(followed.feed(b"x" * (1 << 20)) for _ in range(8))
    assert len(shown) >= 1 << 22
