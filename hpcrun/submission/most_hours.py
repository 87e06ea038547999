"""The most hours that runs can use, and the limit above which the user is asked first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hpcrun.compile.target import packing
from hpcrun.slurm.parse import parse_duration
from hpcrun.state.plan import Plan, RunPlan
from hpcrun.state.spec.blocks import RunSpec
from hpcrun.text import plural

if TYPE_CHECKING:
    from hpcrun.compile import Compiled
    from hpcrun.submission.submit import Request

# The key of a profile's ``confirm_above`` -> the word for it.
_UNITS = {"gpu_hours": "GPU-hours", "cpu_hours": "CPU-hours"}


def asks(cluster: Mapping[str, Any]) -> bool:
    """Check whether a profile has a limit at all."""
    return any(value is not None for value in (cluster.get("confirm_above") or {}).values())


def above_limit(runs: Iterable[tuple[RunSpec, Mapping[str, Any]]]) -> str | None:
    """Return what runs may use, if it is more than their cluster profile lets pass in silence.

    That is ``at most 640 GPU-hours; the cluster profile 'site' asks above 500
    (confirm_above.gpu_hours)``. Hours are those of one start of each run: nodes, spare ones too,
    times GPUs (of runs without any: processors) times the time limit.
    """
    hours: dict[tuple[str, str, float], float] = {}
    for run, cluster in runs:
        key = "gpu_hours" if run.all_gpus else "cpu_hours"
        limit = (cluster.get("confirm_above") or {}).get(key)
        if limit is None:
            continue
        seconds = parse_duration(run.resources.time)
        devices = run.all_gpus or run.all_cpus
        took = math.inf if seconds is None else devices * seconds / 3600
        asked = (str(cluster.get("name")), key, float(limit))
        hours[asked] = hours.get(asked, 0.0) + took
    found = [
        f"{_most(most, _UNITS[key])}; the cluster profile '{profile}' asks above {limit:,.10g} "
        f"(confirm_above.{key})"
        for (profile, key, limit), most in hours.items()
        if most > limit
    ]
    return "; ".join(found) or None


def at_once(plan: Plan) -> Iterator[RunPlan]:
    """Yield the runs of a plan; of those that share a job, whose time limit is the job's, so many
    as run at once.
    """
    left_out: set[int] = set()
    for array in plan.arrays:
        first = plan.run(array.runs[0])
        if first.pack is not None and array.packed:
            shape = packing.shape(first.pack, first.nodes, len(array.runs), array.parallel)
            left_out.update(array.runs[shape.seats :])
    yield from (run for run in plan.runs if run.number not in left_out)


def plans_above_limit(plans: Iterable[Plan]) -> str | None:
    """Return the same of the runs of plans."""
    return above_limit((run, plan.cluster) for plan in plans for run in at_once(plan))


def asks_first(chain: Sequence[Compiled], request: Request) -> tuple[str, str] | None:
    """Return what a person has to agree to, ``submit 3 runs`` and its hours; None if nothing."""
    if not any(asks(one.cluster) for one in chain):
        return None
    from hpcrun.submission.submit import preview_chain

    previews = preview_chain(chain, replace(request, say=lambda message: None))
    plans = [one.submitted for one in previews]
    if (above := plans_above_limit(plans)) is None:
        return None
    count = sum(len(plan.runs) for plan in plans)
    return f"submit {plural(count, 'run')}", above


def _most(hours: float, unit: str) -> str:
    return (
        f"{unit} without a limit of time" if math.isinf(hours) else f"at most {hours:,.10g} {unit}"
    )
