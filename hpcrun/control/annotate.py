"""Put tags and notes on runs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from hpcrun.observe.read.selection import Selected
from hpcrun.state import annotation_log, history, permissions
from hpcrun.state.annotation_log import NOTHING
from hpcrun.state.layout import ExperimentPaths


def annotate(
    selected: Sequence[Selected], whole: Collection[ExperimentPaths], verb: str, **change: Any
) -> list[Selected]:
    """Append a change for runs, and return them as they are now.

    ``whole`` are experiments all of whose runs it is about, those to come too. ``verb`` is for
    messages. Raises UsageError, before anything is changed, if one of them is somebody else's who
    lets nobody do that.
    """
    runs: dict[ExperimentPaths, list[Selected]] = {}
    for one in selected:
        runs.setdefault(one.experiment, []).append(one)
    for experiment in runs:
        annotation_log.check_writable(experiment, verb)
    found = {}
    for experiment, these in runs.items():
        permissions.use_profile(these[0].plan.cluster)
        numbers = None if experiment in whole else [one.run.number for one in these]
        annotation_log.append(experiment, numbers, **change)
        found[experiment] = history.read(experiment).annotations
    return [
        replace(one, annotation=found[one.experiment].get(one.run.number, NOTHING))
        for one in selected
    ]
