"""Whether a run's time limit leaves it time to work, by what its earlier attempts have shown."""

from __future__ import annotations

from collections.abc import Sequence

from hpcrun.errors import UsageError
from hpcrun.policy import stop_lead_time
from hpcrun.slurm.duration import seconds
from hpcrun.state.layout import ExperimentPaths
from hpcrun.state.plan import RunPlan


def check(runs: Sequence[RunPlan], paths: ExperimentPaths) -> None:
    """See that stopping takes at most half of each run's time limit.

    Runs that never saved, and those that name ``recovery.stop_before``, were checked by the
    compiler.

    Raises
    ------
    UsageError
        A run's limit is too short for its saves.
    """
    for run in runs:
        wanted = run.spec["resources"]["time"]
        limit = seconds(wanted)
        save, step = stop_lead_time.measured(paths.run(run.number))
        if save is None or limit is None or run.spec["recovery"]["stop_before"] is not None:
            continue
        before = stop_lead_time.seconds(limit, save=save, step=step)
        if not stop_lead_time.leaves_enough(limit, before):
            raise UsageError(
                f"resources.time is {wanted}, and of that run {run.number} needs {before:.0f} s to "
                f"stop: a save took up to {save:.0f} s, a step {step:.1f} s",
                hint=f"ask for {2 * before / 60:.0f} minutes or more, or name recovery.stop_before",
            )
