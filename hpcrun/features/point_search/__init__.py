"""Searches: runs of which each asks for its values as it starts, in view of those that have ended.

Nothing of a search lives anywhere but in the runs: the points that they were given
(`point/point.json`) and their ledgers and metrics are the study. `study` rebuilds it in memory and
asks Optuna once; `choose` is the program that the supervisor starts for that, in the job's Python.
`pruning` ends runs that fall behind, and by `budget` no more begin once it is spent. In a
`population` a later trial goes on from another's checkpoint, which comes with its values
(`inherited`). `evolution` is the sampler that is not Optuna's.
`earlier_trials` are those of other experiments. What a spec says is
`hpcrun.state.spec.sweep_block.Search`; `hpcrun.compile.sweep.late_values` compiles it.

To add a sampler: a branch of `study._sampler`, its name in the block, and what it needs below.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from hpcrun.feature import Feature

if TYPE_CHECKING:
    from pathlib import Path

    from hpcrun.compile.freeze import CompiledRun
    from hpcrun.feature import Event
    from hpcrun.features.point_search.pruning import Pruning
    from hpcrun.state.layout import AttemptPaths, SubmissionPaths
    from hpcrun.state.ledger import Attempt
    from hpcrun.state.plan import RunPlan
    from hpcrun.text import Say

# Seconds in which Optuna is imported and asked.
_TAKES = 300.0
# And a checkpoint is copied, where the file system has no hard links.
_COPIES = 3600.0


class SearchFeature(Feature):
    """Values that are chosen as runs start."""

    asked_by = "search", "sampler"

    @property
    def events(self) -> Mapping[str, Event]:  # type: ignore[override]
        from hpcrun.feature import Event
        from hpcrun.features.point_search.study import PRUNED
        from hpcrun.fields import INDEX, TEXT

        return {PRUNED: Event({"step": INDEX, "message": TEXT}, ("step", "message"))}

    def look_up(self, runs: Sequence[CompiledRun], root: Path, say: Say) -> Sequence[CompiledRun]:
        if not runs[0].spec["search"].get("learn_from"):
            return runs
        from hpcrun.features.point_search import earlier_trials

        return earlier_trials.look_up(runs, root, say)

    def needs(self, run: RunPlan) -> Mapping[str, str]:
        from hpcrun.state.plan import SEARCH

        sampler = run.spec[SEARCH]["sampler"] if SEARCH in run.spec else "grid"
        names = {"qmc": (), "grid": (), "gp": ("optuna", "torch", "scipy")}
        names["cmaes"] = "optuna", "cmaes"
        return dict.fromkeys(names.get(sampler, ("optuna",)), f"sweep.search.sampler: {sampler}")

    def complete(self, run: RunPlan, submission: SubmissionPaths) -> bool:
        from hpcrun import ask_python
        from hpcrun.errors import HpcrunError
        from hpcrun.feature import NotWanted
        from hpcrun.features.point_search import budget, inherited
        from hpcrun.run.protocol.output import say
        from hpcrun.state import chosen_point
        from hpcrun.state.plan import SEARCH

        paths = submission.experiment.run(run.number)
        has_population = bool((run.spec.get(SEARCH) or {}).get("population"))
        if not chosen_point.is_open(run, paths):
            if has_population:
                inherited.settle(paths)
            return False
        if why := budget.spent(run, submission):
            raise NotWanted(why)
        program = [sys.executable, "-m", "hpcrun.features.point_search.choose"]
        command = [*program, str(submission.directory), str(run.number)]
        timeout = _COPIES if has_population else _TAKES
        answer = ask_python.ask(command, timeout=timeout)
        if answer.data is None:
            raise HpcrunError(f"the search did not give this run its values{answer.last_errors(6)}")
        if isinstance(answer.data, dict):
            raise NotWanted(answer.data["not_wanted"])
        if has_population:
            say(f"this run has {answer.data}")
            inherited.settle(paths)
        return True

    def in_supervisor(
        self, run: RunPlan, paths: AttemptPaths, record: Callable[..., object]
    ) -> Pruning | None:
        from hpcrun.state.plan import SEARCH

        search = run.spec.get(SEARCH) or {}
        is_judged = search.get("population") or search.get("prune", "none") != "none"
        if not is_judged or _is_promoted(paths):
            return None
        from hpcrun.features.point_search.pruning import Pruning

        return Pruning(run, paths, record)

    def notice(self, attempt: Attempt) -> str | None:
        from hpcrun.features.point_search.study import PRUNED

        found = attempt.of_features.get(PRUNED)
        return f"pruned: {found['message']}" if found else None


def _is_promoted(paths: AttemptPaths) -> bool:
    """Check whether a run was submitted again that had been pruned: it is to go on."""
    from hpcrun.features.point_search.study import PRUNED
    from hpcrun.state import ledger

    attempts = ledger.read(paths.run)
    now = next((one.submission for one in reversed(attempts) if one.started), None)
    return any(PRUNED in one.of_features and one.submission != now for one in attempts)


FEATURE = SearchFeature()
