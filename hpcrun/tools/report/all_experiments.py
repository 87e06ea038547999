"""The page of all experiments: their hours, money and causes of failure, by month and by user."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hpcrun.observe.diagnosis import attempts
from hpcrun.observe.diagnosis.attempts import CauseGroup, RunStory
from hpcrun.observe.diagnosis.cost import Cost, CostsOfRuns
from hpcrun.observe.diagnosis.goodput import WORDS
from hpcrun.observe.read.expression import split_words
from hpcrun.observe.read.selection import Selected
from hpcrun.state import history
from hpcrun.text import Say, plural
from hpcrun.tools.report import svg

ALL = "*"
# Of more experiments a report has no room for curves.
MOST_IN_FULL = 20
SCRIPTS = ("tables.js", "all_experiments.js")


class ExperimentFacts(NamedTuple):
    """What the page says of an experiment besides its cost."""

    user: str
    submitted: float | None
    """Seconds since the epoch."""
    states: str


class CauseRow(NamedTuple):
    """What one cause of bad ends did."""

    kind: str
    runs: int
    """Runs that it keeps from their completion."""
    hours: str
    share: str
    """The part of the paid hours that it cost, of each kind of device."""
    message: str


@dataclass(frozen=True)
class AllExperiments:
    """All that the page shows. Costs are totals, one for each name and kind of device."""

    made: float
    """The time of collection, in seconds since the epoch."""
    runs: int
    in_all: list[Cost]
    months: list[Cost]
    experiments: list[Cost]
    users: list[Cost]
    facts: dict[str, ExperimentFacts]
    states: Counter[str]
    causes: list[CauseRow]
    silent: int
    """Runs of which nothing tells where their time went."""

    @property
    def is_priced(self) -> bool:
        """Some hours have a price."""
        return any(one.money is not None for one in (*self.in_all, *self.experiments))


def is_wanted(where: Sequence[str], selected: Sequence[Selected]) -> bool:
    """Check whether a report of this WHERE and its runs is the page of all."""
    count = len({one.experiment for one in selected})
    return split_words(where)[0] == [ALL] or count > MOST_IN_FULL


def collect(selected: Sequence[Selected], *, say: Say = lambda message: None) -> AllExperiments:
    """Read the attempts of all runs; ``say`` is called with a message if Slurm does not answer."""
    now = time.time()
    stories = attempts.stories(selected, warn=say)
    costs = CostsOfRuns(stories, now)
    facts = _facts(stories)
    in_all = costs.in_all()
    return AllExperiments(
        made=now,
        runs=len(stories),
        in_all=in_all,
        months=costs.totals("month"),
        experiments=_most_first(costs.totals("experiment")),
        users=_most_first(costs.totals("user")),
        facts=facts,
        states=Counter(story.status.state for story in stories),
        causes=_causes(in_all, attempts.grouped(stories)),
        silent=costs.silent,
    )


def _most_first(totals: Iterable[Cost]) -> list[Cost]:
    return sorted(totals, key=lambda one: -one.paid)


def _facts(stories: Sequence[RunStory]) -> dict[str, ExperimentFacts]:
    runs: dict[str, list[RunStory]] = {}
    for story in stories:
        runs.setdefault(story.selected.experiment.name, []).append(story)
    found = {}
    for name, those in runs.items():
        submitted = history.last_submission(those[0].selected.experiment).time
        states = Counter(story.status.state for story in those).most_common()
        found[name] = ExperimentFacts(
            user=", ".join(sorted({story.user for story in those})),
            submitted=submitted or None,
            states=", ".join(f"{count} {state}" for state, count in states),
        )
    return found


def _causes(in_all: Sequence[Cost], groups: Sequence[CauseGroup]) -> list[CauseRow]:
    """Return the causes, those that cost most first."""
    runs: Counter[str] = Counter()
    messages: dict[str, str] = {}
    for group in groups:
        if group.kind != attempts.CANCELLED:
            runs[group.kind] += len(group.runs)
            messages.setdefault(group.kind, group.example.message)
    hours: Counter[str] = Counter()
    for total in in_all:
        hours.update(total.causes)
    rows = []
    for kind in sorted({*runs, *hours}, key=lambda kind: (-hours[kind], -runs[kind], kind)):
        lost = [total for total in in_all if kind in total.causes]
        told = ", ".join(f"{one.causes[kind]:,.1f} {one.unit}" for one in lost)
        share = ", ".join(f"{one.causes[kind] / one.paid:.1%}" for one in lost if one.paid)
        rows.append(CauseRow(kind, runs[kind], told, share, messages.get(kind, "")))
    return rows


def content(found: AllExperiments) -> dict[str, Any]:
    """Return what templates/report/all_experiments.html.j2 shows."""

    def table(name: str, totals: Sequence[Cost]) -> dict[str, Any]:
        most = max((one.paid for one in totals), default=0.0) or 1.0
        return {
            "name": name,
            "rows": [
                {
                    "cost": one,
                    "facts": found.facts.get(one.experiment) if name == "experiment" else None,
                    "lost": sum(one.causes.values()),
                    "most": max(one.causes, key=lambda kind: one.causes[kind], default=""),
                    "bar": svg.shares(f"Where the time of {one.experiment} went", _paid(one), most),
                }
                for one in totals
            ],
        }

    notes = [
        "Hours are those in which nodes were held, of GPUs; of runs without GPUs, of CPUs. Months "
        "are in this machine's local time.",
        "Prices are those of the cluster profiles that runs were submitted with; where some hours "
        "of a row have none, it has no money.",
        "Lost is what bad ends cost: idle nodes after them, starting and restoring again, and "
        "steps that were lost or done over again.",
    ]
    if found.silent:
        notes.append(
            f"Where the time went is not known of {plural(found.silent, 'run', ',')}, which log "
            "nothing."
        )
    paid = {kind for one in found.in_all for kind, _ in _paid(one)}
    tables = [("month", found.months), ("user", found.users), ("experiment", found.experiments)]
    return {
        "all_experiments": found,
        "tables": [table(name, totals) for name, totals in tables],
        "users": sorted({one.experiment for one in found.users}),
        "kinds": {kind: text for kind, text in WORDS.items() if kind in paid},
        "notes": notes,
    }


def _paid(one: Cost) -> list[tuple[str, float]]:
    free = ("queued", "stopped")
    return [(kind, value) for kind, value in vars(one.hours).items() if kind not in free and value]
