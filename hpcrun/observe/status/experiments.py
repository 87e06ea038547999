"""The experiments under a root, summarized for ``hpcrun list``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hpcrun.errors import UsageError
from hpcrun.observe.read import said
from hpcrun.observe.read.selection import Finder
from hpcrun.observe.status.status import statuses
from hpcrun.state import history, layout, permissions
from hpcrun.text import Say


@dataclass(frozen=True)
class Overview:
    """One experiment."""

    name: str
    directory: str
    runs: int | None
    """Number of runs; None when no plan can be read."""
    states: dict[str, int]
    """State -> number of runs."""
    submitted: float | None
    spec: str | None
    user: str | None
    """Time (seconds since the epoch), spec file and owner of the last submission."""
    problem: str | None = None
    """Why no plan can be read."""
    tags: Sequence[str] = ()
    """The tags that any of its runs has."""

    def to_data(self) -> dict[str, Any]:
        return dict(vars(self))


def overview(finder: Finder, *, warn: Say) -> list[Overview]:
    """Return all experiments under the root, newest submission first, with one query of Slurm."""
    experiments = layout.experiments(finder.root)
    selected = []
    problems: dict[str, str] = {}
    for experiment in experiments:
        try:
            selected += finder.runs(experiment)
        except UsageError as error:
            problems[experiment.name] = error.message
    counts: dict[str, Counter[str]] = {}
    for status in statuses(selected, warn=warn, values=False):
        counts.setdefault(status.experiment, Counter())[status.state] += 1
    found = []
    for experiment in experiments:
        when, uid = history.last_submission(experiment)
        states = counts.get(experiment.name, Counter())
        known = None if experiment.name in problems else finder.history(experiment)
        found.append(
            Overview(
                name=experiment.name,
                directory=str(experiment.directory),
                runs=None if known is None else len(known.runs),
                states=dict(states.most_common()),
                submitted=when or None,
                spec=known.newest.plan.spec_file if known and known.newest else None,
                user=None if uid is None else permissions.user_name(uid),
                problem=problems.get(experiment.name),
                tags=said.tags(known.annotations.values()) if known else (),
            )
        )
    return sorted(found, key=lambda one: -(one.submitted or 0))
