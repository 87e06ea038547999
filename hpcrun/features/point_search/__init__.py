"""Searches: runs of which each asks for its values as it starts, in view of those that have ended.

Nothing of a search lives anywhere but in the runs: the points that they were given (`point.json`)
and their ledgers and metrics are the study. `study` rebuilds it in memory and asks Optuna once;
`choose` is the program that the supervisor starts for that, in the job's Python. What a spec says
is `hpcrun.state.spec.sweep_block.Search`; `hpcrun.compile.sweep.late_values` compiles it.

To add a sampler: a branch of `study._sampler`, and its name in the block.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hpcrun.feature import Feature

if TYPE_CHECKING:
    from hpcrun.state.layout import SubmissionPaths
    from hpcrun.state.plan import RunPlan

# Seconds in which Optuna is imported and asked.
_TAKES = 300.0


class SearchFeature(Feature):
    """Values that are chosen as runs start."""

    def needs(self, run: RunPlan) -> Mapping[str, str]:
        from hpcrun.state.plan import SEARCH

        return {"optuna": "sweep.search"} if SEARCH in run.spec else {}

    def complete(self, run: RunPlan, submission: SubmissionPaths) -> bool:
        from hpcrun import ask_python
        from hpcrun.errors import HpcrunError
        from hpcrun.state import chosen_point

        if not chosen_point.is_open(run, submission.experiment.run(run.number)):
            return False
        program = [sys.executable, "-m", "hpcrun.features.point_search.choose"]
        command = [*program, str(submission.directory), str(run.number)]
        answer = ask_python.ask(command, timeout=_TAKES)
        if answer.data is None:
            raise HpcrunError(f"the search did not give this run its values{answer.said(6)}")
        return True


FEATURE = SearchFeature()
