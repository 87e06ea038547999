"""``hpcrun drill``: hurt a run on purpose, and see that it comes back."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from hpcrun.cli.options import Output, common
from hpcrun.cli.spec_options import spec_arguments
from hpcrun.cli.submit import command_line
from hpcrun.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, UsageError
from hpcrun.policy import faults as policy_faults

if TYPE_CHECKING:
    from hpcrun.compile import Compiled
    from hpcrun.observe.diagnosis.fault_costs import Outcome
    from hpcrun.state.layout import ExperimentPaths

_HEADERS = ("FAULT", "RANK", "NODE", "TAKEN FOR", "HPCRUN DID", "BACK AFTER", "STEPS LOST")


@click.command("drill")
@spec_arguments
@click.option(
    "--fault",
    "faults",
    multiple=True,
    type=click.Choice(list(policy_faults.FAULTS)),
    help="What to do to the run; several come in the order given. All of them by default, "
    f"{policy_faults.LOSE_NODE} only where the spec has spare_nodes or recovery.shrink.",
)
@click.option(
    "--steps",
    type=click.IntRange(1),
    default=policy_faults.STEPS,
    show_default=True,
    help="Optimizer steps between a start and the fault.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@common
def command(
    spec: str,
    overrides: tuple[str, ...],
    sweeps: tuple[str, ...],
    faults: tuple[str, ...],
    steps: int,
    dry_run: bool,
    output: Output,
) -> int:
    """Submit SPEC as NAME-drill, hurt it, wait for its end, and tell what each fault cost.

    Of a sweep the first run is taken. The exit code is 1 unless the run completed and came back
    after every fault. Ctrl-C cancels the drill.
    """
    from hpcrun.compile import compile_spec

    compiled = compile_spec(spec, overrides, sweeps, root=output.root)
    wanted = list(faults) or _by_default(compiled)
    compiled = _with_faults(compiled, wanted, steps)
    if dry_run:
        if output.json:
            output.data({"experiment": compiled.name, "faults": wanted, "steps": steps})
        else:
            for fault in wanted:
                click.echo(f"{fault}: {policy_faults.FAULTS[fault]}")
        return EXIT_OK
    return _drill(compiled, wanted, output)


def _by_default(compiled: Compiled) -> list[str]:
    outlives = compiled.runs[0].outlives_nodes
    return [fault for fault in policy_faults.FAULTS if fault != policy_faults.LOSE_NODE or outlives]


def _with_faults(compiled: Compiled, faults: list[str], steps: int) -> Compiled:
    first = compiled.runs[0]
    if policy_faults.CORRUPT_CHECKPOINT in faults and not first.checkpoint.every:
        raise UsageError(
            f"{policy_faults.CORRUPT_CHECKPOINT} needs a run that saves by itself",
            hint="add checkpoint.every=N, of so few steps that two checkpoints are there before",
        )
    if policy_faults.CORRUPT_CHECKPOINT in faults and first.checkpoint.keep < 2:
        raise UsageError(
            f"{policy_faults.CORRUPT_CHECKPOINT} needs a checkpoint to go back to; "
            "checkpoint.keep is 1",
            hint="add checkpoint.keep=2",
        )
    if policy_faults.STOP_RANK in faults and first.recovery.hang_after is None:
        raise UsageError(
            f"{policy_faults.STOP_RANK} is never noticed: recovery.hang_after is null",
            hint='add recovery.hang_after="00:05:00"',
        )
    block = {"faults": faults, "steps": steps}
    spec = {**first.spec, policy_faults.KEY: block}
    run = dataclasses.replace(first, spec=spec)
    return dataclasses.replace(compiled, name=f"{compiled.name}-{policy_faults.KEY}", runs=(run,))


def _drill(compiled: Compiled, faults: list[str], output: Output) -> int:
    from hpcrun.control.wait import wait
    from hpcrun.observe.diagnosis import fault_costs as observed
    from hpcrun.state.layout import ExperimentPaths
    from hpcrun.submit.submit import Request, submit

    submitted = submit(compiled, Request(command_line(), output.say, new=True))
    experiment, number = ExperimentPaths(submitted.directory), submitted.runs[0].run
    try:
        times = "once" if len(faults) == 1 else f"{len(faults)} times"
        output.say(f"{experiment.name}/{number} will be hurt {times}; this takes a while")
        failed = wait(experiment, [number], say=output.say)
    except KeyboardInterrupt:
        _cancel(experiment, number, output)
        return EXIT_INTERRUPTED
    found = observed.outcomes(experiment.run(number), faults)
    if output.json:
        data = [outcome.to_data() for outcome in found]
        output.data({"experiment": experiment.name, "run": number, "faults": data})
    else:
        _print(found, output)
    back = sum(outcome.came_back for outcome in found)
    verdict = "did not complete" if failed else "completed"
    name = f"{experiment.name}/{number}"
    output.say(f"{name} came back after {back} of {len(found)} faults, and {verdict}")
    never = [outcome.fault for outcome in found if outcome.attempt is None]
    if never:
        output.say(
            f"not done, because the run ended before: {', '.join(never)}; give it more steps, or "
            "--steps fewer"
        )
    return EXIT_OK if back == len(found) and not failed else EXIT_FAILED


def _cancel(experiment: ExperimentPaths, number: int, output: Output) -> None:
    from hpcrun.cli import cancel
    from hpcrun.observe.read.selection import Finder

    where = f"{experiment.name}/{number}"
    output.say(f"interrupted; {where} is cancelled")
    selected = Finder(experiment.directory.parent).resolve([where])
    cancel.cancel(selected, output)


def _print(found: list[Outcome], output: Output) -> None:
    from hpcrun.observe.tables import Table

    table = Table(_HEADERS, right=frozenset({"RANK", "BACK AFTER", "STEPS LOST"}))
    for one in found:
        table.add(
            one.fault,
            "" if one.rank is None else str(one.rank),
            one.node or "",
            one.cause or "",
            one.action or "",
            "" if one.seconds is None else f"{one.seconds:.1f} s",
            "" if one.lost_steps is None else str(one.lost_steps),
        )
    table.print(color=output.color)
