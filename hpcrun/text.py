"""Numbers of runs in words."""

from __future__ import annotations

from collections.abc import Collection, Iterable


def count(number: int, what: str) -> str:
    """``1 run``, ``3 runs``."""
    return f"{number} {what}" + ("" if number == 1 else "s")


def ranges(numbers: Iterable[int]) -> list[str]:
    """``["0-3", "7"]`` for 0, 1, 2, 3 and 7, in whatever order."""
    found: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return [f"{low}-{high}" if high > low else str(low) for low, high in found]


def numbers(found: Iterable[int]) -> str:
    """``0-3, 7``; ``none`` for nothing."""
    return ", ".join(ranges(found)) or "none"


def runs(numbers: Collection[int], most: int = 8) -> str:
    """``run 3``, ``runs 0-3,7``; of many ranges the first ones and how many runs there are."""
    parts = ranges(numbers)
    more = f",… ({len(numbers)} runs)" if len(parts) > most else ""
    return f"{'run' if len(numbers) == 1 else 'runs'} {','.join(parts[:most])}{more}"
