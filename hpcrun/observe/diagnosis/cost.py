"""The cost of runs in GPU-hours or CPU-hours, and in money: by run, cause, experiment, user, month.

Pure: `hpcrun.observe.diagnosis.attempts` reads the files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpcrun import activity, shared_look
from hpcrun.observe.diagnosis.goodput import WORDS, Goodput, Span
from hpcrun.observe.diagnosis.price_list import CPU, GPU, PriceList, money_text
from hpcrun.observe.tables import Table
from hpcrun.shared_dataclass import dataclass, field, replace
from hpcrun.state.plan import RunPlan
from hpcrun.text import hours_text

if TYPE_CHECKING:
    from hpcrun.observe.diagnosis.attempts import RunStory

# Kinds of time that a cause is charged with, and those in which no nodes are held.
_LOST = ("replayed", "lost", "startup", "restore", "idle")
_FREE = ("queued", "stopped")
# More than a run goes on for.
_MOST_MONTHS = 1_200
NO_PRICES = PriceList()


@dataclass(frozen=True)
class Cost:
    """The hours of a run, or of several."""

    experiment: str
    """The name of its experiment; of a total what that is of: also a user, or a month."""
    unit: str
    """`GPU` or `CPU`."""
    hours: Goodput
    """Hours of each kind. Those queued and stopped are what the run would have had, had it held its
    nodes; nobody pays for them."""
    causes: dict[str, float] = field(default_factory=dict)
    """Kind of end -> the hours that it cost: idle after it, starting and restoring again, and steps
    that were lost or done over again."""
    run: int | None = None
    """The run's number; None for a total."""
    price: float | None = None
    """What an hour costs; of a total the mean. None without prices."""
    currency: str = ""
    roles: dict[str, float] = field(default_factory=dict)
    """Role -> its part of the hours that were paid, by the processors or GPUs of its ranks; what is
    left of a node's is nobody's. Empty where a run has none."""
    runs: int = 1
    """How many runs a total is of."""
    grown: list[dict[str, Any]] = field(default_factory=list)
    """The amounts asked for as memory or time was too little (``recovery.grow``): ``attempt``,
    after which, ``key``, ``was`` and ``now``."""

    @property
    def paid(self) -> float:
        """Hours in which nodes were held."""
        return self.hours.allocated

    @property
    def share(self) -> float | None:
        """The useful part of those; 0 of none, None if it is unknown."""
        if self.hours.running and not self.hours.useful:
            return None
        return self.hours.useful / self.paid if self.paid else 0.0

    @property
    def money(self) -> float | None:
        """The price of the hours that were paid; None without prices."""
        return None if self.price is None else self.paid * self.price

    @property
    def money_text(self) -> str:
        """``1,234.50 EUR``; empty without prices."""
        return "" if self.money is None else money_text(self.money, self.currency)

    def named_data(self, kind: str | None) -> dict[str, Any]:
        """Return the plain data of a total of a ``user``, say, with its name under that key."""
        data = self.to_data()
        name = data.pop("experiment")
        return data if kind is None else {kind: name, **data}

    def charge(self, cause: str, hours: float) -> None:
        """Add to the hours of a cause."""
        self.causes[cause] = self.causes.get(cause, 0.0) + hours

    def to_data(self) -> dict[str, Any]:
        """Return plain data, hours to a thousandth."""
        parts = {name: round(value, 3) for name, value in vars(self.hours).items()}
        return {
            "experiment": self.experiment,
            "run": self.run,
            **({"runs": self.runs} if self.run is None else {}),
            "unit": self.unit,
            "paid": round(self.paid, 3),
            **parts,
            "share": None if self.share is None else round(self.share, 4),
            "money": None if self.money is None else round(self.money, 4),
            "currency": self.currency or None,
            **({"roles": {n: round(v, 3) for n, v in self.roles.items()}} if self.roles else {}),
            **({"grown": self.grown} if self.grown else {}),
            "causes": {kind: round(value, 3) for kind, value in self.causes.items()},
        }


