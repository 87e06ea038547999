"""The runs of one search, with the course of their objective."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hpcrun import activity, shared_look
from hpcrun.errors import BrokenFile, UsageError
from hpcrun.observe import results
from hpcrun.observe.read import metric_curves
from hpcrun.observe.read.metric_curves import Curve
from hpcrun.observe.read.selection import Selected
from hpcrun.observe.status.status import Observed, RunStatus, observe
from hpcrun.state import chosen_point, plan_file
from hpcrun.state.ledger import Attempt
from hpcrun.state.plan import SEARCH, RunPlan
from hpcrun.state.spec.run_blocks import Objective
from hpcrun.text import Say, agreeing, runs_text


@dataclass(frozen=True)
class SearchTrial:
    """One run of a search."""

    selected: Selected
    status: RunStatus
    attempts: Sequence[Attempt]
    course: Sequence[tuple[int, float]]
    """Step and value of the objective, ascending; values may not be finite."""
    best: tuple[int, float] | None
    """Step and value of the best finite one; None without one."""
    last: list[float] | None = None
    """The last values of all objectives, where there are several; None if one is not finite."""

    def to_data(self) -> dict[str, Any]:
        """Return the run's name, values and best value, and its parent if it has one."""
        step, value = self.best or (None, None)
        facts = {"run": self.selected.name, "state": self.status.state, "step": step}
        more: dict[str, Any] = {} if self.last is None else {"objectives": self.last}
        parent = chosen_point.parent_of(self.selected.run)
        more |= {"parent": parent} if parent else {}
        return {**facts, "value": value, **more, "values": self.selected.run.swept}


@dataclass(frozen=True)
class SearchView:
    """A search as it is now."""

    trials: Sequence[SearchTrial]
    """In the order of their numbers, those without values too."""
    objectives: Sequence[Objective]

    @property
    def objective(self) -> Objective:
        """The spec's own; the only one but for searches of several."""
        return self.objectives[0]

    @property
    def front(self) -> list[SearchTrial]:
        """The completed trials that none is better than in all of several objectives."""
        rows = []
        for one in self.trials:
            metrics = [objective.metric for objective in self.objectives]
            row: dict[str, Any] = dict(zip(metrics, one.last or (), strict=False))
            row |= {"experiment": one.status.experiment, "state": one.status.state}
            rows.append((one.selected.run, row))
        results.mark_front(rows)
        pairs = zip(self.trials, rows, strict=True)
        return [one for one, (_, row) in pairs if results.PARETO in row]

    def lineage(self, one: SearchTrial) -> list[str]:
        """Return the parents of a trial, from its own on: ``3@200``."""
        found = []
        runs = {each.selected.run.number: each.selected.run for each in self.trials}
        run: RunPlan | None = one.selected.run
        while run is not None and (parent := chosen_point.parent_of(run)):
            found.append(parent)
            run = runs.pop(int(parent.partition("@")[0]), None)
        return found

    @property
    def best(self) -> SearchTrial | None:
        """The trial with the best value so far of the first objective; None if none has one."""
        known = [(one.best[1], one) for one in self.trials if one.best is not None]
        choose = max if self.objective.better == "max" else min
        return choose(known, key=lambda pair: pair[0])[1] if known else None


def read(selected: Sequence[Selected], say: Say) -> SearchView:
    """Read runs, their states and their metrics.

    Raises UsageError if they are of several experiments, or none is of a search.
    """
    if len({one.experiment.directory for one in selected}) > 1:
        names = sorted({one.experiment.name for one in selected})
        raise UsageError(
            f"{', '.join(names[:4])} are several experiments; search takes one",
            hint=f"such as {names[0]}",
        )
    mine = [one for one in selected if SEARCH in one.run.spec]
    if not mine:
        raise UsageError(
            f"{selected[0].experiment.name} is no search: its runs were given their values at "
            "submission",
            hint="`hpcrun results` compares them; sweep.search makes a search (hpcrun help sweeps)",
        )
    whole = plan_file.of_search(mine[-1].run, mine[-1].experiment)
    numbers = {run.number for run in whole.runs}
    others = [one.run.number for one in mine if one.run.number not in numbers]
    if others:
        are = agreeing(len(others), "is", "are")
        say(
            f"{runs_text(others)} of another space or configuration, or of before --new, {are} "
            "left out, unless named alone"
        )
        mine = [one for one in mine if one.run.number in numbers]
    objective = mine[-1].run.objective
    assert objective is not None, "the compiler refuses a search without one"
    more = mine[-1].run.spec[SEARCH].get("more_objectives") or ()
    objectives = [objective, *(Objective(**one) for one in more)]
    observed = observe(mine, warn=say)
    pairs = [*zip(mine, observed, strict=True)]
    looks = shared_look.each(lambda pair: _trial(*pair, objectives, say), pairs)
    counted = activity.count(pairs, "reading metrics")
    return SearchView([one for _, one in zip(counted, looks, strict=True)], objectives)


def _trial(one: Selected, seen: Observed, objectives: Sequence[Objective], say: Say) -> SearchTrial:
    objective, curve = objectives[0], Curve()
    if seen.attempts:
        try:
            curve = metric_curves.read(one.paths)
        except BrokenFile as error:
            say(f"{one.name} counts without its values: {error.message}")
    course = curve.values(objective.metric)
    known = [curve.last(each.metric) for each in objectives] if len(objectives) > 1 else []
    last = [value for value in known if value is not None and math.isfinite(value)]
    best = curve.best(objective.metric, objective.better)
    is_whole = bool(known) and len(last) == len(known)
    return SearchTrial(one, seen.status, seen.attempts, course, best, last if is_whole else None)
