"""The values that a run of a search was given as it started, ``point/point.json`` of its directory.

Until then its plan has none: it knows only how they are chosen, under `SEARCH` in its spec.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcrun import shared_look
from hpcrun.fields import INDEX, MAPPING, TEXT, Kinds, mapping, wrong
from hpcrun.shared_dataclass import asdict, dataclass, replace
from hpcrun.state import files
from hpcrun.state.layout import ExperimentPaths, RunPaths
from hpcrun.state.plan import SEARCH, Plan, RunPlan
from hpcrun.state.role_plan import Entry
from hpcrun.state.spec.blocks import SpecBlocks

_KINDS: Kinds = {
    **dict.fromkeys(("swept", "spec", "entry"), MAPPING),
    "label": TEXT,
    "parent": mapping({"run": INDEX, "step": INDEX, "checkpoint": TEXT}),
}


@dataclass(frozen=True)
class ChosenPoint:
    """What a run of a search has instead of what its plan has."""

    label: str
    swept: dict[str, Any]
    spec: dict[str, Any]
    """The parts of the spec that changed."""
    entry: Entry
    parent: dict[str, Any] | None = None
    """Of a trial that begins from another: that ``run``, its ``checkpoint`` and ``step``."""

    def apply_to(self, run: RunPlan) -> RunPlan:
        """Return the run with its values."""
        spec = {**run.spec, **self.spec}
        if self.parent is not None:
            spec[SEARCH] = {**run.spec[SEARCH], "parent": "{run}@{step}".format(**self.parent)}
        return replace(run, label=self.label, swept=self.swept, spec=spec, entry=self.entry)


def calls_for(form: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Check whether a point with these values has the key of a form of its search's space."""
    conditions = form.get("when", {}).items()
    return all(name in values and is_among(values[name], these) for name, these in conditions)


def is_among(value: Any, values: Sequence[Any]) -> bool:
    """Check whether a value is one of several as a spec writes them: true is not 1."""
    return json.dumps(value) in map(json.dumps, values)


def fits(space: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Check whether a point has the keys that a search's space calls for, and no others."""
    return {key for key, form in space.items() if calls_for(form, values)} == values.keys()


def is_open(run: RunPlan, paths: RunPaths) -> bool:
    """Check whether a run has yet to be given its values."""
    return SEARCH in run.spec and read(paths) is None


def read(run: RunPaths) -> ChosenPoint | None:
    """Return the point of a run; None if it was given none, or it cannot be read."""
    try:
        found = files.read_json(run.point)
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict) or wrong(found, _KINDS, _KINDS.keys() - {"parent"}):
        return None
    with contextlib.suppress(LookupError, TypeError, AttributeError, ValueError):
        return ChosenPoint(**{**found, "entry": Entry.from_data(found["entry"])})
    return None


def parent_of(run: SpecBlocks) -> str | None:
    """Return the run and step from which a run of a search began, as ``3@200``; None if anew."""
    found: str | None = (run.spec.get(SEARCH) or {}).get("parent")
    return found


def write(
    run: RunPaths, point: ChosenPoint, fill: Callable[[Path], object] = lambda directory: None
) -> None:
    """Write the point of a run, unless it has one: the first one stays.

    ``fill`` puts more into its directory, which appears with the point. What it raises is raised.
    """
    data = asdict(point)
    if point.parent is None:
        del data["parent"]  # An earlier hpcrun, by which jobs of the same search may run.
    _put(run.point, data, fill)
    import shutil  # not for commands that only read

    # What a kill left may be a large checkpoint's last link.
    for rest in run.point.parent.parent.glob(f".{run.point.parent.name}.*.tmp"):
        shutil.rmtree(rest, ignore_errors=True)


def take(experiment: ExperimentPaths, number: int, values: Mapping[str, Any]) -> bool:
    """Take values for a run, before it is given them; return False if they are another's.

    Of those who ask for the same at once one gets them. A run that was cut off takes them again.
    """
    digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
    place = experiment.points / digest[:32] / f"{number}.json"
    return _put(place, values) or shared_look.is_there(place)


def _put(file: Path, data: Any, fill: Callable[[Path], object] = lambda directory: None) -> bool:
    """Write a file whose directory is not there yet; return False if it is, and leave it alone.

    It appears whole, by a rename, which fails where there is a directory that holds a file.
    """
    import shutil  # not for commands that only read

    place = file.parent
    place.parent.mkdir(parents=True, exist_ok=True)
    new = place.parent / f".{place.name}.{os.urandom(4).hex()}.tmp"
    new.mkdir()
    try:
        fill(new)
        files.write_json(new / file.name, data)
        new.rename(place)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) and not shared_look.is_there(file):
            raise
        return False
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return True


def apply_points(plan: Plan, experiment: ExperimentPaths) -> Plan:
    """Return a plan, if it is of a search with the points that its runs have by now."""
    if not any(SEARCH in run.spec for run in plan.runs):
        return plan

    def look(run: RunPlan) -> RunPlan:
        point = read(experiment.run(run.number)) if SEARCH in run.spec else None
        return run if point is None else point.apply_to(run)

    return replace(plan, runs=tuple(shared_look.each(look, plan.runs)))
