"""Wait until runs have ended, wherever they run, and say how far they are."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Sequence

from hpcrun import activity
from hpcrun.errors import ClusterUnreachable, HpcrunError
from hpcrun.observe.read.selection import Finder
from hpcrun.observe.status import run_state
from hpcrun.observe.status.slurm_cache import LastAnswers
from hpcrun.observe.status.status import Ask, RunStatus, statuses
from hpcrun.state import ledger
from hpcrun.state.layout import ExperimentPaths
from hpcrun.submission import run_actions
from hpcrun.text import Say, brief, plural

# The states of more runs than this are not read on each turn.
_MOST = 500


def wait(
    experiment: ExperimentPaths, runs: Sequence[int], *, say: Say, timeout: float | None = None
) -> list[int]:
    """Wait until no run is queued or running; return those that ended badly.

    While the cluster does not answer, go on waiting. Raises TimeoutError if some are not over after
    ``timeout`` seconds.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    pause, longest, silent = 0.5, 5.0, False
    told = f"waiting for {plural(len(runs), 'run')} of {experiment.name}"
    ask = LastAnswers(follows=True).ask
    with activity.doing(lambda: told):
        while True:
            try:
                decisions = run_actions.decide(experiment, runs)
            except ClusterUnreachable as error:
                if not silent:
                    say(f"{error.message}; waiting on")
                silent = True
            else:
                silent = False
                living = [one for one in decisions if one.action in _LIVING]
                jobs = [one.job for one in living]
                longest = 1.0 if all(job and job.is_local for job in jobs) else 5.0
                if not living:
                    # Writes of another node may become visible here a little later.
                    time.sleep(0.5)
                    return [
                        run
                        for run in runs
                        if ledger.intent(experiment.run(run)) not in ledger.GOOD_ENDS
                    ]
                told = f"{experiment.name}: {len(living)} of {plural(len(runs), 'run')} not over"
                if len(runs) <= _MOST:
                    with contextlib.suppress(OSError, HpcrunError):
                        told = standing(experiment, runs, ask)
            if deadline is not None and (left := deadline - time.monotonic()) < pause:
                if left <= 0:
                    raise TimeoutError(f"after {timeout:g} s, {told}")
                pause = left
            time.sleep(pause)
            pause = min(pause * 1.5, longest)


_LIVING = (run_actions.ATTACHED, run_actions.CANCELLING)


def standing(experiment: ExperimentPaths, runs: Sequence[int], ask: Ask) -> str:
    """Return in one line how far runs are, and why those that wait do so."""
    found = statuses(Finder(experiment.root).runs(experiment, runs), ask=ask)
    if len(found) == 1:
        return described(found[0])
    number = Counter(one.state for one in found)
    counts = ", ".join(f"{number[state]} {state}" for state in run_state.STATES if number[state])
    # The first that waits tells why; else the first that runs, how far it is.
    living = [one for one in found if not one.over]
    waiting = [one for one in living if one.state != run_state.RUNNING]
    some = f"; {described((waiting or living)[0])}" if living else ""
    return f"{experiment.name}: {counts}{some}"


def described(status: RunStatus) -> str:
    """Return a run's state, how far it is, and why: ``fine/0 running, step 3 of 10``."""
    text = f"{status.name} {status.state}"
    if status.state == run_state.RUNNING and status.step is not None:
        total = f" of {status.total_steps:,}" if status.total_steps else ""
        text += f", step {status.step:,}{total}"
    return f"{text}: {brief(status.reason)}" if status.reason else text
