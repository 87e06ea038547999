"""Wait until runs have ended, wherever they run."""

from __future__ import annotations

import time
from collections.abc import Sequence

from hpcrun.errors import ClusterUnreachable
from hpcrun.state import ledger
from hpcrun.state.layout import ExperimentPaths
from hpcrun.submit import run_actions
from hpcrun.text import Say


def wait(experiment: ExperimentPaths, runs: Sequence[int], *, say: Say) -> list[int]:
    """Wait until no run is queued or running; return those that did not complete.

    While the cluster does not answer, go on waiting.
    """
    pause, longest, silent = 0.5, 5.0, False
    while True:
        try:
            decisions = run_actions.decide(experiment, runs)
        except ClusterUnreachable as error:
            if not silent:
                say(f"{error.message}; waiting on")
            silent = True
        else:
            silent = False
            living = (run_actions.ATTACHED, run_actions.CANCELLING)
            jobs = [decision.job for decision in decisions if decision.action in living]
            longest = 1.0 if all(job and job.is_local for job in jobs) else 5.0
            if not jobs:
                # Writes of another node may become visible here a little later.
                time.sleep(0.5)
                return [
                    run for run in runs if ledger.intent(experiment.run(run)) != ledger.FINISHED
                ]
        time.sleep(pause)
        pause = min(pause * 1.5, longest)
