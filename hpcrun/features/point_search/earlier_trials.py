"""Runs of other experiments that a search learns from: ``sweep.search.learn_from``.

They are read as it is submitted, and frozen in its plan: jobs need not find them again.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcrun import shared_look
from hpcrun.errors import BrokenFile, UsageError
from hpcrun.features.point_search import study
from hpcrun.state import chosen_point, history, layout, ledger
from hpcrun.state.plan import SEARCH, RunPlan
from hpcrun.text import Say, agreeing, plural

if TYPE_CHECKING:
    from hpcrun.compile.freeze import CompiledRun
    from hpcrun.state.layout import RunPaths

# Values, and what came of them; or why a run is no trial.
Told = tuple[Mapping[str, Any], list[float]] | str


def look_up(runs: Sequence[CompiledRun], root: Path, say: Say) -> Sequence[CompiledRun]:
    """Return the runs of a search with what other experiments under a root found out.

    Raises UsageError if there is no such experiment.
    """
    from dataclasses import replace

    told: list[Told] = []
    identities = {run.identity for run in runs}
    search = runs[0].spec[SEARCH]
    for name in search["learn_from"]:
        experiment = layout.experiment(root, name)
        known = history.read(experiment, say).runs
        if not known:
            raise UsageError(
                f"sweep.search.learn_from: there is no experiment {name} under {root}",
                hint="hpcrun list names those that there are",
            )
        # What this search itself has run is told anyway.
        own = identities if name == runs[0].spec["name"] else ()
        others = [run for _, run in known.values() if run.identity not in own]

        def look(run: RunPlan, experiment: layout.ExperimentPaths = experiment) -> Told:
            try:
                return _outcome(run, experiment.run(run.number), runs[0])
            except (BrokenFile, OSError):
                return "cannot be read"

        looks = [*shared_look.each(look, others)]
        taken = [one for one in looks if not isinstance(one, str)]
        reasons = collections.Counter(one for one in looks if isinstance(one, str))
        passed = "; ".join(f"{count} {reason}" for reason, count in reasons.items())
        passed = f"; not told: {passed}" if passed else ""
        are = agreeing(len(taken), "is", "are")
        say(
            f"sweep.search.learn_from: {len(taken)} of {plural(len(others), 'run')} of {name} "
            f"{are} told to the sampler{passed}"
        )
        told += taken
    found = {**search, "told": told}
    return [replace(run, spec={**run.spec, SEARCH: found}) for run in runs]


def _outcome(run: RunPlan, paths: RunPaths, wanted: CompiledRun) -> Told:
    from hpcrun.compile.sweep.search_space import SearchedKey

    space = wanted.spec[SEARCH]["space"]
    if not run.swept or not chosen_point.fits(space, run.swept):
        return "with other keys than the space"
    keys = {key: SearchedKey.from_data(form) for key, form in space.items()}
    if not all(keys[key].has(value) for key, value in run.swept.items()):
        return "with values outside the space"
    if (intent := ledger.intent(paths)) != ledger.FINISHED:
        return "pruned" if intent == ledger.PRUNED else "not completed"
    values = study.values_of(paths, study.objectives(wanted))
    return "without a value of the objective" if values is None else (run.swept, values)
