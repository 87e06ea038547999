"""``hpcrun check``: whether the cluster, as it is now, will take a spec and run it."""

from __future__ import annotations

import time

import click

from hpcrun.cli.options import Output, command_line, common, program_arguments
from hpcrun.cli.program_line import ProgramCommand
from hpcrun.errors import EXIT_OK
from hpcrun.text import duration, plural, timestamp


@click.command("check", cls=ProgramCommand)
@program_arguments
@common
def command(spec: str, overrides: tuple[str, ...], sweeps: tuple[str, ...], output: Output) -> int:
    """Check SPEC against the cluster as it is now; nothing is submitted.

    Tells all at once: partition, account, QOS, reservation, features, nodes and GPUs, limits,
    arrays, files, storage, the job's Python and its modules, and when the job would start. An error
    would be refused, wait for ever or fail at once. `submit` asks the cluster the same first.
    """
    from hpcrun.check.check import check
    from hpcrun.slurm import patience
    from hpcrun.submission.submit import Request, preview_chain

    chain = output.compiled(spec, overrides, sweeps)
    patience.act()
    previews = preview_chain(chain, Request(command_line(), lambda message: None))
    reports = [
        check(compiled, preview, [*overrides, *sweeps] if compiled is chain[-1] else [])
        for compiled, preview in zip(chain, previews, strict=True)
    ]
    if output.json:
        output.data([one.to_data() for one in reports])
    for one in () if output.json else reports:
        asked = f"{one.cluster}, Slurm {one.slurm}" if one.slurm else one.cluster
        output.line(f"{one.experiment}: {plural(one.runs, 'run')} on {asked}")
        for found in one.findings:
            click.echo(found.lines(one.runs))
        if one.expected_start is not None:
            wait = one.expected_start - time.time()
            when = f"in {duration(wait)}, {timestamp(one.expected_start)}" if wait > 60 else "now"
            output.line(f"expected start: {when} (by sbatch --test-only)")
        for why in one.skipped:
            output.say(why)
        if not one.runs:
            output.say("there is nothing to submit: all runs have completed, or are on their way")
    for one in reports:
        output.say(f"{one.experiment}: {one.counts()}")
    return max((one.exit_code for one in reports), default=EXIT_OK)
