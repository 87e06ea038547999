"""Bytes to lines."""

from __future__ import annotations

import io
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrun.observe.logs.tail import LineSplitter, start_of_tail


def split(*chunks: bytes, max_line: int = 1 << 20) -> list[str]:
    splitter = LineSplitter(max_line)
    data = b"".join([splitter.feed(chunk) for chunk in chunks]) + splitter.flush()
    assert data.endswith(b"\n") or not data
    return data.decode().split("\n")[:-1]


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([b"a\nb\n"], ["a", "b"]),
        ([b"a\nb"], ["a", "b"]),
        ([b"a", b"b", b"\nc\n"], ["ab", "c"]),
        ([b"\n\n"], ["", ""]),
        ([], []),
        ([b"a\r\nb\r\n"], ["a", "b"]),
        ([b"a\r", b"\nb"], ["a", "b"]),
        ([b"10%\r20%\r30%\n"], ["30%"]),
        ([b"10%\r", b"20%\r", b"30%\r"], ["30%"]),
        ([b"10%\r20%", b"\r\n"], ["20%"]),
        ([b"\xff\xfe caf\xc3", b"\xa9\n"], ["\ufffd\ufffd café"]),
        (["日本".encode()[:4], "日本".encode()[4:]], ["日本"]),
        ([b"\x1b[31mred\x1b[0m\n"], ["\x1b[31mred\x1b[0m"]),
        ([b"nul\x00\n"], ["nul\x00"]),
    ],
)
def test_lines(chunks: list[bytes], expected: list[str]) -> None:
    assert split(*chunks) == expected


def test_long_lines_come_in_pieces_and_whole() -> None:
    text = "é" * 1000
    pieces = split(text.encode() + b"\nnext\n", max_line=101)
    assert pieces[-1] == "next"
    assert "".join(pieces[:-1]) == text
    assert all(len(piece.encode()) <= 101 for piece in pieces)


def test_memory_is_bounded() -> None:
    splitter = LineSplitter(1 << 16)
    block = b"x" * (1 << 18)
    tracemalloc.start()
    count = sum(len(splitter.feed(block).replace(b"\n", b"")) for _ in range(400))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    count += len(splitter.flush().rstrip(b"\n"))
    assert count == 400 << 18
    assert peak < 4 << 20


@given(st.binary(max_size=300), st.lists(st.integers(1, 20)))
def test_chunking_does_not_matter(data: bytes, sizes: list[int]) -> None:
    chunks = []
    rest = data
    for size in sizes:
        chunks.append(rest[:size])
        rest = rest[size:]
    assert split(*chunks, rest) == split(data)


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=20)))
def test_whole_lines_come_back(lines: list[str]) -> None:
    assert split("".join(f"{line}\n" for line in lines).encode()) == lines


@given(st.binary(max_size=200), st.integers(0, 10))
def test_tail_is_the_last_lines(data: bytes, count: int) -> None:
    data = data.replace(b"\r", b"")
    expected = data.split(b"\n")
    if expected[-1] == b"":
        expected.pop()
    offset = start_of_tail(io.BytesIO(data), count)
    found = data[offset:].split(b"\n")
    if found[-1] == b"":
        found.pop()
    assert found == (expected[-count:] if count else [])


def test_tail_of_many_blocks() -> None:
    data = b"".join(b"%06d %s\n" % (number, b"x" * 100) for number in range(10_000))
    offset = start_of_tail(io.BytesIO(data), 5000)
    assert data[offset:].startswith(b"005000 ")
