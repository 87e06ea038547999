"""The share of an attempt's newest steps in which rank 0 waited for its loader's data."""

from __future__ import annotations

from hpcrun.state import files
from hpcrun.state.layout import AttemptPaths
from hpcrun.state.metrics_file import parse

# The end of the metrics that is read, the steps that it takes, and a share that is told.
_TAIL_BYTES, _LEAST_STEPS = 1 << 18, 5
STARVED = 0.1


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
    found = share(attempt)
    if found is None or found < STARVED:
        return ""
    return (
        f"Rank 0 waited for data for {found:.0%} of its newest steps: more num_workers of "
        "session.loader (with resources.cpus_per_task for them), a cheaper dataset[index], or "
        "faster storage would shorten them (docs/data.md)."
    )
