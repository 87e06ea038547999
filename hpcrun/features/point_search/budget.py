"""The budget of a search: the hours for which its runs may hold nodes, as `status --cost` counts.

Once they are spent no further run of it begins; those that run go on.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

from hpcrun import shared_look
from hpcrun.errors import HpcrunError
from hpcrun.slurm.parse import parse_duration
from hpcrun.state import ledger, plan_file
from hpcrun.state.layout import ExperimentPaths, SubmissionPaths
from hpcrun.state.plan import SEARCH, RunPlan


def spent(run: RunPlan, submission: SubmissionPaths) -> str | None:
    """Return a sentence if the budget of the search that a run belongs to is spent, or None."""
    from hpcrun.observe.diagnosis.price_list import CPU, GPU

    experiment = submission.experiment
    if (most := _budget(run, experiment)) is None:
        return None
    if (used := hours(plan_file.of_search(run, experiment).runs, experiment)) < most:
        return None
    unit = GPU if run.all_gpus else CPU
    return (
        f"the search's budget of {most:,g} {unit} is spent ({used:,.3g} used); a submit with a "
        "greater sweep.search.budget goes on"
    )


def hours(runs: Sequence[RunPlan], experiment: ExperimentPaths) -> float:
    """Return the GPU-hours (without GPUs CPU-hours) of runs, by their ledgers alone.

    An attempt without an end counts until now, at most for the time limit of its job.
    """
    from hpcrun.observe.diagnosis import cost, goodput

    now = time.time()

    def look(run: RunPlan) -> float:
        attempts = ledger.read(experiment.run(run.number))
        until, limit = now, parse_duration(run.resources.time)
        if limit is not None and attempts and isinstance(attempts[-1].began, float):
            until = min(now, attempts[-1].began + limit)
        silent = goodput.Traces(is_program=True)
        pairs = [(one, lambda _furthest: silent) for one in attempts]
        spans = goodput.spans({}, pairs, until, over=False)
        return cost.of_run("", lambda _attempt: run, spans).paid

    return sum(shared_look.each(look, runs))


def _budget(run: RunPlan, experiment: ExperimentPaths) -> float | None:
    """Return the budget by the newest submission that has the run."""
    newest = run.spec[SEARCH]
    for one in reversed(experiment.submissions()):
        with contextlib.suppress(HpcrunError, OSError):
            plan = plan_file.read_frozen(one.plan, run.number)
            if found := [each for each in plan.runs if each.number == run.number]:
                newest = found[0].spec[SEARCH]
                break
    budget: float | None = newest.get("budget")
    return budget
