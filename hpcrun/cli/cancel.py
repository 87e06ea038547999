"""``hpcrun cancel``: the intent on disk first, then the executor is told."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from hpcrun.cli.options import Output, common
from hpcrun.cli.where import acts_on_runs, ask_first, select
from hpcrun.errors import ClusterRefused, ClusterUnreachable

if TYPE_CHECKING:
    from hpcrun.observe.read.selection import Selected
    from hpcrun.observe.status.status import RunStatus


@dataclass(frozen=True)
class _Target:
    selected: Selected
    status: RunStatus

    @property
    def left_alone(self) -> bool:
        return self.status.over

    def to_data(self, dry_run: bool) -> dict[str, Any]:
        action = "left" if self.left_alone else "would cancel" if dry_run else "cancelled"
        return {
            "experiment": self.status.experiment,
            "run": self.status.run,
            "action": action,
            "state": self.status.state,
            "job_id": self.status.job_id,
        }


@click.command("cancel")
@acts_on_runs("cancelled")
@common
def command(
    where: tuple[str, ...], conditions: tuple[str, ...], dry_run: bool, yes: bool, output: Output
) -> None:
    """Cancel runs, waiting or running; they stay cancelled until they are submitted again.

    WHERE is an experiment (NAME), runs (NAME/3, NAME/0-3), a job id (123, 123_4) or a directory.
    Runs that are over are left alone. Cancelling twice does no harm.
    """
    from hpcrun.observe.status.status import statuses

    selected = select(output, where, conditions, verb="cancel")
    found = statuses(selected, warn=output.say, values=False)
    targets = [_Target(*pair) for pair in zip(selected, found, strict=True)]
    active = [target for target in targets if not target.left_alone]
    if len(active) > 1 and not dry_run and not yes:
        ask_first("cancel", [target.status.name for target in active])
    if not dry_run:
        cancel([target.selected for target in active], output)
    records = [target.to_data(dry_run) for target in targets]
    if output.json:
        output.data(records)
        return
    for record in records:
        job = f" (job {record['job_id']})" if record["job_id"] else ""
        said = f"already {record['state']}" if record["action"] == "left" else record["action"]
        click.echo(f"{record['experiment']}/{record['run']}: {said}{job}")


def cancel(selected: Sequence[Selected], output: Output) -> None:
    """Put every intent on disk, then end what lives.

    Raises
    ------
    ClusterUnreachable
        Slurm does not answer, or a run is on another machine; the intents stand.
    """
    from hpcrun.state import ledger, permissions

    queued: list[str] = []
    started_here: list[Selected] = []
    for one in selected:
        if ledger.intent(one.paths) != ledger.FINISHED:
            permissions.use_umask(one.plan.cluster)
            ledger.set_intent(one.paths, ledger.CANCELLED)
        if one.submission is not None and one.job_id:
            if one.submission.is_local or one.submission.foreground:
                started_here.append(one)
            else:
                queued.append(one.job_id)
    try:
        if queued:
            from hpcrun.slurm import client

            client.cancel(queued)
    except ClusterRefused as error:
        raise ClusterRefused(
            f"the runs are marked as cancelled and do not start again; Slurm ended no job: "
            f"{error.message}",
            hint="see what still runs: hpcrun status",
        ) from None
    except ClusterUnreachable as error:
        raise ClusterUnreachable(
            f"the runs are marked as cancelled, and Slurm could not be told: {error.message}",
            hint="repeat the same command when the cluster is back",
        ) from None
    finally:
        if started_here:
            _end_processes(started_here, output)


def _end_processes(selected: Sequence[Selected], output: Output) -> None:
    """End what `hpcrun run` and the local executor started on this machine.

    An allocation that `hpcrun run` was used in is the user's, and is left as it is.
    """
    from hpcrun.state.layout import SubmissionPaths
    from hpcrun.submit.local import executor

    here: dict[SubmissionPaths, list[int]] = {}
    elsewhere: list[str] = []
    for one in selected:
        assert one.submission is not None
        host = _host(one)
        if host in (None, os.uname().nodename):
            here.setdefault(one.submission.paths, []).append(one.run.number)
        else:
            elsewhere.append(f"{one.name} on {host}")
    for paths, runs in here.items():
        output.say(f"ending {len(runs)} local run(s) of {paths.experiment.name}")
        executor.cancel(paths, runs)
    if elsewhere:
        raise ClusterUnreachable(
            f"marked as cancelled, and still to be ended on their own machine: "
            f"{', '.join(elsewhere)}",
            hint="repeat the same command there",
        )


def _host(one: Selected) -> str | None:
    """Where the run's supervisor is; None while it has none."""
    from hpcrun.state import ledger

    assert one.submission is not None
    if one.submission.record.get("host"):
        return str(one.submission.record["host"])
    attempts = ledger.read(one.paths)
    return attempts[-1].started.get("host") if attempts and not attempts[-1].ended else None
