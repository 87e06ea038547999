"""The study of a search, rebuilt from its runs, and what it says of the next point.

Optuna keeps nothing between two questions, so that there is no database to lock or to lose. A run
that was given values and has not ended counts as running: others are asked for points that it does
not cover (the constant liar). The same history gives a run the same values.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from hpcrun import shared_look
from hpcrun.errors import BrokenFile
from hpcrun.policy import recovery
from hpcrun.run.protocol.output import say
from hpcrun.state import chosen_point, ledger, plan_file
from hpcrun.state.chosen_point import calls_for, fits
from hpcrun.state.layout import ExperimentPaths, RunPaths
from hpcrun.state.ledger import Attempt
from hpcrun.state.plan import SEARCH, RunPlan

if TYPE_CHECKING:
    import optuna

    from hpcrun.state.spec.blocks import RunSpec
    from hpcrun.state.spec.run_blocks import Objective

# The event in the ledger of a run that was ended.
PRUNED = "pruned"
# Samplers by which a trial's place gives its point: they look at no other run, and need no Optuna.
PLACED = ("qmc", "grid")
# Tries at a point that no run has yet.
_TRIES = 20
# Points of a space that are looked through for one that is left.
_MOST_LEFT = 10_000
_SEEDS = 1 << 32
# Significant digits of a value, and more where its bounds have the first ones in common.
DIGITS = 6


def choose(run: RunPlan, experiment: ExperimentPaths) -> dict[str, Any]:
    """Return the values of a run, by full key, which no other gets while there are more.

    Raises HpcrunError without Optuna that it needs.
    """
    search = run.spec[SEARCH]
    plan = chosen_point.apply_points(plan_file.of_search(run, experiment), experiment)
    place = [one.number for one in plan.runs].index(run.number)
    others = [one for one in plan.runs if one.number != run.number]
    others = [one for one in others if one.swept and fits(search["space"], one.swept)]
    told = {_text(point) for point, _ in search.get("told", [])}
    taken = {_text(one.swept) for one in others} | told - {*map(_text, search["first"])}
    if search["sampler"] in PLACED:
        points = _of_place(search, place)
    else:
        points = chain(_answers(run, others, experiment), _small_space_points(search["space"]))
    first = [one for one in search["first"] if _text(one) not in taken]
    again: dict[str, Any] = {}
    for values in chain(first, points):
        # Who asks at the same time takes another. Of another configuration another run is first.
        asked = {"first run": plan.runs[0].number, **values}
        if _text(values) not in taken and chosen_point.take(experiment, run.number, asked):
            return dict(values)
        again = again or values
    say(f"{', '.join(f'{key}={value}' for key, value in again.items())} has been tried already")
    return again


def _text(values: Mapping[str, Any]) -> str:
    return json.dumps(values, sort_keys=True)


def _of_place(search: Mapping[str, Any], place: int) -> Iterator[dict[str, Any]]:
    """Yield a trial's point by its place, then others in case that one has been tried."""
    from hpcrun.compile.sweep import placed_points

    space, first = search["space"], {*map(_text, search["first"])}
    if search["sampler"] == "qmc":
        for attempt in range(_TRIES):
            yield placed_points.quasi_random(space, place, f"{search['seed']}.{attempt}")
        return
    # It may have more points than there is memory for.
    begin = max(0, place - len(first))
    for start, stop in ((begin, None), (0, begin)):
        points = (one for one in placed_points.grid(space) if _text(one) not in first)
        yield from islice(points, start, stop)


