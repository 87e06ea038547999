"""Small text for people: counts, ranges, short lists, durations, and no control characters."""

from __future__ import annotations

import itertools
import math
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

# Takes one line for a person.
Say = Callable[[str], None]

# All that acts on a terminal in place of being shown: control characters (C0, DEL, C1) but tab and
# the ends of lines, line and paragraph separators, controls of the direction of writing, the byte
# order mark, and the surrogates that stand for bytes of no encoding in the names of files.
_ACTING = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff"
    r"\ud800-\udfff]|\r(?!\n)"
)


def visible(text: str) -> str:
    """Replace all that acts on a terminal by what it is in Python: ``\\x1b``, ``\\u202e``.

    Lines and tabs stay. Whatever was read from a file, from Slurm or from another user passes
    through here before it is printed; colours of our own are added afterwards.
    """
    if text.replace("\n", "").isprintable():
        return text
    return _ACTING.sub(_escaped, text)


def one_line(text: str) -> str:
    """Return `visible` text in one line, as for a cell of a table or a name in a message."""
    return text if text.isprintable() else visible(" ".join(text.split()))


def entry(message: str) -> str:
    """Return a `visible` message whose further lines are indented, as for a log.

    No part of it then passes for a line of its own.
    """
    return visible(message.rstrip("\n")).replace("\n", "\n    ")


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    if 0xDC80 <= code < 0xDD00:
        code -= 0xDC00  # the byte itself, of a name that is not UTF-8
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def json_line(value: Any) -> str:
    """Return strict JSON in ASCII and in one line: what is not finite is null."""
    import json

    return json.dumps(json.loads("".join(json_pieces(value))))


def json_pieces(value: Any) -> Iterator[str]:
    """Yield the same indented, in pieces: those of many runs are no text of their own at once."""
    writer = _JsonWriter()
    pieces, length = [], 0
    for piece in writer.pieces(value, "\n", 2):
        pieces.append(piece)
        length += len(piece)
        if length > _LONG:
            yield "".join(pieces)
            pieces, length = [], 0
    yield "".join(pieces)


# Characters of a piece of JSON.
_LONG = 1_000_000


class _JsonWriter:
    """Indented JSON; the text of a mapping or list that comes again, the same object, is kept."""

    def __init__(self) -> None:
        from json.encoder import encode_basestring_ascii

        self._quoted = encode_basestring_ascii
        self._texts: dict[tuple[int, str], str | None] = {}

    def pieces(self, value: Any, margin: str, depth: int) -> Iterator[str]:
        """Yield the text of a value in pieces: containers so deep are divided."""
        if not depth or not isinstance(value, (dict, list, tuple)) or not value:
            yield self.text(value, margin)
            return
        inner = margin + "  "
        first, last = "{}" if isinstance(value, dict) else "[]"
        for start, item in self._items(value):
            yield first + inner + start
            yield from self.pieces(item, inner, depth - 1)
            first = ","
        yield margin + last

    def text(self, value: Any, margin: str) -> str:
        """Return the text of a value whose further lines begin with ``margin``."""
        if isinstance(value, str):
            return self._quoted(value)
        if not isinstance(value, (dict, list, tuple)):
            return self._scalar(value)
        place = id(value), margin
        if (known := self._texts.get(place)) is not None:
            return known
        inner = margin + "  "
        first, last = "{}" if isinstance(value, dict) else "[]"
        items = [start + self.text(item, inner) for start, item in self._items(value)]
        text = first + (inner + f",{inner}".join(items) + margin if items else "") + last
        # The first time it may be the only one.
        self._texts[place] = text if place in self._texts else None
        return text

    def _items(self, value: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(value, dict):
            names = (one if isinstance(one, str) else self._key(one) for one in value)
            return zip((f"{self._quoted(name)}: " for name in names), value.values(), strict=True)
        return zip(itertools.repeat(""), value)

    def _key(self, key: Any) -> str:
        return str(key) if isinstance(key, float) else self._scalar(key)

    def _scalar(self, value: Any) -> str:
        if value is None or (isinstance(value, float) and not math.isfinite(value)):
            return "null"
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, (int, float)):
            return (int if isinstance(value, int) else float).__repr__(value)
        return self._quoted(str(value))


