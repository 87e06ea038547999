"""Population-based training: a later trial goes on from a checkpoint of one of the best runs.

It asks as it starts. Its parent is drawn from the best runs by the objective at their newest
checkpoints, and its values are the parent's, changed. All of that follows from the record and the
trial's number, and is written at once, with the checkpoint: `inherited`.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from hpcrun import shared_look
from hpcrun.errors import BrokenFile, HpcrunError
from hpcrun.feature import NotWanted
from hpcrun.features.point_search import inherited, study
from hpcrun.shared_dataclass import replace
from hpcrun.state import chosen_point, ledger, manifest, plan_file, session_log
from hpcrun.state.chosen_point import ChosenPoint, calls_for, fits
from hpcrun.state.layout import ExperimentPaths, RunPaths
from hpcrun.state.manifest import Manifest
from hpcrun.state.plan import SEARCH, RunPlan
from hpcrun.text import listed

ANEW = "none"
# By one of these a number is multiplied.
_FACTORS = (0.8, 1.25)
# Tries at a parent whose checkpoint is still there, and at values that no other took.
_TRIES = 20

# Name -> a number between 0 and 1, the same each time.
Drawn = Callable[[str], float]


class Parent(NamedTuple):
    """A run from which another may go on."""

    run: RunPlan
    checkpoint: Path
    entry: Manifest


def give(run: RunPlan, experiment: ExperimentPaths) -> None:
    """Give a run its values: those of `begin`, or else drawn as in any search."""
    from hpcrun.compile.sweep.late_run import complete

    parent = begin(run, experiment)
    if parent in (None, ANEW):
        point = complete(run, study.choose(run, experiment))
        point = name_parent(point, parent) if parent else point
        chosen_point.write(experiment.run(run.number), point)


def begin(run: RunPlan, experiment: ExperimentPaths) -> str | None:
    """Give a run the values and the checkpoint of a parent; return that run and step, ``3@200``.

    None for the first of a population; `ANEW` for a later one before whose start no run has saved.
    These are given nothing. Raises NotWanted if no run has the steps left that a trial is to make.
    """
    from hpcrun.compile.sweep.late_run import complete

    search, paths = run.spec[SEARCH], experiment.run(run.number)
    population = search["population"]
    plan = plan_file.of_search(run, experiment)
    place = [one.number for one in plan.runs].index(run.number)
    if place < max(population["size"], len(search["first"])):
        return None
    gone: dict[Path, str] = {}
    for attempt in range(_TRIES):
        drawn = functools.partial(_draw, f"{search['seed']}:{run.number}:{attempt}")
        others = [one for one in plan.runs if one.number != run.number]
        if not (found := best(others, experiment, run, gone)):
            if gone:
                break
            return ANEW
        parent = found[int(drawn("parent") * len(found))]
        values = perturb(search["space"], parent.run.swept, drawn, population["resample"])
        number, step = parent.run.number, parent.entry.step
        origin = {"run": number, "step": step, "checkpoint": parent.checkpoint.name}
        name = f"{number}@{step}"
        # Two that ask at once would be alike; where there is nothing else they are.
        taken = {**values, "parent": name}
        if not chosen_point.take(experiment, run.number, taken) and attempt < _TRIES - 1:
            continue
        point = replace(name_parent(complete(run, values), name), parent=origin)
        link = functools.partial(inherited.link, parent.checkpoint, parent.entry)
        try:
            chosen_point.write(paths, point, link)
        except inherited.NotThere as error:  # removed meanwhile: there is a newer one
            gone[parent.checkpoint] = error.message
            continue
        return name
    raise HpcrunError(
        f"there is no checkpoint to go on from: {listed([*gone.values()], 3)}",
        hint="checkpoint.keep keeps more of them; hpcrun requeue tries again",
    )


def name_parent(point: ChosenPoint, parent: str) -> ChosenPoint:
    """Return a point whose label names the parent."""
    return replace(point, label=f"{point.label},parent={parent}")


def best(
    others: Sequence[RunPlan],
    experiment: ExperimentPaths,
    run: RunPlan,
    gone: Collection[Path] = (),
) -> list[Parent]:
    """Return the best share of the runs that have a checkpoint to go on from, the best first.

    Those ``gone`` are left out. Raises NotWanted if those that there are leave too few steps.
    """
    population, objective = run.spec[SEARCH]["population"], run.objective
    assert objective is not None
    sign = -1.0 if objective.better == "max" else 1.0

    def look(other: RunPlan) -> Parent | int:
        paths = experiment.run(other.number)
        point = chosen_point.read(paths)
        if point is None or not fits(run.spec[SEARCH]["space"], point.swept):
            return 0
        last = ledger.read(paths)[-1:]
        intent = ledger.intent(paths)
        if intent != ledger.FINISHED and (intent is not None or not study.goes_on(last)):
            return 0
        total, reached = other.progress.total or _total(paths), 0
        for directory, entry in manifest.scan(paths.checkpoints):
            if not isinstance(entry, Manifest) or directory in gone:
                continue
            if objective.metric not in entry.metrics:
                continue
            if total is None or entry.step + population["every"] <= total:
                return Parent(point.apply_to(other), directory, entry)
            reached = max(reached, entry.step)
        return reached

    looks = [*shared_look.each(look, others)]
    found = [one for one in looks if isinstance(one, Parent)]
    ended_at = max((one for one in looks if isinstance(one, int)), default=0)
    if not found and ended_at:
        raise NotWanted(
            f"the population is at its end: no checkpoint leaves {population['every']} steps to "
            f"go on from (the furthest is of step {ended_at})"
        )
    # What a run began with tells nothing of its own values.
    own = [one for one in found if one.entry.attempt != manifest.INHERITED]
    found = own or found
    found.sort(key=lambda one: sign * one.entry.metrics[objective.metric])
    return found[: math.ceil(population["share"] * len(found))]


def _total(run: RunPaths) -> int | None:
    """Return how many steps there will be, as the newest attempt says that knows it."""
    for attempt in reversed(run.attempts()):
        with contextlib.suppress(BrokenFile):
            if (found := session_log.read(attempt).total_steps) is not None:
                return found
    return None


def perturb(
    space: Mapping[str, Any], values: Mapping[str, Any], drawn: Drawn, resample: float
) -> dict[str, Any]:
    """Return a parent's values, each changed or drawn anew."""
    from hpcrun.compile.sweep import placed_points

    point: dict[str, Any] = {}
    for key, form in space.items():
        if not calls_for(form, point):
            continue
        found = None
        if key in values and drawn(f"{key}:anew") >= resample:
            found = _moved(form, values[key], drawn(f"{key}:up") < 1 / 2)
        point[key] = placed_points.value_at(form, drawn(key)) if found is None else found[0]
    return point


def _moved(form: Mapping[str, Any], value: Any, is_up: bool) -> tuple[Any] | None:
    """Return a value's neighbour, on the other side at a bound; None of one that has none."""
    (name, bounds), *_ = form.items()
    for up in (is_up, not is_up):
        if name == "choice":
            at = [chosen_point.is_among(value, [one]) for one in bounds].index(True)
            if 0 <= at + (1 if up else -1) < len(bounds):
                return (bounds[at + (1 if up else -1)],)
            continue
        moved = value * _FACTORS[up]
        if name.startswith("int"):
            moved = max(round(moved), value + 1) if up else min(round(moved), value - 1)
        else:
            moved = float(f"{moved:.{study.DIGITS}g}")
        moved = min(max(moved, bounds[0]), bounds[1])
        if moved != value:
            return (moved,)
    return None


def _draw(seed: str, name: str) -> float:
    """Return a number between 0 and 1 that follows from two texts alone."""
    from hpcrun.compile.sweep.draws import inside

    return inside(int(sha256(f"{seed}:{name}".encode()).hexdigest(), 16) / (1 << 256))
