"""``--only``: choose among the runs that could be submitted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from hpcrun.errors import UsageError
from hpcrun.observe.read.expression import split_words
from hpcrun.observe.read.filter import Facts, narrow
from hpcrun.observe.read.selection import Finder, is_job
from hpcrun.observe.status import jobs
from hpcrun.observe.status.run_state import PLANNED
from hpcrun.observe.status.status import statuses
from hpcrun.slurm.hostlist import parse_ranges
from hpcrun.state import history, ledger
from hpcrun.state.annotation_log import NOTHING, Annotation
from hpcrun.state.layout import ExperimentPaths
from hpcrun.state.plan import RunPlan
from hpcrun.submission.submit import Only
from hpcrun.text import Say, ranges, shortened

_RUNS = re.compile(r"[^/]+/[0-9*?\[\],-]+")
_NUMBERS = re.compile(r"[0-9]+[0-9,-]*")

NEW, FAILED, CANCELLED = STATES = ("new", "failed", "cancelled")


@dataclass(frozen=True)
class _Candidate:
    name: str
    run: RunPlan
    annotation: Annotation
    planned: object = None


@dataclass(frozen=True)
class _NeverBegun:
    """The facts of a run that was never submitted."""

    state: str = PLANNED
    last_cause: str | None = None
    attempt: int | None = None
    step: int | None = None
    metrics: dict[str, float] | None = None
    age: float | None = None


_NEVER_BEGUN = _NeverBegun()


def chooser(words: Sequence[str], say: Say) -> Only:
    """Return the function that chooses runs, from what is on disk.

    ``words`` are ``new`` (never begun), ``failed`` (begun and not completed), ``cancelled``, runs
    (``NAME/3``, ``*/0-3``, job ids) and conditions as for ``--where``; anything else raises
    UsageError. A run must meet all conditions, and have one of the states and one of the names.
    """
    states = {word for word in words if word in STATES}
    names, conditions = split_words([word for word in words if word not in STATES])
    for word in names:
        if not (_RUNS.fullmatch(word) or is_job(word)):
            parts = word.split(",")
            hint = "such as --only failed, --only lr=3e-4, --only 'lr>=1e-3 and not seed=2'"
            if set(parts) <= set(STATES):
                hint = f"type {' '.join(f'--only {part}' for part in parts)}"
            elif _NUMBERS.fullmatch(word):
                hint = f"type --only '*/{word}'"
            raise UsageError(
                f"--only {shortened(word, 200)!r}: accepted are {', '.join(STATES)}, key=value and "
                "other conditions, NAME/3 and job ids",
                hint=hint,
            )

    def choose(experiment: ExperimentPaths, runs: Sequence[RunPlan]) -> set[int]:
        def look(some: Sequence[_Candidate], values: bool) -> list[Facts]:
            known = {one.run.number: one for one in Finder(experiment.root).runs(experiment)}
            begun = [known[one.run.number] for one in some if one.run.number in known]
            facts = {one.run: one for one in statuses(begun, warn=say, ask=jobs.ask, values=values)}
            return [facts.get(one.run.number, _NEVER_BEGUN) for one in some]

        known = history.annotations_of(experiment, runs)
        found = [
            _Candidate(f"{experiment.name}/{run.number}", run, known.get(run.number, NOTHING))
            for run in runs
        ]
        if names:
            named = {number for word in names for number in _numbers_of(word, experiment, runs)}
            found = [one for one in found if one.run.number in named]
        numbers = [one.run.number for one in narrow(found, conditions, "--only", look, say)]
        return {one for one in numbers if not states or _state(experiment, one) in states}

    return choose


def _numbers_of(word: str, experiment: ExperimentPaths, runs: Sequence[RunPlan]) -> list[int]:
    """Return the numbers that a word names; raise UsageError if it is none of the runs."""
    if is_job(word):
        jobs_of = Finder(experiment.root).resolve([word])
        found = [one.run.number for one in jobs_of if one.experiment == experiment]
    else:
        name, _, text = word.partition("/")
        try:
            spans = parse_ranges(text)
        except ValueError:
            spans = []
        found = [
            run.number
            for run in runs
            if fnmatchcase(experiment.name, name)
            and (fnmatchcase(str(run.number), text) or any(run.number in span for span in spans))
        ]
    if not found:
        there = f"{experiment.name}/{','.join(ranges(run.number for run in runs))}"
        raise UsageError(f"--only {word!r} is none of the runs of the spec: {there}")
    return found


def _state(experiment: ExperimentPaths, run: int) -> str:
    paths = experiment.run(run)
    if ledger.intent(paths) == ledger.CANCELLED:
        return CANCELLED
    return FAILED if paths.directory.is_dir() else NEW
