"""What the pairs of bench/training.py say: statistics, and text."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import truediv
from typing import Any

# Per cent; the language model's steps take 0.1 s.
SLOWDOWN_TARGETS = {"language_model": 1.0}
OTHERS_TARGET = 2.0
OWN_TARGET = 0.25
RESAMPLES = 10_000


@dataclass(frozen=True)
class Pair:
    """Both sides, once, on the same nodes.

    Attributes
    ----------
    first
        The side that had the first turn.
    load
        The machine's load average before the pair began.
    block
        Steps of a turn.
    hpcrun, bare
        Seconds of each measured step, as rank 0 saw them.
    own_seconds, step_seconds
        The session's own time inside the measured steps, as it counts it in rank 0, and theirs.
    processor
        Per cent more processor time that hpcrun's ranks used in the measured steps, all threads.
    faults
        Pages a step that the kernel gave to rank 0 of each side, in the mean.
    """

    first: str
    load: float
    block: int
    hpcrun: list[float]
    bare: list[float]
    own_seconds: float
    step_seconds: float
    processor: float
    faults: dict[str, float]

    @property
    def slowdown(self) -> float:
        """Per cent by which hpcrun's turn takes longer than the peer's beside it, in the median."""
        ours, peers = self._turns(self.hpcrun), self._turns(self.bare)
        return 100 * (statistics.median(map(truediv, ours, peers)) - 1)

    @property
    def total_slowdown(self) -> float:
        """The same of the sum of all measured steps, which one burst of other work can tilt."""
        return 100 * (sum(self.hpcrun) / sum(self.bare) - 1)

    def _turns(self, steps: list[float]) -> list[float]:
        starts = range(0, len(steps), self.block)
        return [sum(steps[start : start + self.block]) for start in starts]

    @property
    def own(self) -> float:
        """hpcrun's own time inside the steps, in per cent of them."""
        return 100 * self.own_seconds / self.step_seconds


def bootstrap(
    values: Sequence[float], statistic: Callable[[Sequence[float]], float]
) -> tuple[float, float, float]:
    """Percentile bootstrap over pairs: 2.5 %, 95 % and 97.5 % of the resampled statistic.

    The second is the one-sided 95 % upper bound, the others the two-sided 95 % interval.
    """
    generator = random.Random(0)
    resampled = sorted(
        statistic(generator.choices(values, k=len(values))) for _ in range(RESAMPLES)
    )
    low, bound, high = (resampled[int(share * RESAMPLES)] for share in (0.025, 0.95, 0.975))
    return low, bound, high


def summary(pairs: Sequence[Pair], program: str, beside: Mapping[str, float]) -> dict[str, Any]:
    """All results as plain data; ``beside`` has those of a run of its own."""
    target = SLOWDOWN_TARGETS.get(program, OTHERS_TARGET)
    slowdowns = [pair.slowdown for pair in pairs]
    totals = [pair.total_slowdown for pair in pairs]
    low, bound, high = bootstrap(slowdowns, statistics.median)
    sums_bound = bootstrap(totals, statistics.median)[1]
    own = 100 * sum(pair.own_seconds for pair in pairs) / sum(pair.step_seconds for pair in pairs)
    return {
        "slowdown_percent": {
            "median": statistics.median(slowdowns),
            "upper_bound_95": bound,
            "interval_95": [low, high],
            "target": target,
            "met": bound <= target,
            "mean": statistics.fmean(slowdowns),
            "mean_upper_bound_95": bootstrap(slowdowns, statistics.fmean)[1],
            "totals_median": statistics.median(totals),
            "totals_upper_bound_95": sums_bound,
            "totals_met": sums_bound <= target,
        },
        "own_percent": {
            "all": own,
            "largest": max(pair.own for pair in pairs),
            "target": OWN_TARGET,
            "met": own <= OWN_TARGET,
        },
        "processor_percent": statistics.median(pair.processor for pair in pairs),
        "beside": dict(beside),
        "pairs": [
            {
                "slowdown_percent": pair.slowdown,
                "own_percent": pair.own,
                **{
                    name: [round(second, 6) for second in value]
                    if isinstance(value, list)
                    else value
                    for name, value in asdict(pair).items()
                },
            }
            for pair in pairs
        ],
    }


def lines(pairs: Sequence[Pair], program: str, beside: Mapping[str, float]) -> list[str]:
    """The table, and what it says."""
    shown = [
        f"{'pair':>4}  {'first':<6}  {'load':>5}  {'hpcrun ms':>9}  {'bare ms':>9}"
        f"  {'slowdown %':>10}  {'of sums %':>11}  {'own time %':>10}  {'processor %':>11}"
        f"  {'pages a step':>13}"
    ]
    for number, pair in enumerate(pairs, 1):
        hpcrun, bare = (1000 * statistics.median(side) for side in (pair.hpcrun, pair.bare))
        shown.append(
            f"{number:>4}  {pair.first:<6}  {pair.load:>5.2f}  {hpcrun:>9.2f}  {bare:>9.2f}"
            f"  {pair.slowdown:>+10.2f}  {pair.total_slowdown:>+11.2f}  {pair.own:>10.3f}"
            f"  {pair.processor:>+11.2f}  {pair.faults['hpcrun']:>6.0f} {pair.faults['bare']:>6.0f}"
        )
    results = summary(pairs, program, beside)
    slowdown, own = results["slowdown_percent"], results["own_percent"]
    low, high = slowdown["interval_95"]
    shown += [
        "",
        f"slowdown, median of {len(pairs)} pairs: {slowdown['median']:+.2f} %;"
        f" 95 % bootstrap upper bound {slowdown['upper_bound_95']:+.2f} %"
        f" (two-sided interval {low:+.2f} to {high:+.2f})",
        f"  -> {_verdict(slowdown['met'])} the target of at most {slowdown['target']:g} %",
        f"  of the sums of steps {slowdown['totals_median']:+.2f} %, bound"
        f" {slowdown['totals_upper_bound_95']:+.2f} %",
        f"  -> {_verdict(slowdown['totals_met'])} the target of at most {slowdown['target']:g} %",
        f"  beside it: mean of pairs {slowdown['mean']:+.2f} %, bound"
        f" {slowdown['mean_upper_bound_95']:+.2f} %",
        f"hpcrun's own time inside the steps: {own['all']:.3f} %"
        f" (largest of a pair {own['largest']:.3f} %)",
        f"  -> {_verdict(own['met'])} the target of at most {OWN_TARGET:g} %",
        f"processor time of the ranks in the steps, median: {results['processor_percent']:+.2f} %",
        "in a run of its own, outside the comparison: supervisor"
        f" {beside['supervisor_percent']:.2f} % and agents {beside['agents_percent']:.2f} % of one"
        f" core; warm ranks {beside['warm_seconds']:.1f} s of a processor until they wait",
    ]
    return shown


def _verdict(met: bool) -> str:
    return "within" if met else "ABOVE"
