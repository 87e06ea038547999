"""``hpcrun submit``: check and submit an experiment or a sweep."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcrun.cli.options import Output, common
from hpcrun.cli.spec_options import spec_arguments
from hpcrun.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK

if TYPE_CHECKING:
    from hpcrun.cli.only import Only
    from hpcrun.cluster.prepared import Submitted
    from hpcrun.compile import Compiled


@click.command("submit")
@spec_arguments
@click.option("--dry-run", is_flag=True, help="Print what would be submitted, as `plan` does.")
@click.option("--wait", is_flag=True, help="Wait until all runs end; exit code 1 if one failed.")
@click.option("--new", is_flag=True, help="Give every run a new number, also those run before.")
@click.option(
    "--only",
    "words",
    multiple=True,
    metavar="FILTER",
    help="Submit only runs that are `new`, `failed` or `cancelled`, or have key=value.",
)
@common
def command(
    spec: str,
    overrides: tuple[str, ...],
    sweeps: tuple[str, ...],
    dry_run: bool,
    wait: bool,
    new: bool,
    words: tuple[str, ...],
    output: Output,
) -> int:
    """Submit every run of SPEC that has not completed and is not on its way already.

    Repeat the command to go on: completed runs are left alone, runs that are queued or running stay
    as they are, and those that failed, stopped or were cancelled go on from their newest
    checkpoint, with the code of now.
    """
    from hpcrun.compile import compile_spec

    compiled = compile_spec(spec, overrides, sweeps, root=output.root)
    only = None
    if words:
        from hpcrun.cli.only import chooser

        only = chooser(words)
    if dry_run:
        _show(compiled, new, only, output)
        return EXIT_OK
    from hpcrun.cluster.submit import submit

    submitted = submit(compiled, new=new, only=only, argv=command_line(), say=output.say)
    if output.json:
        output.data(submitted.to_data())
    else:
        _tell(submitted, compiled, output)
    return _wait(submitted, output) if wait else EXIT_OK


def command_line() -> list[str]:
    """The command as it was typed, for the record."""
    return [Path(sys.argv[0]).name, *sys.argv[1:]]


def _show(compiled: Compiled, new: bool, only: Only | None, output: Output) -> None:
    from hpcrun.cli import plan as printing
    from hpcrun.cluster.submit import preview

    plan = preview(compiled, new=new, only=only)
    if output.json:
        output.data({"root": str(compiled.root), **plan.to_data()})
    elif plan.arrays:
        click.echo("\n".join(printing.lines(plan, str(compiled.root))))
    else:
        done = "no run is left" if only else "every run has completed"
        output.say(f"{plan.name}: {done}; nothing to submit")


def _tell(submitted: Submitted, compiled: Compiled, output: Output) -> None:
    for array in submitted.arrays:
        click.echo(array.job_id)
    if submitted.arrays:
        where = f"{_root(compiled.root)} {compiled.name}"
        output.say(f"\nhpcrun status{where}   hpcrun logs -f{where}")


def _root(root: Path) -> str:
    """The option that readers need: they know no profile, and would miss the root of this one."""
    from hpcrun.observe.where import default_root

    known = Path(os.path.realpath(root)) == Path(os.path.realpath(default_root()))
    return "" if known else f" --root {shlex.quote(str(root))}"


def _wait(submitted: Submitted, output: Output) -> int:
    from hpcrun.cluster.decide import SKIPPED
    from hpcrun.cluster.waiting import wait
    from hpcrun.layout import ExperimentPaths

    experiment = ExperimentPaths(submitted.directory)
    root = _root(experiment.directory.parent)
    try:
        asked = [run.run for run in submitted.runs if run.action != SKIPPED]
        failed = wait(experiment, asked, say=output.say)
    except KeyboardInterrupt:
        output.say(
            f"\nno longer waiting; the runs go on. `hpcrun status{root} {experiment.name}` shows "
            f"them, `hpcrun cancel{root} {experiment.name}` ends them"
        )
        return EXIT_INTERRUPTED
    if failed:
        names = ", ".join(f"{experiment.name}/{run}" for run in failed[:8])
        more = f" and {len(failed) - 8} more" if len(failed) > 8 else ""
        output.say(
            f"did not complete: {names}{more}; `hpcrun why{root} {experiment.name}` tells more"
        )
        return EXIT_FAILED
    count = len(asked)
    output.say("the run has completed" if count == 1 else f"all {count} runs have completed")
    return EXIT_OK