def of_run(
    experiment: str,
    plan_of: Callable[[int | None], RunPlan],
    spans: Sequence[Span],
    prices: PriceList = NO_PRICES,
) -> Cost:
    """Return the cost of one run, spare nodes included.

    ``plan_of`` returns the plan of an attempt; for None the newest, which decides on the unit.
    ``prices`` are those of the profile that it was submitted with.
    """
    newest = plan_of(None)
    unit = GPU if _devices(newest, GPU) else CPU
    price = prices.hour(unit, newest.resources.gpu_type)
    currency = "" if price is None else prices.currency
    found = Cost(experiment, unit, Goodput(), run=newest.number, price=price, currency=currency)
    for span in spans:
        hours = span.seconds / 3600 * _devices(plan_of(span.attempt), unit)
        found.hours.add(span.kind, hours)
        if span.kind not in _FREE:
            for role in plan_of(span.attempt).role_plans:
                own = span.seconds / 3600 * role.devices(gpu=unit == GPU)
                found.roles[role.name] = found.roles.get(role.name, 0.0) + own
        if span.cause and span.kind in _LOST:
            found.charge(span.cause, hours)
    return found


def of_story(story: RunStory, spans: Sequence[Span]) -> Cost:
    """Return the cost of these spans of a run, by the prices of its profile."""
    prices = PriceList.of(story.selected.plan.cluster)
    return of_run(story.status.experiment, story.plan_of, spans, prices)


def totals(costs: Iterable[Cost]) -> list[Cost]:
    """Return one total for each experiment and unit, in the order of first appearance."""
    return grouped((cost.experiment, cost) for cost in costs)


def grouped(named: Iterable[tuple[str, Cost]]) -> list[Cost]:
    """Return one total for each name and unit, in the order of first appearance."""
    groups: dict[tuple[str, str], list[Cost]] = {}
    for name, cost in named:
        groups.setdefault((name, cost.unit), []).append(cost)
    return [_total(name, unit, each) for (name, unit), each in groups.items()]


def by_month(spans: Iterable[Span]) -> dict[str, list[Span]]:
    """Divide spans at the beginnings of months in local time: ``2026-11`` -> those in it."""
    found: dict[str, list[Span]] = {}
    for span in spans:
        start, end = span.start, span.end
        for _ in range(_MOST_MONTHS):
            year, month = time.localtime(start)[:2]
            name = f"{year}-{month:02}"
            following = time.mktime((year, month + 1, 1, 0, 0, 0, 0, 0, -1))
            if not start < following < end:
                break
            found.setdefault(name, []).append(replace(span, start=start, end=following))
            start = following
        found.setdefault(name, []).append(replace(span, start=start))
    return found


class CostsOfRuns:
    """What runs cost: each, and in all, by experiment, user and month."""

    def __init__(self, stories: Sequence[RunStory], now: float) -> None:
        self.each: list[Cost] = []
        """One for each story, in their order."""
        self.silent = 0
        """How many runs were started and log nothing of where their time went."""
        self._stories: list[tuple[RunStory, Sequence[Span]]] = []
        looks = shared_look.each(lambda story: story.spans(now), stories)
        counted = activity.count(stories, "reading where the time went")
        for story, spans in zip(counted, looks, strict=True):
            one = of_story(story, spans)
            one.grown.extend(story.grown)
            self.each.append(one)
            self.silent += not one.hours.wall and bool(story.attempts)
            self._stories.append((story, spans))

    def totals(self, kind: str) -> list[Cost]:
        """Return a total for each ``experiment``, ``user`` or ``month``: these in their order."""
        if kind == "experiment":
            return totals(self.each)
        if kind == "user":
            users = (story.user for story, _ in self._stories)
            return grouped(zip(users, self.each, strict=True))
        found = grouped(
            (month, of_story(story, some))
            for story, spans in self._stories
            for month, some in by_month(spans).items()
        )
        return sorted(found, key=lambda one: one.experiment)

    def in_all(self) -> list[Cost]:
        """Return one total for each unit."""
        return grouped(("in all", one) for one in self.each)


def _total(experiment: str, unit: str, costs: Sequence[Cost]) -> Cost:
    price, currency = _mean_price(costs)
    runs = sum(one.runs for one in costs)
    total = Cost(experiment, unit, Goodput(), price=price, currency=currency, runs=runs)
    for cost in costs:
        for kind, hours in vars(cost.hours).items():
            total.hours.add(kind, hours)
        for cause, hours in cost.causes.items():
            total.charge(cause, hours)
        for role, hours in cost.roles.items():
            total.roles[role] = total.roles.get(role, 0.0) + hours
    return total


