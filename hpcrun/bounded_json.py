"""JSON that others wrote: bounded in its levels, its digits and the memory that its values take.

Python's own parser raises RecursionError at a thousand levels, and takes twenty times the memory of
a text that is all brackets. Whoever reads what was parsed may recurse into it, and convert each of
its whole numbers to a float.
"""

from __future__ import annotations

import json
import re
from itertools import accumulate
from typing import Any

from hpcrun.text import size

# Deeper than anything that is written, and far from the depth that Python's recursion bears.
MOST_LEVELS = 150
# Whole numbers with more digits are larger than every float.
MOST_DIGITS = 300
# Bytes of memory, estimated from above.
MOST_MEMORY = 450_000_000


def parse(data: bytes) -> Any:
    """Return the value of a JSON text; raise ValueError if it is none, or beyond the bounds."""
    check(data)
    try:
        return json.loads(data.decode("utf-8-sig"))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def parse_line(line: bytes) -> dict[str, Any] | bytes:
    """Return the JSON object that a line is; any other line as it is."""
    try:
        if len(line) > _HARMLESS:
            check(line)
        text = line.decode().strip()
        record, end = _scan(text, 0)
    except (ValueError, RecursionError, StopIteration):
        return line
    return record if type(record) is dict and end == len(text) else line


def check(data: bytes) -> None:
    """Raise ValueError if JSON is nested too deeply, has too long a number, or takes much memory.

    Works at the speed of memory: strings are told from the rest only if it seems to be so.
    """
    if len(data) * _MOST_OF_A_BYTE > MOST_MEMORY and _memory(data) > MOST_MEMORY:
        raise ValueError(f"so many values that they would take more than {size(MOST_MEMORY)}")
    if _has_long_number(data) or _is_deep(data):
        # Without the strings, first their escapes: no backtracking whatever they hold.
        data = _STRING.sub(b"", data.replace(b"\\\\", b"").replace(b'\\"', b""))
        if _has_long_number(data):
            raise ValueError(f"a number of more than {MOST_DIGITS} digits")
        if _is_deep(data):
            raise ValueError(f"nested more than {MOST_LEVELS} levels deep")


def _memory(data: bytes) -> int:
    """Return an estimate of the bytes that JSON takes while it is parsed, which is not too low.

    That is the data, the text that it is decoded to, and its values; a single character can make
    each one of a text take four bytes.
    """
    text = 1 if data.isascii() else 4 if _WIDE(data) else 2
    strings = 4 if b"\\u" in data else text
    values = sum(data.count(mark) * cost for mark, cost in _COSTS.items())
    return len(data) * (1 + text + strings) + values


def _has_long_number(data: bytes) -> bool:
    # Three places in a row are in so many digits.
    return bool(_DIGITS(data[:: MOST_DIGITS // 3])) and _LONG_NUMBER in data.translate(_AS_ZEROS)


def _is_deep(data: bytes) -> bool:
    if data.count(b"[") + data.count(b"{") <= MOST_LEVELS:
        return False
    brackets = data.translate(None, _NOT_BRACKETS)
    if len(brackets) > _MOST_BRACKETS:
        return True
    # Most texts are no deeper than this.
    for _ in range(_FEW_LEVELS):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > MOST_LEVELS - _FEW_LEVELS


# A shorter text cannot be beyond the bounds.
_HARMLESS = 2 * MOST_LEVELS
_LONG_NUMBER = b"0" * (MOST_DIGITS + 1)
_STRING = re.compile(rb'"[^"]*"?')
_FEW_LEVELS = 10
_STEPS = [1 if byte in b"[{" else -1 for byte in range(256)]
_DIGITS = re.compile(rb"[0-9]{3}").search
_AS_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_MOST_BRACKETS = 6_000_000
# As measured with Python 3.11: a list, a mapping, one of its fields, and another value.
_COSTS = {b"[": 95, b"{": 80, b":": 110, b",": 65}
_MOST_OF_A_BYTE = max(_COSTS.values()) + 9
_WIDE = re.compile(rb"[\xf0-\xff]").search
_scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
