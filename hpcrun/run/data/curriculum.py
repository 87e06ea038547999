"""Curricula: numbers that grow with the step, and follow from it alone."""

from __future__ import annotations

from hpcrun.errors import UsageError


class Ramp:
    """A whole number that grows linearly from ``first`` at step 1 to ``last`` at step ``steps``.

    Before ``last`` it is rounded down to a multiple of ``multiple``, and never below ``first``.
    """

    def __init__(self, first: int, last: int, steps: int, multiple: int = 1) -> None:
        if not (1 <= first <= last and steps >= 1 and multiple >= 1):
            raise UsageError(
                f"Ramp(first={first}, last={last}, steps={steps}, multiple={multiple}): first is "
                "at least 1 and at most last, and the others are at least 1"
            )
        self._first, self._last, self._steps, self._multiple = first, last, steps, multiple

    def __call__(self, step: int) -> int:
        """Return the number for a step, from 1."""
        if step >= self._steps:
            return self._last
        grown = self._first + (self._last - self._first) * (step - 1) // max(1, self._steps - 1)
        return max(self._first, grown // self._multiple * self._multiple)
