"""``hpcrun why``: print what ended each attempt, and what to do next."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from hpcrun.cli.options import Output, common
from hpcrun.cli.where import select, where_argument
from hpcrun.text import one_line, plural

if TYPE_CHECKING:
    from hpcrun.observe.diagnosis.attempts import RunStory


@click.command("why")
@where_argument
@common
def command(where: tuple[str, ...], conditions: tuple[str, ...], output: Output) -> None:
    """Why runs ended as they did: each attempt's cause, what it cost, and the next step.

    {where or newest}. One run is told in full, several by their causes.
    """
    from hpcrun.observe.diagnosis.advice import advise
    from hpcrun.observe.diagnosis.attempts import stories

    found = stories(select(output, where, conditions), warn=output.say)
    if output.json:
        now = time.time()
        output.data([{**run.to_data(now), "advice": advise(run, run.status.name)} for run in found])
    elif len(found) == 1:
        _one(found[0], output)
    else:
        _several(found, output)


def _one(run: RunStory, output: Output) -> None:
    from hpcrun.observe.diagnosis import narrative
    from hpcrun.observe.diagnosis.advice import advise
    from hpcrun.policy.log_excerpt import folded

    now = time.time()
    output.line(narrative.headline(run))
    if changed := narrative.tell_changes(run):
        output.line(changed)
    for attempt in run.attempts:
        first, *rest = narrative.attempt(attempt, run, now)
        click.echo(f"\n{one_line(first)}")
        for line in rest:
            output.line(f"  {line}")
    if spent := run.goodput(now):
        click.echo(f"\n{narrative.spent(spent)}")
    for lacking in narrative.trackers(run):
        output.line(f"\n{lacking}")
    if notice := narrative.notice(run):
        click.echo(f"\n{one_line(notice)}")
    if fabric := narrative.fabric(run):
        click.echo("\nThe fabric:")
        for line in fabric:
            output.line(f"  {line}")
    if run.selected.paths.work.is_dir():
        output.line(f"\nWhat the program wrote is in {run.selected.paths.work}")
    bad = run.bad
    tail = bad.attempt.cause.get("log_tail") if bad and run.kind else None
    if bad and tail:
        rank = bad.attempt.cause.get("rank")
        click.echo(f"\nThe last lines of rank {rank} in attempt {bad.attempt.number}:")
        for told in folded("\n".join(map(str, tail)).encode(errors="replace")):
            click.echo(f"  | {click.unstyle(told.decode(errors='replace'))}")
    advice = advise(run, run.status.name)
    if advice:
        click.echo(f"\nNext: {one_line(advice)}")


def _several(found: Sequence[RunStory], output: Output) -> None:
    from hpcrun.observe.diagnosis import narrative
    from hpcrun.observe.diagnosis.advice import advise
    from hpcrun.observe.diagnosis.attempts import grouped
    from hpcrun.observe.read.selection import as_where
    from hpcrun.observe.status import run_state

    now = time.time()
    for group in grouped(found):
        example = group.example
        names = as_where(run.selected for run in group.runs)
        goes_on = "" if group.over else ", not over"
        output.line(f"{plural(len(group.runs), 'run', ',')}, {group.kind}{goes_on}: {names}")
        story = example.bad or (example.attempts[-1] if example.attempts else None)
        if story is None or group.kind not in (story.kind, "no_end"):
            output.line(f"  {narrative.headline(example)}")
        else:
            ended = example.attempts[-1] if group.kind == "no_end" else story
            output.line(f"  {example.status.name}: {narrative.end(ended, example, now)}")
        output.line(f"  Next: {advise(example, names, several=len(group.runs) > 1)}")
        click.echo()
    fine: dict[str, list[RunStory]] = {}
    for run in found:
        if run.kind is None:
            again = " in several attempts" if len(run.attempts) > 1 else ""
            alone = run.attempts[-1].attempt.alone if run.attempts else None
            told = f", but {alone}" if alone else ""
            for tracker in run.tracker_problems:
                told += f", but {tracker} has not got all metrics (`hpcrun why RUN` tells more)"
            if run.status.state in (run_state.PLANNED, run_state.WAITING, run_state.PENDING):
                why = one_line(run.status.reason or "").partition(run_state.EXPECTED)[0]
                told += f" ({why})" if why else ""
            fine.setdefault(run.status.state + again + told, []).append(run)
    for what, runs in fine.items():
        replayed = sum(run.replayed for run in runs)
        more = f"; {narrative.steps(replayed)} replayed" if replayed else ""
        names = as_where(run.selected for run in runs)
        output.line(f"{plural(len(runs), 'run', ',')} {what}: {names}{more}")
