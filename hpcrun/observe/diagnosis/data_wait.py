"""The share of an attempt's newest steps in which ranks waited for their loaders' data.

Of rank 0 it is known of every step, by its metrics; the others are compared now and then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hpcrun.fields import INDEX, NUMBER
from hpcrun.state import files, session_log
from hpcrun.state.layout import AttemptPaths
from hpcrun.state.metrics_file import parse
from hpcrun.text import plural

# The end of the metrics that is read, the steps that it takes, and a share that is told.
_TAIL_BYTES, _LEAST_STEPS = 1 << 18, 5
STARVED = 0.1
_MOST_RANKS = 8
_ADVICE = (
    "more num_workers of session.loader (with resources.cpus_per_task for them), a cheaper "
    "dataset[index], or faster storage would shorten them (docs/data.md)"
)


def share(attempt: AttemptPaths) -> float | None:
    """Return the share of the newest steps' time, from 0 to 1; None where too little is known."""
    waited = spent = 0.0
    steps = 0
    for line in parse(files.read_back(attempt.metrics, _TAIL_BYTES)):
        data, step = line.values.get("data_seconds"), line.values.get("step_seconds")
        if data is not None and step is not None and 0 <= data <= step:
            waited, spent, steps = waited + data, spent + step, steps + 1
    return waited / spent if steps >= _LEAST_STEPS and spent > 0 else None


def told(attempt: AttemptPaths) -> str:
    """Return what to say of an attempt whose loader is too slow; empty for others."""
    found, others = share(attempt), _compared(attempt)
    if others is not None and others.shares[0][1] >= STARVED and others.differ:
        waits = _by_share(others.shares)
        text = (
            f"Waited for data in the {plural(others.steps, 'step')} to step {others.step:,}: "
            f"{waits}; half of the {others.world_size:,} ranks {others.median:.0%} or less. The "
            "others then wait for the slowest: its node, its storage and what its samples have "
            "in common are the first to look at"
        )
        return f"{text} ({_ADVICE})."
    if found is None or found < STARVED:
        return ""
    who = "Rank 0"
    if others is not None and others.world_size > 1:
        who = f"Rank 0, like the other {plural(others.world_size - 1, 'rank')},"
    return f"{who} waited for data for {found:.0%} of its newest steps: {_ADVICE}."


@dataclass(frozen=True)
class WaitComparison:
    """The newest record of all ranks' waits."""

    step: int
    steps: int
    shares: list[tuple[int, float]]
    median: float
    world_size: int

    @property
    def differ(self) -> bool:
        """The longest wait is not that of the others: more than half as long again."""
        return self.world_size > 1 and self.shares[0][1] > 1.5 * self.median


def _compared(attempt: AttemptPaths) -> WaitComparison | None:
    """Return the newest record of all ranks' waits; None where none is sound."""
    for event in reversed([*session_log.read_any(attempt).of(session_log.DATA_WAITS)]):
        record = event.record
        ranks, median = record.get("ranks"), record.get("median")
        counts = [record.get(name) for name in ("steps", "world_size")]
        if event.step is None or not all(map(INDEX.accepts, counts)) or not _is_share(median):
            continue
        if isinstance(ranks, list) and ranks and all(map(_is_pair, ranks)):
            shares = [(int(rank), float(one)) for rank, one in ranks[:_MOST_RANKS]]
            steps, size = (int(each or 0) for each in counts)
            return WaitComparison(event.step, steps, shares, float(median or 0), size)
    return None


def _is_share(value: Any) -> bool:
    return bool(NUMBER.accepts(value)) and 0 <= value <= 1


def _is_pair(value: Any) -> bool:
    is_pair = isinstance(value, list) and len(value) == 2
    return is_pair and bool(INDEX.accepts(value[0])) and _is_share(value[1])


def _by_share(shares: list[tuple[int, float]]) -> str:
    waiting = [(rank, one) for rank, one in shares if one >= STARVED]
    return ", ".join(f"rank {rank} {one:.0%}" for rank, one in waiting)
