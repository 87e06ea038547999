"""What runs cost: GPU-hours (of runs without GPUs, CPU-hours) by run, experiment and cause.

Pure: `hpcrun.observe.diagnosis.attempts` reads the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpcrun.observe.diagnosis.goodput import Goodput, Span
from hpcrun.state.plan import RunPlan

GPU = "GPU-hours"
CPU = "CPU-hours"

# Kinds of time that a cause is charged with.
_LOST = ("replayed", "startup", "restore", "idle")


@dataclass(frozen=True)
class Cost:
    """The hours of a run, or of several.

    Attributes
    ----------
    experiment
        Its name.
    run
        The run's number; None of a sum.
    unit
        `GPU` or `CPU`.
    hours
        GPU-hours of each kind. Those queued and stopped are what the run would have had, had it
        held its nodes; nobody pays for them.
    causes
        Kind of end -> the hours in the allocation that it cost: idle after it, starting and
        restoring after it, and steps done over again.
    """

    experiment: str
    unit: str
    hours: Goodput
    causes: dict[str, float] = field(default_factory=dict)
    run: int | None = None

    @property
    def paid(self) -> float:
        """Hours in which nodes were held."""
        return self.hours.allocated

    @property
    def share(self) -> float:
        """The useful part of those; 0 of none."""
        return self.hours.useful / self.paid if self.paid else 0.0

    def to_data(self) -> dict[str, Any]:
        """Plain data, hours to a thousandth."""
        parts = {name: round(value, 3) for name, value in vars(self.hours).items()}
        return {
            "experiment": self.experiment,
            "run": self.run,
            "unit": self.unit,
            "paid": round(self.paid, 3),
            **parts,
            "share": round(self.share, 4),
            "causes": {kind: round(value, 3) for kind, value in self.causes.items()},
        }


def of_run(
    experiment: str, plan_of: Callable[[int | None], RunPlan], spans: Sequence[Span]
) -> Cost:
    """The hours of one run, spare nodes included.

    Parameters
    ----------
    plan_of
        Gives the plan that an attempt was of, and of None the newest, which says what is counted.
    """
    newest = plan_of(None)
    unit = GPU if _devices(newest, GPU) else CPU
    hours = Goodput()
    causes: dict[str, float] = {}
    for span in spans:
        value = span.seconds / 3600 * _devices(plan_of(span.attempt), unit)
        setattr(hours, span.kind, getattr(hours, span.kind) + value)
        if span.cause and span.kind in _LOST:
            causes[span.cause] = causes.get(span.cause, 0.0) + value
    return Cost(experiment, unit, hours, causes, newest.number)


def _devices(plan: RunPlan, unit: str) -> int:
    resources = plan.spec["resources"]
    if unit == GPU:
        return plan.all_nodes * int(resources.get("gpus_per_node") or 0)
    return plan.all_nodes * plan.ranks_per_node * int(resources.get("cpus_per_task") or 1)


def totals(costs: Iterable[Cost]) -> list[Cost]:
    """One for each experiment and unit, in the order of first appearance."""
    found: dict[tuple[str, str], Cost] = {}
    for cost in costs:
        key = (cost.experiment, cost.unit)
        total = found.setdefault(key, Cost(cost.experiment, cost.unit, Goodput()))
        total.hours.add(cost.hours)
        for kind, value in cost.causes.items():
            total.causes[kind] = total.causes.get(kind, 0.0) + value
    return list(found.values())
