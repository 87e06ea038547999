"""``hpcrun estimate``: memory, time, hours and money of a spec's runs, before the queue."""

from __future__ import annotations

import time

import click

from hpcrun.cli.options import Output, common, program_arguments
from hpcrun.cli.program_line import ProgramCommand
from hpcrun.errors import EXIT_OK, EXIT_USAGE, UsageError
from hpcrun.text import duration, plural, timestamp


@click.command("estimate", cls=ProgramCommand)
@program_arguments
@click.option("--gpu", metavar="NAME", help="Another GPU than the spec's, such as h100.")
@click.option("--fit", is_flag=True, help="Show all settings, and the micro batches that fit.")
@click.option(
    "--parameters",
    metavar="N",
    help="Parameters of the model, such as 7.5B; the model is not made then.",
)
@click.option(
    "--utilization",
    type=float,
    default=0.4,
    show_default=True,
    metavar="PART",
    help="Part of the GPUs' peak rate that is assumed where no run measured its speed.",
)
@common
def command(
    spec: str,
    overrides: tuple[str, ...],
    sweeps: tuple[str, ...],
    gpu: str | None,
    fit: bool,
    parameters: str | None,
    utilization: float,
    output: Output,
) -> int:
    """Estimate the memory, time, hours, energy and money of SPEC; nothing is submitted.

    The model is made on the meta device by a process of the job's Python, here, which runs the
    spec's code (as --parameters does not). Runs that need the same are one row; -v shows each in
    full. Formulas: hpcrun help estimates.
    """
    from hpcrun.compile.chain import in_order
    from hpcrun.compile.freeze import freeze
    from hpcrun.slurm import patience
    from hpcrun.tools.estimate import estimate_text, model_facts
    from hpcrun.tools.estimate.estimate import Wishes, estimate

    if not 0 < utilization <= 1:
        raise UsageError(
            f"--utilization: found {utilization:g}; accepted is a part of the peak, above 0 and "
            "up to 1"
        )
    if parameters is not None:
        model_facts.parameter_count(parameters, "--parameters")
    chain = output.compiled(spec, overrides, sweeps)
    *_, plan = in_order(chain, lambda one, waits: freeze(one, depends_on=waits))
    patience.act()
    report = estimate(chain[-1], plan, Wishes(gpu, parameters, fit, utilization, taken=True))
    if output.json:
        output.data(report.to_data())
        return EXIT_USAGE if report.is_empty else EXIT_OK
    several = len(report.shapes) > 1
    in_full = not several or output.verbosity > 0 or fit
    output.line(f"{report.experiment}: {plural(len(plan.runs), 'run')} on {report.cluster}")
    if several:
        estimate_text.overview(report).print(color=output.color)
        every = (*estimate_text.nearest_of_all(report), *estimate_text.taken_of_all(report))
        for line in every if not in_full else ():
            output.line(line)
        if (told := estimate_text.total(report)) is not None:
            output.line(f"all runs: {told}")
    for shape in report.shapes if in_full else ():
        for line in estimate_text.lines(shape):
            output.line(line)
    if report.expected_start is not None:
        wait = report.expected_start - time.time()
        when = f"in {duration(wait)}, {timestamp(report.expected_start)}" if wait > 60 else "now"
        output.line(f"expected start: {when} (by sbatch --test-only)")
    elif report.start_note:
        output.say(report.start_note)
    for note in estimate_text.notes(report) if not in_full else ():
        output.say(note)
    if not in_full:
        output.say("-v shows each row in full")
    return EXIT_USAGE if report.is_empty else EXIT_OK
