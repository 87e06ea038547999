"""The end of a run that falls behind the others of its search, as its spec's ``prune`` says.

A run is judged by the best value of its objective so far, beside that of the others at the same
step: of those that are over as of those that run. Nobody waits for the others.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from hashlib import sha256

from hpcrun import shared_look
from hpcrun.errors import BrokenFile
from hpcrun.feature import Enough
from hpcrun.features.point_search import study
from hpcrun.run.protocol.output import say
from hpcrun.slurm.background import BackgroundCall
from hpcrun.state import ledger, plan_file, session_log
from hpcrun.state.layout import AttemptPaths, RunPaths
from hpcrun.state.plan import SEARCH, RunPlan

# Seconds between two looks: a tenth of the attempt's age, between these two.
_LEAST, _EVERY, _OF_AGE = 1.0, 10.0, 0.1
# Others that a median needs, and the share of its steps that a run makes in any case.
_MEDIAN_OF, _IN_ANY_CASE = 5, 10
# One of so many goes on at each of the steps: these parts of all.
_OF_THREE, _PARTS = 3, (27, 9, 3)
# Of so many runs, these many are in each bracket of Hyperband: those of the first are judged at all
# parts, those of the next not at the first one, and so on. All brackets take about as many steps
# (Li et al., JMLR 18, 2018; the shares are those of Optuna's HyperbandPruner).
_BRACKETS = [
    math.ceil((len(_PARTS) + 1) * _OF_THREE**rungs / (rungs + 1))
    for rungs in range(len(_PARTS), -1, -1)
]

# Step -> value, ascending.
Course = Sequence[tuple[int, float]]


class Pruning:
    """One attempt of a run, seen from its supervisor: see `hpcrun.feature.SupervisorPart`."""

    def __init__(self, run: RunPlan, paths: AttemptPaths, record: Callable[..., object]) -> None:
        self._run, self._paths, self._record = run, paths, record
        self._rule = run.spec[SEARCH]["prune"]
        self._population = run.spec[SEARCH].get("population")
        self._began, self._look_at = time.monotonic(), 0.0
        self._known: dict[RunPaths, Course] = {}
        self._seen, self._trials = set[int](), set[int]()
        self._has_told = self._is_over = False
        self._looking: BackgroundCall[tuple[int, str] | None] | None = None

    def begin(self) -> None:
        """Wait for steps."""

    def turn(self) -> None:
        """Look at the others now and then; raise `Enough` if this run falls behind."""
        if self._is_over or time.monotonic() < self._look_at:
            return
        if self._looking is None:
            self._looking = BackgroundCall(self._judge)
        elif self._looking.wait(0):
            done, self._looking = self._looking, None
            now = time.monotonic()
            self._look_at = now + min(_EVERY, max(_LEAST, _OF_AGE * (now - self._began)))
            try:
                found = done.result()
            except (BrokenFile, OSError) as error:
                say(f"the search's other runs are not looked at: {error}")
                return
            if found is not None:
                self._is_over = True
                step, message = found
                self._record(study.PRUNED, step=step, message=message)
                raise Enough(message)

    def end(self, seconds: float) -> None:
        """Leave a look that is under way."""

    def _judge(self) -> tuple[int, str] | None:
        mine = self._paths.run
        own, total = self._course(mine), self._total()
        # What has made its steps is about to end by itself.
        if not own or (total is not None and own[-1][0] >= total):
            return None
        if total is None and not (self._has_told or self._population):
            self._has_told = True
            say("nothing says how many steps there will be: progress.total")
        seed = self._run.spec[SEARCH]["seed"]
        first = bracket(self._run.number, seed) if self._rule == "hyperband" else 0
        if own[-1][0] < self._first_judged(total, first):
            return None
        names = (path.name for path in mine.experiment.runs_directory.iterdir())
        there = {int(name) for name in names if name.isdecimal()}
        if not there <= self._seen:
            # Others had another space or configuration.
            self._trials = {
                one.number for one in plan_file.of_search(self._run, mine.experiment).runs
            }
            self._seen = there | self._trials
        numbers = there & self._trials - {self._run.number}
        if self._rule == "hyperband":
            numbers = {number for number in numbers if bracket(number, seed) == first}
        others = [*shared_look.each(self._other, [mine.experiment.run(one) for one in numbers])]
        objective = self._run.objective
        assert objective is not None
        sign = -1.0 if objective.better == "max" else 1.0
        if self._population:
            every, share = self._population["every"], self._population["share"]
            found = lowest(own, others, every, share, sign)
        elif self._rule == "median":
            found = median(own, others, total, sign)
        else:
            found = halving(own, others, total, sign, first)
        return None if found is None else (found[0], f"{objective.metric} {found[1]}")

    def _first_judged(self, total: int | None, first: int) -> float:
        """Return the step before which the others need not be looked at."""
        if self._population:
            return float(self._population["every"])
        parts = (_IN_ANY_CASE,) if self._rule == "median" else _PARTS[first:]
        return total / parts[0] if parts and total is not None else math.inf

    def _other(self, run: RunPaths) -> Course:
        if run in self._known:
            return self._known[run]
        is_over, course = ledger.intent(run) is not None, self._course(run)
        if is_over:
            self._known[run] = course
        return course

    def _course(self, run: RunPaths) -> Course:
        from hpcrun.observe.read import metric_curves

        assert self._run.objective is not None
        return metric_curves.read(run).values(self._run.objective.metric)

    def _total(self) -> int | None:
        return self._run.progress.total or session_log.read(self._paths).total_steps


def best_at(course: Course, step: int, sign: float) -> float | None:
    """Return the best value until a step, times ``sign``: the least; None if it came not so far."""
    if not course or course[-1][0] < step:
        return None
    finite = [sign * value for at, value in course if at <= step and math.isfinite(value)]
    return min(finite, default=math.inf)


def median(
    own: Course, others: Sequence[Course], total: int | None, sign: float
) -> tuple[int, str] | None:
    """Return the step and what is wrong where a run is worse than half of the others.

    That is the furthest of its steps that five others have come to.
    """
    from statistics import median as middle_of

    reached = sorted((course[-1][0] for course in others if course), reverse=True)
    if total is None or len(reached) < _MEDIAN_OF:
        return None
    step = min(own[-1][0], reached[_MEDIAN_OF - 1])
    mine = best_at(own, step, sign)
    theirs = [one for course in others if (one := best_at(course, step, sign)) is not None]
    if step * _IN_ANY_CASE < total or mine is None or mine <= (middle := middle_of(theirs)):
        return None
    text = f"{sign * mine:.6g} at step {step}, and the median of {len(theirs)} is"
    return step, f"{text} {sign * middle:.6g}"


def halving(
    own: Course, others: Sequence[Course], total: int | None, sign: float, first: int = 0
) -> tuple[int, str] | None:
    """Return the step and what is wrong where a run is not among the best third of a rung.

    ``first`` is how many rungs are left out.
    """
    for part in reversed(_PARTS[first:]) if total is not None else ():
        step = math.ceil((total or 0) / part)
        mine = best_at(own, step, sign)
        if mine is None:
            continue
        theirs = [one for course in others if (one := best_at(course, step, sign)) is not None]
        count = len(theirs) + 1
        rank = 1 + sum(one < mine for one in theirs)
        if count < _OF_THREE or rank <= count // _OF_THREE:
            return None
        return step, f"{sign * mine:.6g} at step {step} is number {rank} of {count}"
    return None


def lowest(
    own: Course, others: Sequence[Course], every: int, share: float, sign: float
) -> tuple[int, str] | None:
    """Return the step and what is wrong where a run is among the worst share of a population.

    The step is the last multiple of ``every`` that it has come to; runs are compared by their last
    values until there, since each goes on from where another was. A run that began there has none.
    """
    step = own[-1][0] // every * every
    mine = last_at(own, step, sign)
    if mine is None:
        return None
    theirs = [one for course in others if (one := last_at(course, step, sign)) is not None]
    count = len(theirs) + 1
    # Of equals none is worse: a metric may have come to its bound.
    rank = 1 + sum(one < mine for one in theirs)
    is_last = math.isinf(mine) and rank > 1
    if rank <= count - int(share * count) and not is_last:
        return None
    return step, f"{sign * mine:.6g} at step {step} is number {rank} of {count}"


def last_at(course: Course, step: int, sign: float) -> float | None:
    """Return the last value until a step, times ``sign``; None if there is none, or it goes on."""
    if not course or course[-1][0] < step or course[0][0] > step:
        return None
    value = next(value for at, value in reversed(course) if at <= step)
    return sign * value if math.isfinite(value) else math.inf


def bracket(number: int, seed: int) -> int:
    """Return which of Hyperband's brackets a run is in, drawn by its number: rungs left out."""
    drawn = int(sha256(f"{seed}:{number}".encode()).hexdigest(), 16) % sum(_BRACKETS)
    found = 0
    while drawn >= _BRACKETS[found]:
        drawn -= _BRACKETS[found]
        found += 1
    return found
