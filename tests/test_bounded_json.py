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


DEEP = b'{"a":' * 149 + b"1" + b"}" * 149 + b","


@pytest.mark.parametrize(
    "data",
    [
        pytest.param('{"a":"\U0001f600'.encode() + b"x" * (60 << 20) + b'"}', id="wide text"),
        pytest.param(b"[" + DEEP * 20_000 + b"1]", id="mappings of one field"),
        pytest.param(b'{"0":0' + b',"7654321":1' * 2_600_000 + b"}", id="one large mapping"),
    ],
)
def test_what_would_take_more_memory_than_there_may_be_is_not_parsed(data: bytes) -> None:
    with pytest.raises(ValueError, match="would take more than 450 MB"):
        bounded_json.check(data)


def test_the_plan_of_a_hundred_thousand_runs_with_four_swept_keys_is_read() -> None:
    keys = [f"config.key{key}" for key in range(4)]
    run = [
        *(99_999, "0" * 32, ",".join(f"{key[7:]}=99999" for key in keys)),
        *(dict.fromkeys(keys, 99_999), 0, [[["spec", *key.split(".")], 99_999] for key in keys]),
    ]
    bounded_json.check(b"[" + b",".join([json.dumps(run).encode()] * 100_000) + b"]")
