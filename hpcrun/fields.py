"""Fields of records that others wrote: their types, checked where the records are read.

A record is valid if each field that it has is of its kind. Null stands for a missing field, and
fields that nobody knows may hold anything, so that records of other versions can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any


class Kind:
    """The condition on a field, a quick test that most values pass, and the words for both.

    No named tuple: thousands of records are checked, and its fields are slow to take.

    Attributes
    ----------
    words
        A noun for the values.
    accepts
        The whole condition.
    usual
        The type that most values have; between ``low`` and ``high`` they pass.
    fields
        The fields of a mapping.
    """

    __slots__ = ("accepts", "fields", "high", "low", "usual", "words")

    def __init__(
        self,
        words: str,
        accepts: Callable[[Any], bool],
        usual: type | None = None,
        low: Any = None,
        high: Any = None,
        fields: Mapping[str, Kind] | None = None,
    ) -> None:
        self.words, self.accepts, self.usual = words, accepts, usual
        self.low, self.high, self.fields = low, high, fields


Kinds = Mapping[str, Kind]

# Beyond these numbers are neither times, nor steps, nor sizes; sums of them stay exact.
MOST = 2.0**53
# Process ids, runs, attempts: what becomes the name of a file or the index of a list.
_MOST_INDEX = 10**9
# Seconds since the epoch, in the last year that has four digits.
LAST_TIME = 253_370_000_000.0


def _is(kind: type) -> Callable[[Any], bool]:
    return lambda value: type(value) is kind


def _between(words: str, low: float, high: float, *types: type) -> Kind:
    """Return the kind of numbers of these types; the first is that of most."""
    return Kind(words, lambda one: type(one) in types and low <= one <= high, types[0], low, high)


def _is_name(value: Any) -> bool:
    # 255 bytes are what a file can be called.
    is_short = type(value) is str and 0 < len(value) < 256
    return is_short and not {"/", "\0"} & {*value} and value not in (".", "..")


_ONLY_TEXT, _NUMBERS = frozenset({str}), frozenset({int, float})

TEXT = Kind("text", _is(str), str)
FLAG = Kind("true or false", _is(bool), bool)
WHOLE = _between("a whole number", 1 - int(MOST), int(MOST) - 1, int)
INDEX = _between("a whole number from 0", 0, _MOST_INDEX, int)
# Of bytes and other things of which there may be more than files in a directory.
COUNT = _between("a whole number from 0", 0, int(MOST) - 1, int)
NUMBER = _between("a number", -MOST, MOST, float, int)
# Seconds since the epoch.
TIME = _between("a time", 0, LAST_TIME, float, int)
# Of a file or directory: no path, and not a directory above.
NAME = Kind("a name", _is_name)
PATH = Kind("a path", lambda value: type(value) is str and "\0" not in value)
TEXTS = Kind(
    "a list of texts",
    lambda value: type(value) is list and _ONLY_TEXT.issuperset(map(type, value)),
)
INDICES = Kind(
    "a list of whole numbers from 0",
    lambda value: type(value) is list and all(map(INDEX.accepts, value)),
)
LIST = Kind("a list", _is(list), list)
MAPPING = Kind("a mapping", _is(dict), dict)
# A metric that is infinite or no number was logged so.
METRICS = Kind(
    "a mapping of numbers",
    lambda value: type(value) is dict and _NUMBERS.issuperset(map(type, value.values())),
)


def mapping(fields: Kinds) -> Kind:
    """Return the kind of a mapping that has fields of these kinds."""
    return Kind("a mapping", _is(dict), fields=fields)


def wrong(record: Mapping[str, Any], kinds: Kinds, needed: Collection[str] = ()) -> str | None:
    """Return what is wrong with a record, in words; None if nothing is.

    ``needed`` are the fields that it may not be without.
    """
    for name, value in record.items():
        if name in kinds:
            kind = kinds[name]
            if type(value) is kind.usual and (kind.low is None or kind.low <= value <= kind.high):
                continue
            if value is None:
                continue
            if not kind.accepts(value):
                return f"{name} is {brief(value)}, not {kind.words}"
            if kind.fields is not None and (inner := wrong(value, kind.fields)):
                return f"{name}.{inner}"
    for name in needed:
        if record.get(name) is None:
            return f"{name} is missing"
    return None


def brief(value: Any) -> str:
    """Return a value of any size in few characters."""
    import reprlib  # only where something is wrong

    return reprlib.repr(value)
