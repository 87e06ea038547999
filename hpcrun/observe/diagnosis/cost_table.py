"""What runs cost, as a person reads it."""

from __future__ import annotations

from collections.abc import Sequence

from hpcrun.observe.diagnosis.cost import Cost
from hpcrun.observe.diagnosis.goodput import WORDS
from hpcrun.observe.tables import Table


def runs(costs: Sequence[Cost]) -> Table:
    """One row a run; hours of its GPUs, or of its CPUs where it has none."""
    headers = ["RUN", "UNIT", "PAID", "USEFUL%", *(kind.upper() for kind in WORDS)]
    table = Table(headers, right=frozenset(headers[2:]), spare=("STOPPED", "QUEUED"))
    for one in costs:
        told = one.hours.wall > 0
        cells = [hours(one.paid), f"{100 * one.share:.0f}"]
        cells += [hours(getattr(one.hours, kind)) for kind in WORDS]
        name = f"{one.experiment}/{one.run}"
        table.add(name, one.unit, *(cells if told else [""] * len(cells)))
    return table


def sentences(total: Cost) -> list[str]:
    """Where the hours of an experiment went, and what each cause cost; the most first."""
    unit, paid = total.unit, total.paid
    if not total.hours.wall:
        return [f"{total.experiment}: nothing is known of where its time went"]

    def line(value: float, words: str) -> str:
        return f"  {hours(value):>9}  {100 * value / paid if paid else 0:3.0f} %  {words}"

    lines = [f"{total.experiment}: {hours(paid)} {unit}, {100 * total.share:.0f} % of them useful"]
    held = {kind: getattr(total.hours, kind) for kind in WORDS if kind not in _FREE}
    lines += [
        line(value, WORDS[kind])
        for kind, value in sorted(held.items(), key=lambda pair: -pair[1])
        if value
    ]
    lines += [
        f"  {hours(value):>9}         {WORDS[kind]} (not charged)"
        for kind in _FREE
        if (value := getattr(total.hours, kind))
    ]
    if total.causes:
        lines.append("lost to ends of attempts (idle, starting, restoring, steps over again):")
        lines += [
            line(value, cause)
            for cause, value in sorted(total.causes.items(), key=lambda pair: -pair[1])
        ]
    return lines


_FREE = ("queued", "stopped")


def hours(value: float) -> str:
    """Two decimals; of less than a hundredth three digits."""
    return f"{value:,.2f}" if value >= 0.01 or value == 0 else f"{value:.3g}"
