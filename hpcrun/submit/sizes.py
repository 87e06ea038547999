"""Whether runs that go on can do so with the ranks that they are to have, told before the queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hpcrun.errors import UsageError
from hpcrun.state import manifest
from hpcrun.state.layout import ExperimentPaths
from hpcrun.state.plan import RunPlan

_SHOWN = 5


def check(runs: Sequence[RunPlan], experiment: ExperimentPaths, say: Callable[[str], None]) -> None:
    """Look at the newest checkpoints of runs that were begun with another number of ranks.

    Parameters
    ----------
    runs
        Those that go on where they stopped.
    say
        Is told which are converted.

    Raises
    ------
    UsageError
        Some cannot be gone on from by another number of ranks.
    """
    refused: list[str] = []
    divided: list[str] = []
    for run in runs:
        found = manifest.complete(experiment.run(run.number).checkpoints)
        if not found or found[0][1].world_size == run.world_size:
            continue
        directory, newest = found[0]
        sizes = f"{newest.world_size} to {run.world_size} ranks"
        if newest.fixed_size is not None:
            refused.append(f"run {run.number}, {sizes}: {newest.fixed_size} ({directory})")
        else:
            divided.append(f"run {run.number}, {sizes}")
    if refused:
        raise UsageError(
            "these runs cannot go on with another number of ranks:\n" + "\n".join(_some(refused)),
            hint="ask for as many ranks as before, or start afresh with --new",
        )
    if divided:
        say(
            "checkpoints that are converted for another number of ranks as the jobs start: "
            + "; ".join(_some(divided))
        )


def _some(lines: Sequence[str]) -> list[str]:
    more = len(lines) - _SHOWN
    return [*lines[:_SHOWN], *([f"and {more} more"] if more > 0 else [])]
