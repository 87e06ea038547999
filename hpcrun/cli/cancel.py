"""``hpcrun cancel``: end runs, and keep them from starting again."""

from __future__ import annotations

import click

from hpcrun.cli.options import Output, common
from hpcrun.cli.where import acts_on_runs, ask_first, select
from hpcrun.slurm import patience


@click.command("cancel")
@acts_on_runs("cancelled")
@common
def command(
    where: tuple[str, ...], conditions: tuple[str, ...], dry_run: bool, yes: bool, output: Output
) -> None:
    """Cancel runs, waiting or running; they stay cancelled until they are submitted again.

    {where}. Runs that are over are left alone. Cancelling twice does no harm.
    """
    from hpcrun.control import cancel
    from hpcrun.observe.status import jobs
    from hpcrun.observe.status.status import statuses

    selected = select(output, where, conditions, verb="cancel")
    # What Slurm said before does not keep a run from being cancelled.
    found = statuses(selected, warn=output.say, ask=jobs.ask, values=False)
    active = [one for one, status in zip(selected, found, strict=True) if not status.over]
    if not (dry_run or yes):
        ask_first("cancel", active, where, conditions)
    if not dry_run:
        if not patience.current().is_silent("slurmctld"):
            patience.act()
        cancel.cancel(active, output.say)
    done = "would cancel" if dry_run else "cancelled"
    if output.json:
        output.data(
            [
                {
                    "experiment": status.experiment,
                    "run": status.run,
                    "action": "left" if status.over else done,
                    "state": status.state,
                    "job_id": status.job_id,
                }
                for status in found
            ]
        )
        return
    for status in found:
        job = f" (job {status.job_id})" if status.job_id else ""
        output.line(f"{status.name}: {f'already {status.state}' if status.over else done}{job}")