def plural(number: int, noun: str, form: str = "") -> str:
    """``1 run``, ``3 runs``; ``form`` formats the number, as ``,`` for ``2,000 steps``."""
    return f"{number:{form}} {noun}" + ("" if number == 1 else "s")


def agreeing(number: int, one: str, several: str) -> str:
    """Return the form of a verb or a pronoun for so many: ``is`` for 1, ``are`` for 0 and 3."""
    return one if number == 1 else several


def ranges(numbers: Iterable[int]) -> list[str]:
    """``["0-3", "7"]`` for 0, 1, 2, 3 and 7, in whatever order."""
    found: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return [f"{low}-{high}" if high > low else str(low) for low, high in found]


def range_text(numbers: Iterable[int]) -> str:
    """``0-3, 7``; ``none`` for no numbers."""
    return ", ".join(ranges(numbers)) or "none"


def runs_text(numbers: Collection[int], most: int = 8) -> str:
    """``run 3``, ``runs 0-3,7``; of many ranges the first ones and the number of runs."""
    shown = listed(ranges(numbers), most, ",", f",… ({len(numbers)} runs)")
    return f"{'run' if len(numbers) == 1 else 'runs'} {shown}"


def listed(
    names: Sequence[str], most: int, separator: str = ", ", rest: str = " and {} more"
) -> str:
    """Join the first ``most`` names; ``rest`` then counts those left out."""
    left = len(names) - most
    return separator.join(names[:most]) + (rest.format(left) if left > 0 else "")


def shortened(text: str, most: int = 2_000) -> str:
    """Return a text without its middle where it has more than ``most`` characters."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}… ({len(text) - 2 * half:,} characters more) …{text[-half:]}"


def brief(text: str, most: int = 240) -> str:
    """Return a text as a row or a line holds it: `one_line`, without its middle if it is long."""
    return shortened(one_line(text), most)


def whole_number(text: str) -> int | None:
    """Return the number of up to 18 ASCII digits; None for other text, such as ``²`` or ``-1``."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


def age(seconds: float) -> str:
    """``42 s``, ``17 min``, ``5 h``, ``12 d``."""
    for limit, unit, size in ((120, "s", 1), (7200, "min", 60), (172800, "h", 3600)):
        if seconds < limit:
            return f"{max(0, seconds) / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def parse_age(text: str) -> float | None:
    """Return the seconds of ``90s``, ``10m``, ``2h``, ``1.5d`` or ``2w``; None for other text."""
    found = _AGE.fullmatch(text.strip())
    return float(found[1]) * _UNITS[found[2]] if found else None


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_AGE = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhdw])")


def time_spent(seconds: float) -> str:
    """As `age`, but in hours from two hours on: ``5.2 h``."""
    return age(seconds) if seconds < 7200 else f"{seconds / 3600:,.1f} h"


def duration(seconds: float) -> str:
    """``45 s``, ``12 min``, ``3 h 07 min``, ``2 d 03 h``."""
    if seconds < 59.5:
        return f"{max(0.0, seconds):.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minute = divmod(minutes, 60)
    return f"{hours} h {minute:02} min" if hours < 24 else f"{hours // 24} d {hours % 24:02} h"


def timestamp(moment: float) -> str:
    """``2026-01-31 12:00:00``, in local time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))


def hours_text(value: float) -> str:
    """``1,234.50``; three significant digits below a hundredth."""
    return f"{value:,.2f}" if value >= 0.01 or value == 0 else f"{value:.3g}"


def size(count: int) -> str:
    """``512 B``, ``4.2 kB``, ``1.3 GB``: three digits at most."""
    value, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 999.5 or unit == "TB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" or value >= 99.5 else f"{value:.1f} {unit}"


def signal_name(number: int) -> str:
    """``SIGKILL`` of 9; ``signal 41`` of one without a name."""
    import signal  # not for `hpcrun --help`

    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def short_ends(keys: Iterable[str]) -> dict[str, str]:
    """Return each dotted key with its last part, or as many parts as tell it from the others."""
    known = list(keys)
    found = {}
    for key in known:
        parts = key.split(".")
        ends = (".".join(parts[-count:]) for count in range(1, len(parts)))
        others = [f".{other}" for other in known if other != key]
        alone = (end for end in ends if not any(each.endswith(f".{end}") for each in others))
        found[key] = next(alone, key)
    return found
