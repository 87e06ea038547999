"""What a spec names and a run never showed: its objective's metric, files to resume from."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from itertools import islice

from hpcrun.errors import BrokenFile
from hpcrun.observe.read import metric_curves
from hpcrun.observe.read.selection import Selected
from hpcrun.observe.status import run_state
from hpcrun.observe.status.status import RunStatus
from hpcrun.policy import resume
from hpcrun.state import metrics_file, session_log
from hpcrun.text import listed

# Seconds of an attempt after which a metric or a save should have come.
_ENOUGH = 600.0
# Runs that are read, sentences that are told, and names in one.
_MOST_READ, _MOST_TOLD, _MOST_NAMES = 10, 3, 6


def told(runs: Iterable[tuple[Selected, RunStatus]]) -> Iterator[str]:
    """Yield what to say of some of these runs, as `of_run` with the run's name."""
    suspects = (
        (one, status)
        for one, status in runs
        if _is_due(one, status) and (_is_missing(one, status) or _patterns(one))
    )
    found = (
        f"{selected.name}: {sentence}"
        for selected, status in islice(suspects, _MOST_READ)
        for sentence in of_run(selected, status)
    )
    yield from islice(found, _MOST_TOLD)


def of_run(selected: Selected, status: RunStatus) -> Iterator[str]:
    """Yield a sentence on each thing that a run has not shown although it should have by now."""
    if not _is_due(selected, status):
        return
    metric = _metric(selected)
    if _is_missing(selected, status):
        with contextlib.suppress(BrokenFile):
            names = metric_curves.read(selected.paths).names
            if metric not in names and (names or status.state == run_state.COMPLETED):
                logs = f"it logs {listed(names, _MOST_NAMES)}" if names else "it logs no metric"
                yield f"the metric of the objective, {metric}, was not logged: {logs}"
    patterns = _patterns(selected)
    if patterns and _has_only_stepped(selected):
        so_far = "matched" if status.over else "has matched so far"
        yield (
            f"no file that it wrote {so_far} recovery.resume.when ({listed(patterns, 3)}), from "
            "which the next attempt would go on"
        )


def _is_due(selected: Selected, status: RunStatus) -> bool:
    """Check whether a run names something, and has run for long enough to show it."""
    if status.attempt is None or not (_metric(selected) or _patterns(selected)):
        return False
    if status.over:
        return True
    began = time.time()
    with contextlib.suppress(OSError):
        began = selected.paths.attempt(status.attempt).launch.stat().st_mtime
    return time.time() - began >= _ENOUGH


def _is_missing(selected: Selected, status: RunStatus) -> bool:
    """Check whether the objective's metric is not among the newest values."""
    metric = _metric(selected)
    return metric is not None and metric not in (status.metrics or {})


def _metric(selected: Selected) -> str | None:
    # Not through the typed view: its import would be a twentieth of `hpcrun status`.
    return (selected.run.spec.get("objective") or {}).get("metric")


def _patterns(selected: Selected) -> list[str]:
    """Return the patterns of a resume that the spec itself asks for, if its saves are watched."""
    run = selected.run
    given = (run.spec.get("recovery") or {}).get("resume")
    if not given or (run.spec.get("progress") or {}).get("saved") is not None:
        return []
    found = resume.of_run(run)
    return list(found.when) if found else []


def _has_only_stepped(selected: Selected) -> bool:
    """Check that attempts made steps and none was seen to save."""
    attempts = selected.paths.attempts()
    if any(any(session_log.read_any(one).of(session_log.SAVED)) for one in attempts):
        return False
    return any(metrics_file.last_step(one.metrics) is not None for one in attempts)
