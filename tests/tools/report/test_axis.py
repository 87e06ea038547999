"""Which values an axis shows."""

from __future__ import annotations

import math

import pytest

from hpcrun.tools.report.axis import fit

FLAT = [1.0 + step / 100 for step in range(40)]
DECAY = [2 + 9 * math.exp(-step / 5) for step in range(100)]
DECADES = [10 ** (3 - step / 10) for step in range(40)]
RUNS = [[value + run / 100 for value in FLAT] for run in range(39)]

# Lines; the least and greatest value shown, whether the scale is logarithmic, lines beyond.
CASES = {
    "nothing": ([], (0.0, 1.0, False, [])),
    "one value": ([[3.0]], (3.0, 3.0, False, [])),
    "one run": ([FLAT], (1.0, 1.39, False, [])),
    "a line without values": ([FLAT, []], (1.0, 1.39, False, [])),
    "one of forty runs diverged": (
        [*RUNS, [1e6 * value for value in FLAT]],
        (1.0, 1.77, False, [39]),
    ),
    "half of its points did": (
        [*RUNS, [*FLAT[:20], *(1e6 * value for value in FLAT)]],
        (1.0, 1.77, False, [39]),
    ),
    "downwards": ([*RUNS, [-1e6, *FLAT]], (1.0, 1.77, False, [39])),
    "one of three": ([RUNS[0], RUNS[1], [1e6] * 9], (1.0, 1.4, False, [2])),
    "of two nobody knows which": ([FLAT, [-2e6] * 40], (-2e6, 1.39, False, [])),
    "a spike of a single run": ([[*FLAT, 1e4]], (1.0, 1.39, False, [0])),
    "the fall of a loss is no outlier": ([DECAY], (min(DECAY), 11.0, False, [])),
    "twice the others is none": ([*RUNS, [2 * value for value in FLAT]], (1.0, 2.78, False, [])),
    "decades": ([DECADES], (DECADES[-1], 1e3, True, [])),
    "decades, and one of many far beyond": (
        [*([DECADES] * 20), [1e300] * 40],
        (DECADES[-1], 1e3, True, [20]),
    ),
    "zero has no logarithm": ([[0.0, *DECADES]], (0.0, 1e3, False, [])),
    "points of a scatter": (
        [[1.0 + p / 40] for p in range(39)] + [[5e3]],
        (1.0, 1.95, False, [39]),
    ),
    "all the same but one": ([[1.0]] * 20 + [[2.0]], (1.0, 2.0, False, [])),
    "no further than a number goes": ([[-1e299], [1e299]], (-1e299, 1e299, False, [])),
}


@pytest.mark.parametrize("case", CASES)
def test_fit(case: str) -> None:
    lines, (low, high, log, beyond) = CASES[case]
    found = fit(lines)
    assert (found.low, found.high) == pytest.approx((low, high))
    assert found.log is log
    assert [place for place, is_beyond in enumerate(found.beyond) if is_beyond] == beyond


def test_a_share_of_the_axis() -> None:
    linear, logarithmic = fit([FLAT]), fit([DECADES])
    assert linear.share(1.0) == 0
    assert linear.share(1.39) == pytest.approx(1)
    assert linear.share(1.78) == pytest.approx(2)
    assert logarithmic.share(math.sqrt(DECADES[0] * DECADES[-1])) == pytest.approx(0.5)
