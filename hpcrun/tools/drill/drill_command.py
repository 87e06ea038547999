"""``hpcrun drill``: hurt a run on purpose, and see whether it comes back."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from hpcrun.cli.options import Output, command_line, common, spec_arguments
from hpcrun.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK
from hpcrun.policy import faults as policy_faults
from hpcrun.slurm import patience

if TYPE_CHECKING:
    from hpcrun.tools.drill.drill import FaultOutcome

_HEADERS = ("FAULT", "RANK", "NODE", "TAKEN FOR", "HPCRUN DID", "BACK AFTER", "STEPS LOST")


@click.command("drill")
@spec_arguments
@click.option(
    "--fault",
    "faults",
    multiple=True,
    type=click.Choice(list(policy_faults.FAULTS)),
    help="What to do to the run; several come in the order given. All of them by default, "
    f"{policy_faults.LOSE_NODE} only where the spec has spare_nodes or recovery.shrink, "
    f"{policy_faults.CORRUPT_CHECKPOINT} of a script only with checkpoint.every.",
)
@click.option(
    "--steps",
    type=click.IntRange(1),
    default=policy_faults.STEPS,
    show_default=True,
    help="Optimizer steps between a start and the fault.",
)
@click.option("-n", "--dry-run", is_flag=True, help="Only say what would be done.")
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
    from hpcrun.submission.submit import Request
    from hpcrun.tools.drill import drill

    compiled = compile_spec(spec, overrides, sweeps, root=output.root)
    output.notes([compiled])
    wanted = list(faults) or drill.default_faults(compiled)
    compiled = drill.with_faults(compiled, wanted, steps)
    if dry_run:
        if output.json:
            output.data({"experiment": compiled.name, "faults": wanted, "steps": steps})
        else:
            for fault in wanted:
                click.echo(f"{fault}: {policy_faults.FAULTS[fault]}")
        return EXIT_OK
    patience.act()
    done = drill.drill(compiled, wanted, Request(command_line(), output.say, new=True))
    if done is None:
        return EXIT_INTERRUPTED
    if output.json:
        data = [asdict(outcome) for outcome in done.outcomes]
        output.data({"experiment": done.experiment, "run": done.run, "faults": data})
    else:
        _print(done.outcomes, output)
    back = f"{done.experiment}/{done.run} came back after {done.came_back}"
    verdict = "completed" if done.completed else "did not complete"
    output.say(f"{back} of {len(done.outcomes)} faults, and {verdict}")
    never = [outcome.fault for outcome in done.outcomes if outcome.attempt is None]
    if never:
        output.say(
            f"not done, because the run ended before: {', '.join(never)}; give it more steps, or "
            "--steps fewer (a program that shows no steps is hurt after a minute)"
        )
    return EXIT_OK if done.came_back == len(done.outcomes) and done.completed else EXIT_FAILED


def _print(found: list[FaultOutcome], output: Output) -> None:
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
