"""``hpcrun requeue``: start runs again with their frozen plan and code."""

from __future__ import annotations

import click

from hpcrun import activity
from hpcrun.cli.options import Output, command_line, common
from hpcrun.cli.where import acts_on_runs, ask_first, select
from hpcrun.slurm import patience
from hpcrun.text import plural


@click.command("requeue")
@acts_on_runs("requeued")
@common
def command(
    where: tuple[str, ...], conditions: tuple[str, ...], dry_run: bool, yes: bool, output: Output
) -> None:
    """Start runs again, from their checkpoints, with the code and plan that were frozen for them.

    {where}. A run that runs saves and goes back into the queue; one that failed, stopped or was
    cancelled is submitted again. Runs that wait or have completed are left alone. Those that were
    pruned go on if no others are named with them, and are not pruned again.
    """
    from hpcrun.control import requeue
    from hpcrun.submission import most_hours

    selected = select(output, where, conditions, verb="requeue")
    if not dry_run:
        patience.act()
    number = plural(len(selected), "run")
    with activity.doing(f"looking how {number} may start again"):
        steps = requeue.look(selected, output.say if dry_run else None)
    them = {step.name for step in steps if step.action != requeue.LEAVE}
    active = [one for one in selected if one.name in them]
    above = most_hours.above_limit((one.run, one.plan.cluster) for one in active)
    if above and dry_run:
        output.say(f"requeue asks first: {above}")
    if not (dry_run or yes):
        ask_first("requeue", active, where, conditions, above)
    if not dry_run:
        with activity.doing(f"requeueing {number}"):
            steps = requeue.restart(selected, argv=command_line(), say=output.say)
    if output.json:
        output.data([step.to_data(dry_run) for step in steps])
        return
    for step in steps:
        job = f" (job {step.job_id})" if step.job_id else ""
        done = "requeued" if step.action == requeue.REQUEUE else "submitted again"
        output.line(f"{step.name}: {step.reason or ('would be ' * dry_run + done)}{job}")