def _small_space_points(space: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the points of a small space, of which the sampler may name the same ones each time."""
    from hpcrun.compile.sweep import placed_points

    if all("choice" in form or next(iter(form)).startswith("int") for form in space.values()):
        yield from islice(placed_points.grid(space), _MOST_LEFT)


def _answers(
    run: RunPlan, others: Sequence[RunPlan], experiment: ExperimentPaths
) -> Iterator[dict[str, Any]]:
    """Yield Optuna's answers in view of the other trials, each with another seed."""
    from hpcrun.compile.sweep import optuna_space

    optuna = optuna_space.load()
    search = run.spec[SEARCH]
    space = {key: optuna_space.distribution(form) for key, form in search["space"].items()}
    directions = ["maximize" if one.better == "max" else "minimize" for one in objectives(run)]
    known = [*_trials(others, experiment, space)]
    for point, values in search.get("told", []):
        distributions = {key: space[key] for key in point}
        trial = optuna.trial.create_trial(params=point, distributions=distributions, values=values)
        known.append(trial)
    if search["sampler"] == "cmaes":
        from hpcrun.features.point_search import evolution

        better = objectives(run)[0].better
        seed, draw = int(search["seed"]) % _SEEDS, _seed_of(search, run.number)
        drawn = evolution.points(known, space, better=better, seed=seed, draw=draw)
        for values in islice(drawn, _TRIES):
            yield {key: _rounded(value, space[key]) for key, value in values.items()}
        return
    for attempt in range(_TRIES):
        seed = _seed_of(search, run.number * _TRIES + attempt)
        sampler = _sampler(search["sampler"], seed)
        study = optuna.create_study(directions=directions, sampler=sampler)
        study.add_trials(known)
        asked = study.ask()
        found: dict[str, Any] = {}
        for key, form in search["space"].items():
            if calls_for(form, found):
                found[key] = _suggest(asked, key, space[key])
        yield found


def _seed_of(search: Mapping[str, Any], number: int) -> int:
    return (int(search["seed"]) * 1_000_003 + number) % _SEEDS


def _trials(
    others: Sequence[RunPlan], experiment: ExperimentPaths, space: Mapping[str, Any]
) -> Iterator[optuna.trial.FrozenTrial]:
    """Yield runs that were given values in this space as Optuna's trials."""
    import optuna

    def look(other: RunPlan) -> optuna.trial.FrozenTrial | None:
        paths = experiment.run(other.number)
        # One that was preempted as it was to end may have gone on.
        last = ledger.read(paths)[-1:]
        state, values = _state_of(other, paths, last)
        ended = [one.of_features[PRUNED]["step"] for one in last if PRUNED in one.of_features]
        pruned = {ended[0]: values[0]} if ended and values else {}
        try:
            trial = optuna.trial.create_trial(
                state=optuna.trial.TrialState["PRUNED" if pruned else state],
                params=other.swept,
                distributions={key: space[key] for key in other.swept},
                values=values,
                intermediate_values=pruned,
            )
        except ValueError as error:
            say(f"run {other.number} does not count in the search: {error}")
            return None
        if values and last and last[-1].ended:
            trial.datetime_complete = datetime.fromtimestamp(float(last[-1].ended["time"]))
        return trial

    yield from filter(None, shared_look.each(look, others))


def _state_of(
    run: RunPlan, paths: RunPaths, last: Sequence[Attempt]
) -> tuple[str, list[float] | None]:
    """Return the name of Optuna's state of a run, and its values where it is complete.

    ``last`` is its newest attempt, if it has one.
    """
    intent = ledger.intent(paths)
    if intent is None:
        return "RUNNING" if goes_on(last) else "FAIL", None
    values = values_of(paths, objectives(run)) if intent in ledger.GOOD_ENDS else None
    return ("FAIL" if values is None else "COMPLETE"), values


def goes_on(last: Sequence[Attempt]) -> bool:
    """Check whether a run without an end goes on after its newest attempt, if it has one."""
    return all(one.action in (None, *recovery.GOES_ON) for one in last)


def objectives(run: RunSpec) -> list[Objective]:
    """Return what a search looks for: the spec's objective, and its further ones."""
    from hpcrun.state.spec.run_blocks import Objective

    more = run.spec[SEARCH].get("more_objectives", [])
    return [run.objective or Objective(), *(Objective(**one) for one in more)]


def values_of(run: RunPaths, wanted: Sequence[Objective]) -> list[float] | None:
    """Return the best value that a run logged; of several objectives the last ones.

    None if one of them is not finite, or cannot be read.
    """
    from hpcrun.observe.read import metric_curves

    try:
        curve = metric_curves.read(run)
    except BrokenFile as error:
        say(f"run {run.number}: {error}")
        return None
    if len(wanted) == 1:
        best = curve.best(wanted[0].metric, wanted[0].better)
        found = [None if best is None else best[1]]
    else:
        found = [curve.last(one.metric) for one in wanted]
    finite = [one for one in found if one is not None and math.isfinite(one)]
    return finite if len(finite) == len(wanted) else None


def _suggest(trial: optuna.Trial, key: str, distribution: Any) -> Any:
    """Return the value of a key; a number rounded to what a person reads, between its bounds."""
    if not hasattr(distribution, "low"):
        return trial.suggest_categorical(key, distribution.choices)
    low, high, log = distribution.low, distribution.high, distribution.log
    if isinstance(low, int):
        return trial.suggest_int(key, low, high, log=log)
    return _rounded(trial.suggest_float(key, low, high, log=log), distribution)


def _rounded(value: float, distribution: Any) -> float:
    low, high = distribution.low, distribution.high
    if isinstance(low, int):
        return value
    digits = DIGITS + max(0, int(math.log10(max(abs(low), abs(high)) / (high - low))))
    return float(min(max(float(f"{value:.{digits}g}"), low), high))


def _sampler(name: str, seed: int) -> optuna.samplers.BaseSampler:
    from optuna import samplers

    if name == "random":
        return samplers.RandomSampler(seed=seed)
    if name == "gp":
        return samplers.GPSampler(seed=seed)
    return samplers.TPESampler(seed=seed, multivariate=True, group=True, constant_liar=True)
