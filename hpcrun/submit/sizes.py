"""Whether runs that go on can do so with the ranks that they are to have, told before the queue."""

from __future__ import annotations

from collections.abc import Sequence

from hpcrun.errors import UsageError
from hpcrun.state import manifest
from hpcrun.state.layout import ExperimentPaths
from hpcrun.state.plan import RunPlan
from hpcrun.text import Say, listed

_SHOWN = 5


def check(runs: Sequence[RunPlan], experiment: ExperimentPaths, say: Say) -> None:
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
            "these runs cannot go on with another number of ranks:\n"
            + listed(refused, _SHOWN, "\n", "\nand {} more"),
            hint="ask for as many ranks as before, or start afresh with --new",
        )
    if divided:
        say(
            "checkpoints that are converted for another number of ranks as the jobs start: "
            + listed(divided, _SHOWN, "; ", "; and {} more")
        )
