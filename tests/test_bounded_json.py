"""JSON in bounds: what nobody writes is refused, whatever it looks like to a quick look."""

from __future__ import annotations

import json

import pytest

from hpcrun import bounded_json

NESTED = b"[" * 151 + b"]" * 151


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"\xff{}", b'{"a":\x00}', b"{" * 100_000, b"[" * 100_000, b'{"a":' * 100_000),
        *(NESTED, b'["\\"' + b'"]["' * 1000, b"1" * 301, b'{"a":[' + b"9" * 100_000 + b"]}"),
        b"[" + b"[]," * 3_000_001 + b"0]",
    ],
)
def test_json_that_nobody_writes_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        bounded_json.parse(data)
    assert bounded_json.parse_line(data) == data


@pytest.mark.parametrize(
    "value",
    [
        *([[]] * 1000, {"a": "[" * 1000, "b": '\\"' + "{" * 1000 + "\\"}, {"a": "7" * 1000}),
        {"a": [["\\" * 3 + '"[' * 200] * 50, int("7" * 300)]},
    ],
)
def test_what_only_looks_nested_or_long_is_read(value: object) -> None:
    assert bounded_json.parse(json.dumps(value).encode()) == value
    line = {"value": value}
    assert bounded_json.parse_line(json.dumps(line).encode()) == line
