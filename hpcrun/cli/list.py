"""``hpcrun list``: the experiments under the root."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from hpcrun import activity, shared_look
from hpcrun.cli.options import Output, common
from hpcrun.cli.where import finder
from hpcrun.errors import UsageError
from hpcrun.text import Say, hours_text, shortened, timestamp

if TYPE_CHECKING:
    from hpcrun.observe.read.selection import Finder, Selected
    from hpcrun.observe.status.jobs import Answers, JobRef
    from hpcrun.observe.status.list_cache import ListCache
    from hpcrun.observe.status.status import Ask, Observed
    from hpcrun.state.layout import ExperimentPaths


@click.command("list")
@click.argument("names", nargs=-1, metavar="")
@common
def command(names: tuple[str, ...], output: Output) -> None:
    """Experiments under the root, the newest first: runs by state, the best, hours, cost, by whom.

    BEST is the best of the runs' last values of their objective; HOURS are those in which their
    nodes were held, by the ledgers.
    """
    from hpcrun.observe.tables import Table

    if names:
        words = shortened(shlex.join(names), 200)
        raise UsageError(
            f"list shows all experiments, and takes no name; found {words}",
            hint=f"the runs of one: hpcrun status {words}",
        )
    search = finder(output)
    found = _experiments(search, output.say)
    if not found:
        output.say(f"no experiments under {search.place}")
    if output.json:
        output.data(found)
    if output.json or not found:
        return
    headers = ["EXPERIMENT", "RUNS", "STATES", "BEST", "HOURS", "COST", "SUBMITTED", "USER"]
    headers += ["SPEC", *["TAGS"] * any(one["tags"] for one in found)]
    table = Table(
        headers, right=frozenset({"RUNS", "HOURS", "COST"}), spare=("USER", "SPEC", "SUBMITTED")
    )
    for one in found:
        states = ", ".join(f"{count} {state}" for state, count in one["states"].items())
        when = timestamp(one["submitted"])[:-3] if one["submitted"] else ""
        runs = "" if one["runs"] is None else str(one["runs"])
        cells = [one["name"], runs, states or one["problem"] or "", *_figures(one), when]
        cells += [one["user"] or "", one["spec"] or "", ",".join(one["tags"])]
        table.add(*cells[: len(headers)])
    table.print(color=output.color)


def _figures(one: dict[str, Any]) -> list[str]:
    """Return the best value, the hours and the cost as text; empty where there are none."""
    from hpcrun.observe.diagnosis.price_list import money_text
    from hpcrun.observe.tables import number

    best, hours = one["best"], one["hours"]
    shown = f"{best['metric']} {number(best['value'])} (run {best['run']})" if best else ""
    money = [money_text(x["money"], x["currency"] or "") for x in hours if x["money"] is not None]
    # What has no price in one of its units has none in all.
    cost = " + ".join(money) if len(money) == len(hours) else ""
    return [shown, ", ".join(f"{hours_text(x['paid'])} {x['unit']}" for x in hours), cost]


def _experiments(search: Finder, warn: Say) -> list[dict[str, Any]]:
    """Return all experiments under the root, newest submission first, with one query of Slurm.

    Times are in seconds since the epoch; ``problem`` is why no plan can be read, and there is no
    number of runs then.
    """
    from hpcrun.observe.status import slurm_cache
    from hpcrun.observe.status.jobs import JobRef
    from hpcrun.observe.status.list_cache import ListCache
    from hpcrun.state import layout

    entries, cache = layout.entries(search.root), ListCache(search.root)
    counted = activity.count(entries, "looking at experiments")
    looks = zip(counted, shared_look.each(cache.find, entries), strict=True)
    kept = {one.name: row for one, row in looks if row is not None}
    left = [one for one in entries if one.name not in kept]
    exist = shared_look.each(lambda one: one.exists, left)
    others = [one for one, exists in zip(left, exist, strict=True) if exists]
    refs = [JobRef(job_id) for one in kept.values() for job_id in one.jobs]
    waiting: set[str] = set()

    def ask(more: Sequence[JobRef]) -> Answers:
        answers = slurm_cache.ask([*more, *refs])
        waiting.update(job_id for job_id, job in answers.jobs.items() if job.is_waiting)
        return answers

    rows = _rows(others, search, cache, warn, ask)
    # Runs that had failed, and that somebody has put back into the queue.
    again = [name for name, one in kept.items() if not waiting.isdisjoint(one.jobs)]
    for name in again:
        cache.drop(name)
        del kept[name]
    if again:
        those = [one for one in entries if one.name in again]
        rows += _rows(those, search, cache, warn, slurm_cache.ask)
    cache.write()
    rows += [one.row for one in kept.values()]
    # Of those that were submitted at once, the first by name comes first.
    return sorted(rows, key=lambda one: (-(one["submitted"] or 0), one["name"]))


def _rows(
    experiments: Sequence[ExperimentPaths],
    search: Finder,
    cache: ListCache,
    warn: Say,
    ask: Ask,
) -> list[dict[str, Any]]:
    """Read experiments; keep the rows of those that are settled and of which nothing was said."""
    from hpcrun.observe.read.run_values import all_tags
    from hpcrun.observe.status.status import best_value, observe
    from hpcrun.state import history, permissions

    since, said = time.time(), set()
    selected = []
    problems: dict[str, str] = {}
    for experiment in experiments:

        def say(text: str, name: str = experiment.name) -> None:
            said.add(name)
            warn(text)

        search.warn = say
        try:
            selected += search.runs(experiment)
        except UsageError as error:
            problems[experiment.name] = error.message
    observed: dict[str, list[tuple[Selected, Observed]]] = {}
    for pair in zip(selected, observe(selected, warn=warn, ask=ask), strict=True):
        observed.setdefault(pair[0].experiment.name, []).append(pair)
    found = []
    for experiment in experiments:
        name = experiment.name
        last = history.last_submission(experiment)
        known = None if name in problems else search.history(experiment)
        those = observed.get(name, [])
        found.append(
            {
                "name": name,
                "directory": str(experiment.directory),
                "runs": None if known is None else len(known.runs),
                "states": dict(Counter(one.status.state for _, one in those).most_common()),
                "best": best_value([(one, found.status) for one, found in those]),
                "hours": _hours(those),
                "submitted": last.time or None,
                "spec": known.newest.spec_file if known and known.newest else None,
                "user": None if last.owner is None else permissions.user_name(last.owner),
                "problem": problems.get(name),
                "tags": all_tags(known.annotations.values()) if known else (),
            }
        )
        if name not in said:
            cache.keep(experiment, found[-1], those, since)
    return found


def _hours(those: Sequence[tuple[Selected, Observed]]) -> list[dict[str, Any]]:
    """Return the hours in which runs held their nodes, and their price, of each unit."""
    from hpcrun.observe.diagnosis import attempts, cost

    now, costs = time.time(), []
    for one, observed in those:
        story = attempts.bare(one, observed)
        if spans := story.held(now):
            costs.append(cost.of_story(story, spans))
    keys = ("unit", "paid", "money", "currency")
    return [{key: data[key] for key in keys} for data in (x.to_data() for x in cost.totals(costs))]
