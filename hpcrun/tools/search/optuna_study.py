"""The trials of a search as Optuna's: how much each parameter matters, and a storage of its own."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from hpcrun import activity
from hpcrun.compile.sweep import optuna_space
from hpcrun.errors import UsageError
from hpcrun.observe.status import run_state
from hpcrun.state import chosen_point
from hpcrun.state.plan import SEARCH, RunPlan
from hpcrun.text import Say, one_line, plural
from hpcrun.tools.search.search_trials import SearchTrial, SearchView

if TYPE_CHECKING:
    import optuna

# Completed trials from which on importance is told: of fewer, chance explains as much.
FEWEST = 10
# Values of one trial that a storage gets, each of which is a row of a table.
_MOST_VALUES = 100
_STATES = {
    run_state.COMPLETED: "COMPLETE",
    run_state.PRUNED: "PRUNED",
    **dict.fromkeys((run_state.FAILED, run_state.CANCELLED), "FAIL"),
}
# The user and password of a URL.
_SECRET = re.compile(r"//[^/@\s]*@")


def importance(view: SearchView, say: Say) -> dict[str, float] | None:
    """Return each parameter's share of what completed trials differ by, the greatest first.

    Of several objectives it is that of the first. It is Optuna's PED-ANOVA, which needs nothing
    beside Optuna. None of fewer than `FEWEST`.
    """
    optuna = optuna_space.load()
    found = _trials(replace(view, objectives=view.objectives[:1]), say)
    trials = [one for one in found if one.state == optuna.trial.TrialState.COMPLETE]
    if len(trials) < FEWEST:
        return None
    study = optuna.create_study(direction=_directions(view)[0])
    study.add_trials(trials)
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    shares = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {key: float(share) for key, share in shares.items()}


def store(view: SearchView, url: str, name: str, say: Say) -> int:
    """Write the search as a new study into one of Optuna's storages; return how many trials.

    Raises UsageError if it has a study of that name, or cannot be used.
    """
    optuna = optuna_space.load()
    trials = _trials(view, say)
    shown = without_secrets(url)
    study: Any = None
    try:
        study = optuna.create_study(storage=url, study_name=name, directions=_directions(view))
        study.set_user_attr("experiment", str(view.trials[0].selected.experiment.directory))
        study.set_metric_names([one.metric for one in view.objectives])
        for trial in activity.count(trials, "writing trials"):
            study.add_trial(trial)
    except optuna.exceptions.DuplicatedStudyError:
        raise UsageError(
            f"{shown} has a study {name} already, and nothing is added to it",
            hint="--study-name gives another name; `optuna delete-study --storage URL "
            f"--study-name {name}` removes that one",
        ) from None
    except BaseException as error:
        if study is not None:
            with contextlib.suppress(Exception):
                optuna.delete_study(study_name=name, storage=url)
        if not isinstance(error, Exception):
            raise
        told = without_secrets(one_line(str(error).partition("\n")[0]))
        raise UsageError(
            f"--storage {shown}: {type(error).__name__}: {told}",
            hint="a database that SQLAlchemy reaches, as in --storage sqlite:///study.db",
        ) from None
    return len(trials)


def without_secrets(url: str) -> str:
    """Return a URL without the user and password in it."""
    return _SECRET.sub("//…@", url)


def _directions(view: SearchView) -> list[str]:
    return ["maximize" if one.better == "max" else "minimize" for one in view.objectives]


def _trials(view: SearchView, say: Say) -> list[optuna.trial.FrozenTrial]:
    """Return the runs that have values, as trials."""
    import optuna

    found = []
    thinned = 0
    for one in view.trials:
        if not one.selected.run.swept:
            continue
        # Optuna has no course of several objectives.
        kept = _thin(one.course) if len(view.objectives) == 1 else ()
        thinned += 0 < len(kept) < len(one.course)
        best = None if one.best is None else [one.best[1]]
        values = best if len(view.objectives) == 1 else one.last
        try:
            found.append(_trial(one, values, dict(kept), optuna))
        except ValueError as error:
            say(f"{one.selected.name} does not count: {error}")
    if thinned:
        say(f"of {plural(thinned, 'run')}, {_MOST_VALUES} values are kept")
    return found


def _trial(
    one: SearchTrial, values: list[float] | None, course: Mapping[int, float], optuna: Any
) -> Any:
    run = one.selected.run
    state = _STATES.get(one.status.state, "RUNNING")
    if values is None and state in ("COMPLETE", "PRUNED"):
        state = "FAIL"
    space = run.spec[SEARCH]["space"]
    found = optuna.trial.create_trial(
        state=optuna.trial.TrialState[state],
        params=run.swept,
        distributions={
            key: optuna_space.distribution(space[key]) for key in run.swept if key in space
        },
        values=values if state in ("COMPLETE", "PRUNED") else None,
        intermediate_values=dict(course),
        user_attrs={"run": one.selected.name, "state": one.status.state, **_parent(run)},
    )
    if one.attempts and (began := one.attempts[0].began):
        found.datetime_start = datetime.fromtimestamp(began)
    if one.attempts and (ended := one.attempts[-1].end.get("time")) and state != "RUNNING":
        found.datetime_complete = datetime.fromtimestamp(ended)
    return found


def _parent(run: RunPlan) -> dict[str, str]:
    parent = chosen_point.parent_of(run)
    return {} if parent is None else {"parent": parent}


def _thin(course: Sequence[tuple[int, float]]) -> Sequence[tuple[int, float]]:
    """Return at most so many of the values, evenly, the last among them."""
    every = -(-len(course) // _MOST_VALUES)
    return course if every <= 1 else [*reversed(course[::-1][::every])]
