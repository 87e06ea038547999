"""``hpcrun tune``: the fastest configuration of a spec, found by trials."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hpcrun.cli.options import Output, command_line, common, spec_arguments
from hpcrun.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, UsageError
from hpcrun.text import plural

if TYPE_CHECKING:
    from hpcrun.tools.perf.tuning import Tuning


@click.command("tune")
@spec_arguments
@click.option(
    "--space",
    multiple=True,
    metavar="key=a,b",
    help="A key to vary below config, deepspeed or parallel, and its values; may be given several "
    "times. By default micro batch, ZeRO stage, and offload on GPUs.",
)
@click.option(
    "--time",
    "limit",
    metavar="TIME",
    help="The longest that the trials take, such as 00:10:00; by default what the job's limit "
    "allows.",
)
@click.option("-o", "--output", "out", metavar="FILE", help="The spec to write, SPEC.tuned.yaml.")
@click.option("-n", "--dry-run", is_flag=True, help="Show what would be tried, and what not.")
@common
def command(
    spec: str,
    overrides: tuple[str, ...],
    sweeps: tuple[str, ...],
    space: tuple[str, ...],
    limit: str | None,
    out: str | None,
    dry_run: bool,
    output: Output,
) -> int:
    """Find the fastest configuration of SPEC that fits, by trials of its program.

    Each combination of the space is compiled, judged by `hpcrun estimate`'s memory model, and tried
    for a few steps at the same global batch, all in one run NAME-tune: here, in this allocation, or
    as one job. The best ones are measured again. Ends with a spec to submit, which extends SPEC.
    Ctrl-C ends the trials and shows what is known.
    """
    from hpcrun.slurm import patience
    from hpcrun.slurm.parse import parse_duration
    from hpcrun.tools.perf import tuning

    if sweeps:
        raise UsageError(
            "tune takes no --sweep: it varies keys by itself", hint=f"--space {sweeps[0]}"
        )
    seconds = None if limit is None else parse_duration(limit)
    if limit is not None and not seconds:
        raise UsageError(f"--time: found {limit!r}; accepted is a time such as 00:10:00")
    wishes = tuning.TuneWishes(spec, overrides, space, output.root, seconds, out)
    found = tuning.plan(wishes, output.say)
    for note in dict.fromkeys(found.notes):
        output.say(note)
    if not dry_run:
        patience.act()
        found.try_all(wishes, command_line(), output.say)
    if output.json:
        output.data(found.to_data())
    else:
        _print(found, output)
    if dry_run:
        output.say(
            f"{len(found.order)} of {plural(len(found.combinations), 'combination')} "
            f"would be tried; the fastest would be written to {found.path}"
        )
        return EXIT_OK
    return _verdict(found, output)


def _print(found: Tuning, output: Output) -> None:
    from hpcrun.observe.tables import Table
    from hpcrun.text import size

    headers = ("CONFIGURATION", "S/STEP", "SAMPLES/S", "ESTIMATE", "PEAK", "")
    right = frozenset({"S/STEP", "SAMPLES/S", "ESTIMATE", "PEAK"})
    table = Table(headers, right=right, spare=("PEAK", "ESTIMATE"))
    for place in found.ranked():
        score, one = found.scores.get(place), found.combinations[place]
        seconds = None if score is None else score.step_seconds
        peak = None if score is None else score.peak_bytes
        table.add(
            found.label(place),
            f"{seconds:.4g}" if seconds else "",
            f"{found.train / seconds:,.4g}" if seconds else "",
            "" if one.memory is None else size(int(one.memory)),
            "" if peak is None else size(peak),
            found.status(place),
        )
    table.print(color=output.color)


def _verdict(found: Tuning, output: Output) -> int:
    from hpcrun.tools.perf import trial_run

    best = found.best
    if found.interrupted:
        output.say(
            f"{trial_run.after_interrupt(found.left)}; no spec is written"
            + ("" if best is None else f"; the fastest so far: {found.label(best)}")
        )
        return EXIT_INTERRUPTED
    if best is None:
        output.say(f"no trial came to an end; `hpcrun why {found.run}` tells more")
        return EXIT_FAILED
    output.say(f"fastest: {found.label(best)}, {found.figures(best)}")
    if best != 0 and found.slowdown is not None:
        output.say(f"the spec as it is takes {found.slowdown:.2f} times as long")
    if not found.completed:
        output.say(f"the trials did not come to their end; `hpcrun why {found.run}` tells more")
    output.say(f"next: hpcrun submit {found.path}")
    return EXIT_OK
