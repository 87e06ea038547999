"""``--only``: choose among the runs that could be submitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpcrun.errors import UsageError
from hpcrun.observe.read.filter import narrow
from hpcrun.state import ledger
from hpcrun.state.layout import ExperimentPaths
from hpcrun.state.plan import RunPlan
from hpcrun.submit.submit import Only
from hpcrun.text import shortened

NEW, FAILED, CANCELLED = STATES = ("new", "failed", "cancelled")


@dataclass(frozen=True)
class _Candidate:
    run: RunPlan
    planned: object = None


def chooser(words: Sequence[str]) -> Only | None:
    """Return the function that chooses runs, from what is on disk; None for all runs.

    ``words`` are ``new`` (never begun), ``failed`` (begun and not completed), ``cancelled``, and
    ``key=value`` as for ``--where``; anything else raises UsageError. A run must meet all
    conditions, and have one of the states.
    """
    states = {word for word in words if word in STATES}
    conditions = [word for word in words if word not in STATES]
    for word in conditions:
        if "=" not in word:
            raise UsageError(
                f"--only {shortened(word, 200)!r}: accepted are {', '.join(STATES)} and key=value",
                hint="such as --only failed, --only lr=3e-4",
            )
    if not words:
        return None

    def choose(experiment: ExperimentPaths, runs: Sequence[RunPlan]) -> set[int]:
        found = narrow([_Candidate(run) for run in runs], conditions, "--only")
        numbers = [one.run.number for one in found]
        return {one for one in numbers if not states or _state(experiment, one) in states}

    return choose


def _state(experiment: ExperimentPaths, run: int) -> str:
    paths = experiment.run(run)
    if ledger.intent(paths) == ledger.CANCELLED:
        return CANCELLED
    return FAILED if paths.directory.is_dir() else NEW
