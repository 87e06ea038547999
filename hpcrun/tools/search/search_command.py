"""``hpcrun search``: a search at a glance, its best spec, and a study for Optuna's tools."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hpcrun.cli.options import Output, common, root_option
from hpcrun.cli.where import select, where_argument
from hpcrun.errors import HpcrunError, UsageError
from hpcrun.text import listed, short_ends

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcrun.tools.search.search_trials import SearchTrial, SearchView


@click.command("search")
@where_argument
@click.option("--best", is_flag=True, help="Print the spec of the best run, ready to submit.")
@click.option(
    "--storage",
    metavar="URL",
    help="Write all trials into a new study of Optuna's, such as sqlite:///study.db.",
)
@click.option(
    "--study-name", metavar="NAME", help="That study's name, the experiment's by default."
)
@common
def command(
    where: tuple[str, ...],
    conditions: tuple[str, ...],
    best: bool,
    storage: str | None,
    study_name: str | None,
    output: Output,
) -> None:
    """Trials of a search: how many, the best so far, and how much each parameter matters.

    With --best, the best run's spec as YAML, without the sweep. With --storage, a study with all
    trials, which optuna-dashboard opens. {where or newest}.
    """
    from hpcrun.tools.search import search_trials

    if best and storage:
        raise UsageError("--best and --storage do not go together", hint="leave one out")
    if study_name and not storage:
        raise UsageError("--study-name is of --storage", hint="add --storage sqlite:///study.db")
    view = search_trials.read(select(output, where, conditions), output.say)
    if best:
        _print_best(view, output)
    elif storage:
        _store(view, storage, study_name, output)
    else:
        _print(view, output)


def _print_best(view: SearchView, output: Output) -> None:
    from hpcrun.observe.status import status_table
    from hpcrun.tools.search import best_spec

    found = view.best
    name = view.trials[0].selected.experiment.name
    if found is None:
        raise UsageError(
            f"no run of {name} has logged a finite {view.objective.metric}",
            hint=f"`hpcrun status {name}` tells how far they are",
        )
    if len(view.objectives) > 1 and len(view.trials) > 1:
        front = [one.selected.name for one in view.front]
        raise UsageError(
            f"of {len(view.objectives)} objectives there is no one best; no run is better in all "
            f"than {listed(front, 6) or 'another'}",
            hint=f"such as `hpcrun search {(front or [found.selected.name])[0]} --best`",
        )
    so_far = status_table.trials_text(one.status.state for one in view.trials)
    comments = [f"The best of search {name}: {_best(view, found)}.", f"{so_far}."]
    if parents := view.lineage(found):
        comments += [f"It went on from {parents[0]} with these values: a run of them begins anew."]
    content = best_spec.text(found.selected, comments)
    if output.json:
        output.data({**found.to_data(), "spec": content})
        return
    click.echo(content, nl=False)
    output.say(f"{_best(view, found)}; to submit it: {_to_best(view)}")


def _store(view: SearchView, storage: str, name: str | None, output: Output) -> None:
    from hpcrun.tools.search import optuna_study

    name = name or view.trials[0].selected.experiment.name
    count = optuna_study.store(view, storage, name, output.say)
    shown = optuna_study.without_secrets(storage)
    if output.json:
        output.data({"storage": shown, "study": name, "trials": count})
    output.say(f"study {name} has {count} trials; to look at it: optuna-dashboard {shown}")


def _print(view: SearchView, output: Output) -> None:
    from hpcrun.observe.status import status_table
    from hpcrun.tools.search import optuna_study

    name, best = view.trials[0].selected.experiment.name, view.best
    shares: dict[str, float] | None = None
    try:
        shares = optuna_study.importance(view, output.say)
    except HpcrunError as error:
        output.say(f"importance is not known: {error.message}; {error.hint}")
    if output.json:
        output.data(
            {
                "experiment": name,
                "objectives": [
                    {"metric": one.metric, "mode": one.better} for one in view.objectives
                ],
                "trials": status_table.trial_counts(one.status.state for one in view.trials),
                "best": best.to_data() if best else None,
                "front": [one.to_data() for one in view.front],
                "importance": shares,
                "runs": [one.to_data() for one in view.trials],
            }
        )
        return
    for key, value in facts(view, shares):
        output.line(f"{key:<10}  {value}")
    if best and len(view.objectives) == 1:
        output.say(f"its spec: {_to_best(view)}")


def facts(view: SearchView, shares: dict[str, float] | None) -> Iterator[tuple[str, str]]:
    """Yield what is known of a search, by name; ``shares`` are the importances."""
    from hpcrun.observe.status import status_table
    from hpcrun.observe.tables import number
    from hpcrun.tools.search.optuna_study import FEWEST

    metric = view.objective.metric
    yield "search", view.trials[0].selected.experiment.name
    yield "objective", ", ".join(f"{one.metric} ({one.better})" for one in view.objectives)
    yield "trials", status_table.trials_text(one.status.state for one in view.trials)
    yield "best", _best(view, view.best) if view.best else f"nothing has logged a finite {metric}"
    if view.best and (parents := view.lineage(view.best)):
        yield "lineage", f"the best began from {', that from '.join(parents)}"
    for one in view.front:
        pairs = zip(view.objectives, one.last or (), strict=False)
        told = ", ".join(f"{objective.metric} {number(value)}" for objective, value in pairs)
        yield "front", f"{told}, {one.selected.name}: {one.selected.run.label}"
    if shares is None:
        yield "importance", f"is told of {FEWEST} completed trials and more"
    else:
        names = short_ends(shares)
        parts = [f"{names[key]} {100 * share:.0f} %" for key, share in shares.items()]
        yield "importance", ", ".join(parts)


def _to_best(view: SearchView) -> str:
    experiment = view.trials[0].selected.experiment
    return f"hpcrun search{root_option(experiment.root)} {experiment.name} --best > best.yaml"


def _best(view: SearchView, found: SearchTrial) -> str:
    """Return ``loss 0.1 at step 9, study/3 (running): lr=0.01,layers=2``."""
    from hpcrun.observe.status.run_state import COMPLETED
    from hpcrun.observe.tables import number

    assert found.best is not None
    step, value = found.best
    state = "" if found.status.state == COMPLETED else f" ({found.status.state})"
    run, metric = found.selected, view.objective.metric
    return f"{metric} {number(value)} at step {step:,}, {run.name}{state}: {run.run.label}"