def _mean_price(costs: Sequence[Cost]) -> tuple[float | None, str]:
    """Return the mean price of an hour, and its currency.

    None if hours were paid that have no price, or one in another currency.
    """
    paid = [one for one in costs if one.paid] or list(costs)
    prices = [one.price for one in paid if one.price is not None]
    currencies = {one.currency for one in paid}
    if len(prices) < len(paid) or len(currencies) != 1:
        return None, ""
    hours = sum(one.paid for one in paid)
    money = sum(price * one.paid for price, one in zip(prices, paid, strict=True))
    return (money / hours if hours else prices[0]), currencies.pop()


def table(costs: Sequence[Cost]) -> Table:
    """Return a table with a row for each run."""
    # Most programs show their steps, and most runs keep them.
    rare = ("running", "lost")
    kinds = [
        kind for kind in WORDS if kind not in rare or any(getattr(one.hours, kind) for one in costs)
    ]
    money = ["MONEY"] if any(one.money is not None for one in costs) else []
    headers = ["RUN", "UNIT", "PAID", *money, "USEFUL%", *(kind.upper() for kind in kinds)]
    found = Table(headers, right=frozenset(headers[2:]), spare=("STOPPED", "QUEUED"))
    for one in costs:
        hours = [hours_text(getattr(one.hours, kind)) for kind in kinds]
        found.add(f"{one.experiment}/{one.run}", one.unit, *_cells(one, money, hours))
    return found


def totals_table(by: str, costs: Sequence[Cost]) -> Table:
    """Return a table with a row for each total, which are of ``by``: ``user``, and of all."""
    money = ["MONEY"] if any(one.money is not None for one in costs) else []
    headers = [by.upper(), "RUNS", "UNIT", "PAID", *money, "USEFUL%", "LOST", "MOST LOST TO"]
    found = Table(headers, right=frozenset(headers) - {headers[0], "UNIT", headers[-1]})
    for one in costs:
        most = max(one.causes, key=lambda kind: one.causes[kind], default="")
        lost = [hours_text(sum(one.causes.values())), most]
        found.add(one.experiment, str(one.runs), one.unit, *_cells(one, money, lost))
    return found


def _cells(one: Cost, money: Sequence[str], further: Sequence[str]) -> list[str]:
    """Return the cells from ``PAID`` on; empty ones where nothing is known."""
    share = "" if one.share is None else f"{100 * one.share:.0f}"
    cells = [hours_text(one.paid), *([one.money_text] if money else []), share, *further]
    return cells if one.hours.wall > 0 else [""] * len(cells)


def growth(cost: Cost) -> list[str]:
    """Describe what a run's job asked for in place of what was too little."""
    return [
        f"{cost.experiment}/{cost.run} asked for {one['key']} {one['now']} after attempt "
        f"{one['attempt']}, in place of {one['was']}"
        for one in cost.grown
    ]


def sentences(total: Cost) -> list[str]:
    """Describe where the hours of an experiment went, and what each cause cost; the most first."""
    paid = total.paid
    if not total.hours.wall:
        return [f"{total.experiment}: nothing is known of where its time went"]

    def lines(hours: Mapping[str, float]) -> list[str]:
        return [
            f"  {hours_text(value):>9}  {100 * value / paid if paid else 0:3.0f} %  {what}"
            for what, value in sorted(hours.items(), key=lambda pair: -pair[1])
        ]

    spent = {kind: value for kind, value in vars(total.hours).items() if value}
    share = "how many of them were useful is not known"
    if total.share is not None:
        share = f"{100 * total.share:.0f} % of them useful"
        if total.hours.running:
            share += f", of {hours_text(total.hours.running)} that is not known"
    money = f" ({total.money_text})" if total.money_text else ""
    found = [f"{total.experiment}: {hours_text(paid)} {total.unit}{money}, {share}"]
    found += lines({WORDS[kind]: value for kind, value in spent.items() if kind not in _FREE})
    found += [
        f"  {hours_text(spent[kind]):>9}         {WORDS[kind]} (not charged)"
        for kind in _FREE
        if kind in spent
    ]
    if total.roles:
        found.append("by role, as its ranks have shares of the nodes:")
        found += lines(total.roles)
    if total.causes:
        found.append(
            "lost to ends of attempts (idle, starting, restoring, steps lost or over again):"
        )
        found += lines(total.causes)
    return found


def _devices(plan: RunPlan, unit: str) -> int:
    return plan.all_gpus if unit == GPU else plan.all_cpus
