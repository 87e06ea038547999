"""The lines of ``logs -f`` across connections: none is lost, and none comes twice."""

from __future__ import annotations

import json
from collections import Counter

from hpcrun.bounded_json import parse_line
from hpcrun.observe.logs.log_places import MARK

# A line without an end is passed on from here on.
_LONGEST = 1 << 22
_MOST_FILES = 1 << 20


class FollowedLines:
    """Knows how far the logs are shown, by the marks of `hpcrun.observe.logs.log_places`.

    Lines behind the last mark come again on the next connection, and are left out once each.
    """

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self._since: Counter[bytes] = Counter()
        self._again: Counter[bytes] = Counter()
        self._line = b""

    def known(self) -> bytes:
        """Return the places as the other end reads them."""
        return json.dumps(self._places).encode()

    def begin(self) -> None:
        """Begin with another connection."""
        self._again, self._since, self._line = self._since, Counter(), b""

    def feed(self, data: bytes) -> bytes:
        """Return the lines that the next bytes complete, as far as they are not shown."""
        *lines, self._line = (self._line + data).split(b"\n")
        if len(self._line) > _LONGEST:
            lines.append(self._line)
            self._line = b""
        return b"".join(line + b"\n" for line in lines if self._is_shown(line))

    def _is_shown(self, line: bytes) -> bool:
        if line.startswith(MARK):
            self._mark(line.removeprefix(MARK))
            return False
        self._since[line] += 1
        if self._again[line] > 0:
            self._again[line] -= 1
            return False
        return True

    def _mark(self, told: bytes) -> None:
        moved = parse_line(told)
        if isinstance(moved, dict) and len(self._places) < _MOST_FILES:
            self._places.update((k, v) for k, v in moved.items() if isinstance(v, int))
            self._since.clear()
            self._again.clear()
