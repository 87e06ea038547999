"""``hpcrun requeue``: runs start again as they were frozen."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcrun.cli.options import Output, common
from hpcrun.cli.where import acts_on_runs, ask_first, select
from hpcrun.errors import UsageError
from hpcrun.text import listed

if TYPE_CHECKING:
    from hpcrun.control.requeue import Step
    from hpcrun.observe.read.selection import Selected
    from hpcrun.state.layout import ExperimentPaths


@dataclass(frozen=True)
class _Runs:
    """Selected runs of one experiment."""

    experiment: ExperimentPaths
    numbers: tuple[int, ...]
    foreground: frozenset[int]

    def name(self, step: Step) -> str:
        return f"{self.experiment.name}/{step.run}"


@click.command("requeue")
@acts_on_runs("requeued")
@common
def command(
    where: tuple[str, ...], conditions: tuple[str, ...], dry_run: bool, yes: bool, output: Output
) -> None:
    """Start runs again, from their checkpoints, with the code and plan that were frozen for them.

    WHERE is an experiment (NAME), runs (NAME/3, NAME/0-3), a job id (123, 123_4) or a directory.
    A run that runs saves and goes back into the queue; one that failed, stopped or was cancelled is
    submitted again. Runs that wait or have completed are left alone.
    """
    from hpcrun.control import requeue

    groups = _by_experiment(select(output, where, conditions, verb="requeue"))
    planned = [(one, requeue.look(one.experiment, one.numbers, one.foreground)) for one in groups]
    active = [
        one.name(step) for one, steps in planned for step in steps if step.action != requeue.LEAVE
    ]
    _refuse_completed(planned)
    if len(active) > 1 and not dry_run and not yes:
        ask_first("requeue", active)
    done = planned
    if not dry_run:
        argv = [Path(sys.argv[0]).name, *sys.argv[1:]]
        done = [
            (
                one,
                requeue.restart(
                    one.experiment, one.numbers, one.foreground, argv=argv, say=output.say
                ),
            )
            for one in groups
        ]
    if output.json:
        output.data([_data(one, step, dry_run) for one, steps in done for step in steps])
        return
    for one, steps in done:
        for step in steps:
            job = f" (job {step.job_id})" if step.job_id else ""
            click.echo(f"{one.name(step)}: {step.reason or _said(step, dry_run)}{job}")


def _by_experiment(selected: Sequence[Selected]) -> list[_Runs]:
    found: dict[ExperimentPaths, list[Selected]] = {}
    for one in selected:
        found.setdefault(one.experiment, []).append(one)
    return [
        _Runs(
            experiment,
            tuple(one.run.number for one in these),
            frozenset(
                one.run.number for one in these if one.submission and one.submission.foreground
            ),
        )
        for experiment, these in found.items()
    ]


def _refuse_completed(planned: Sequence[tuple[_Runs, list[Step]]]) -> None:
    from hpcrun.state import ledger

    names = [
        one.name(step)
        for one, steps in planned
        for step in steps
        if ledger.intent(one.experiment.run(step.run)) == ledger.FINISHED
    ]
    if names and len(names) == sum(len(steps) for _, steps in planned):
        have = "has" if len(names) == 1 else "have"
        raise UsageError(
            f"{listed(names, 6)} {have} completed, and a completed run is never started again",
            hint="`hpcrun submit --new` runs the same afresh, under a new number",
        )


def _said(step: Step, dry_run: bool) -> str:
    if step.action == "requeue":
        return "would be requeued" if dry_run else "requeued"
    return "would be submitted again" if dry_run else "submitted again"


def _data(one: _Runs, step: Step, dry_run: bool) -> dict[str, Any]:
    done = {"leave": "left", "submit": "submitted", "requeue": "requeued"}[step.action]
    return {
        "experiment": one.experiment.name,
        "run": step.run,
        "action": f"would {step.action}" if dry_run and done != "left" else done,
        "reason": step.reason,
        "job_id": step.job_id,
    }
