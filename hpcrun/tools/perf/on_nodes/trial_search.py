"""The search for the fastest candidate: which trial comes next, and when one ends. Pure.

All candidates are screened with a few steps, those that are much slower than the best with one.
Those that need more memory than one that ran out of it are left out, and those that lie beyond two
slow ones. The best ones are measured again, in turn and back, so that a machine that changes its
pace does so for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hpcrun.tools.perf.on_nodes import trial_log
from hpcrun.tools.perf.on_nodes.trial_log import (
    FINAL,
    OUT_OF_MEMORY,
    SCREEN,
    TrialPlan,
    TrialRecord,
)
from hpcrun.tools.perf.on_nodes.trial_log import TrialScore as Score

# The part of the time after which no more candidates are screened.
_SCREENED = 0.75
# So much slower than what ends a trial early, no candidate becomes the fastest.
_FAR = 1.5


@dataclass(frozen=True)
class Trial:
    """A candidate's place in the plan, and the round."""

    candidate: int
    round: str


def next_trial(plan: TrialPlan, records: Sequence[TrialRecord], elapsed: float) -> Trial | None:
    """Return the next trial; None if the search is over.

    Parameters
    ----------
    records
        Of the trials so far.
    elapsed
        Seconds since the first trial began.
    """
    scores = trial_log.scores(records, len(plan.candidates))
    in_finals = any(one.round == FINAL for one in records)
    if elapsed < _SCREENED * plan.seconds and not in_finals:
        for place, score in enumerate(scores):
            if not score.records and reason_to_skip(plan, scores, place) is None:
                return Trial(place, SCREEN)
    if elapsed >= plan.seconds:
        return None
    finalists = _finalists(plan, scores)
    for number in range(plan.final_rounds):
        for place in finalists if number % 2 == 0 else reversed(finalists):
            if sum(one.round == FINAL for one in scores[place].records) <= number:
                return Trial(place, FINAL)
    return None


def goes_on(
    plan: TrialPlan, records: Sequence[TrialRecord], trial: Trial, steps: Sequence[float]
) -> bool:
    """Check whether a trial makes one more step after these measured ones."""
    if trial.round == FINAL:
        return len(steps) < plan.final_steps
    return not is_slower(plan, records, steps) and len(steps) < plan.screen_steps


def is_slower(plan: TrialPlan, records: Sequence[TrialRecord], steps: Sequence[float]) -> bool:
    """Check whether the fastest of these steps is much slower than the best candidate's."""
    found = trial_log.scores(records, len(plan.candidates))
    times = [one.step_seconds for one in found if one.step_seconds is not None]
    return bool(steps) and min(steps) > plan.slower * min(times, default=math.inf)


def reason_to_skip(plan: TrialPlan, scores: Sequence[Score], place: int) -> str | None:
    """Return why a candidate need not be tried, from the trials of those that are alike.

    Either one with a smaller micro batch ran out of memory; or two with larger ones (or smaller
    ones) were much slower than the best, the nearer one more so. None: it is to be tried.
    """
    own = plan.candidates[place]
    line = {
        candidate.micro: score
        for candidate, score in zip(plan.candidates, scores, strict=True)
        if candidate.alike == own.alike and score.records
    }
    for micro in sorted(line):
        failure = line[micro].failure
        if failure is not None and failure.kind == OUT_OF_MEMORY and micro <= own.micro:
            return f"with a micro batch of {micro} it ran out of memory"
    above = sorted(micro for micro in line if micro > own.micro)
    below = sorted((micro for micro in line if micro < own.micro), reverse=True)
    for side in (above, below):
        slow = [line[micro].step_seconds for micro in side[:2] if line[micro].is_slower]
        times = [one for one in slow if one is not None]
        if len(times) == 2 and times[0] > times[1]:
            found = " and ".join(map(str, side[:2]))
            return f"with micro batches of {found} it was slower, and the more so"
    return None


def _finalists(plan: TrialPlan, scores: Sequence[Score]) -> list[int]:
    """Return the places of the best ones by their screening, the best first, and the baseline.

    One that took much longer than the best is none, however few there are.
    """
    found = []
    for place, score in enumerate(scores):
        screened = [one.step_seconds for one in score.records if one.round == SCREEN]
        if score.failure is None and screened and screened[0] is not None:
            found.append((screened[0], place))
    longest = plan.slower * _FAR * min(found, default=(math.inf, 0))[0]
    return [
        place
        for number, (seconds, place) in enumerate(sorted(found))
        if (number < plan.finalists and seconds <= longest) or place == plan.baseline
    ]
