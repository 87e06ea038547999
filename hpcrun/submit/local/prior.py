"""Whether what a run on this machine waits for is over. Standard library only, as `local`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcrun.state import journal, layout, ledger
from hpcrun.state.layout import ExperimentPaths
from hpcrun.state.plan import Plan

READY = "ready"
WAITING = "waiting"
Alive = Callable[[dict[str, Any]], bool | None]


def standing(plan: Plan, experiment: ExperimentPaths, run: int, alive: Alive) -> str:
    """``READY``, ``WAITING``, or why the run can never start.

    Parameters
    ----------
    alive
        Whether the process of a journal's record lives.
    """
    for one in plan.depends_on:
        before = layout.experiment(experiment.directory.parent, one.experiment)
        jobs = journal.newest_jobs(before)
        for number in one.of(run):
            if ledger.intent(before.run(number)) == ledger.FINISHED:
                continue
            job = jobs.get(number)
            if job is not None and not job.ended and alive(job.record):
                return WAITING
            if one.when == "success":
                return f"{one.experiment}/{number}, which it depends on, did not complete"
    return READY
