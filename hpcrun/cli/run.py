"""``hpcrun run``: run in the foreground, in this allocation or on this machine."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcrun.cli.options import Output, command_line, common, root_option, spec_arguments
from hpcrun.errors import EXIT_INTERRUPTED, EXIT_OK, UsageError

if TYPE_CHECKING:
    from hpcrun.submit.submission_dir import Prepared


@click.command("run")
@spec_arguments
@click.option("--new", is_flag=True, help="Give every run a new number, also those run before.")
@common
def command(
    spec: str, overrides: tuple[str, ...], sweeps: tuple[str, ...], new: bool, output: Output
) -> int:
    """Run SPEC here and now, one run of a sweep after another, and show the ranks' output.

    Inside an allocation (salloc) on its nodes, otherwise on this machine. Ctrl-C stops the run;
    the same command goes on from its newest checkpoint.
    """
    from hpcrun.compile import compile_chain
    from hpcrun.slurm import allocation, patience
    from hpcrun.submit.submission_dir import chain_data
    from hpcrun.submit.submit import Request, run_chain

    patience.act()
    inside = allocation.current()
    if inside is None and not any(override.startswith("cluster=") for override in overrides):
        overrides = (*overrides, "cluster=local")
    chain = compile_chain(spec, overrides, sweeps, root=output.root)
    output.notes(chain)
    if inside is not None:
        inside.check(run for compiled in chain for run in compiled.runs)
    done, code = run_chain(
        chain,
        Request(command_line(), output.say, new),
        "local" if inside is None else "slurm",
        lambda prepared: _bring_to_end(prepared, inside.name if inside else None, output),
    )
    if output.json:
        output.data(chain_data(done))
    return code


def _bring_to_end(prepared: Prepared, allocation: str | None, output: Output) -> int:
    from hpcrun.submit import run_here

    if prepared.draft is None:
        return _nothing_to_do(prepared)
    announce = partial(_announce, prepared, output)
    try:
        with _output_shown(prepared, output):
            code = run_here.bring_to_end(prepared, allocation, announce=announce, say=output.say)
    except KeyboardInterrupt:
        output.say("interrupted; the same command goes on, from what the run has saved")
        return EXIT_INTERRUPTED
    if code != EXIT_OK:
        name = f"{root_option(prepared.experiment.root)} {prepared.plan.name}"
        output.say(f"not completed; `hpcrun why{name}` tells more")
    return code


def _nothing_to_do(prepared: Prepared) -> int:
    busy = [decision for decision in prepared.decisions if decision.action != "completed"]
    if not busy:
        return EXIT_OK
    name, job = prepared.plan.name, busy[0].job
    raise UsageError(
        f"{name}/{busy[0].run} is queued or running already (job {job.job_id if job else '?'})",
        hint=f"`hpcrun logs -f {name}` shows it, `hpcrun cancel {name}` ends it",
    )


def _announce(prepared: Prepared, output: Output, run: int) -> None:
    """Print which run begins, where there are several."""
    plan = prepared.plan
    if len(_runs(prepared)) > 1:
        label = plan.run(run).label
        output.say(f"--- {plan.name}/{run}" + (f" {label}" if label else ""))


def _runs(prepared: Prepared) -> list[int]:
    return [run for array in prepared.plan.arrays for run in array.runs]


@contextlib.contextmanager
def _output_shown(prepared: Prepared, output: Output) -> Iterator[None]:
    """Show the ranks' output during the block, unless ``--json`` or ``-q`` was given."""
    if output.json or output.verbosity < 0:
        yield
        return
    after: dict[Path, int] = {}
    for run in map(prepared.experiment.run, _runs(prepared)):
        after.update((run.directory, attempt.number) for attempt in run.attempts()[-1:])
    over = threading.Event()
    thread = threading.Thread(target=_show, args=(prepared, after, over, output), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=10)


def _show(
    prepared: Prepared, after: dict[Path, int], over: threading.Event, output: Output
) -> None:
    from hpcrun.observe.logs.log_files import LogChoice
    from hpcrun.observe.logs.log_format import Printer
    from hpcrun.observe.logs.render import Presenter
    from hpcrun.observe.logs.watch import Watch
    from hpcrun.observe.read.selection import Finder

    experiment = prepared.experiment
    selected = Finder(experiment.root).runs(experiment, _runs(prepared))
    watch = Watch(selected, LogChoice(attempt="all"), after=after, is_over=over.is_set)
    try:
        watch.show(Presenter(Printer(selected, color=output.color)), sys.stdout.buffer, check=0.1)
    except OSError as error:
        output.say(f"the output is shown no more: {error.strerror or error}")
