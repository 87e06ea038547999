"""``hpcrun weights``: a run's weights, whole, for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hpcrun.cli.options import Output, common
from hpcrun.cli.where import select
from hpcrun.errors import UsageError
from hpcrun.text import listed, plural, size

_SHOWN = 3


@click.command("weights")
@click.argument("run", metavar="RUN[@STEP]")
@click.option(
    "-o",
    "--output",
    "target",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The directory to make.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["safetensors", "pt"]),
    default="safetensors",
    help="model.safetensors (the default), or pytorch_model.bin.",
)
@click.option(
    "--dtype",
    type=click.Choice(["fp32", "bf16", "fp16"]),
    help="Cast numbers with a point; by default they stay as the optimizer has them.",
)
@click.option("--best", is_flag=True, help="The best checkpoint by the objective, not the newest.")
@click.option(
    "--shard-size",
    type=click.FloatRange(min=0, min_open=True),
    default=5.0,
    metavar="GB",
    help="The most of one file; 5 by default.",
)
@click.option(
    "--python", metavar="PATH", help="A Python with torch and deepspeed, in place of the run's."
)
@click.option("--averaged", is_flag=True, help="The averages of optimization.ema instead.")
@click.option("--force", is_flag=True, help="Replace an earlier export.")
@click.option("-n", "--dry-run", is_flag=True, help="Only say what would be written.")
@common
def command(
    run: str,
    target: Path | None,
    form: str,
    dtype: str | None,
    best: bool,
    shard_size: float,
    python: str | None,
    averaged: bool,
    force: bool,
    dry_run: bool,
    output: Output,
) -> None:
    """A run's weights, whole, in Hugging Face's layout: what ZeRO, pipelines and AutoTP divide.

    RUN is one run: NAME/3, NAME of an experiment of one run, a job id or a directory. Its newest
    complete checkpoint is taken, or that of a STEP. The checkpoint's checksums are verified, and
    the run's own Python reads it. Files that the program wrote to export/ in its working directory,
    such as config.json and a tokenizer's, are copied beside the weights. DIR appears once it is
    complete.
    """
    from hpcrun.tools.weights import weights

    name, step = weights.split_step(run)
    if best and step is not None:
        raise UsageError(f"{run} names a step, and --best another one: leave one out")
    if target is None and not dry_run:
        raise UsageError("-o DIR is missing", hint="--dry-run says what would be in it")
    if target is not None:
        weights.check_target(target, force=force)
    selected = select(output, [name])
    if len(selected) != 1:
        raise UsageError(
            f"{name} is {plural(len(selected), 'run')}, and weights are of one",
            hint=f"name one, such as {selected[0].name}",
        )
    checkpoint, entry = weights.choose(selected[0], step, best=best)
    most = max(1, int(shard_size * 10**9))
    wanted = weights.WeightsRequest(
        selected[0], checkpoint, entry, form, dtype, most, python, averaged
    )
    if dry_run or target is None:
        found = weights.plan(wanted)
    else:
        found = weights.export(wanted, target, force=force)
    _print(found, None if dry_run else target, output)


def _print(found: dict[str, Any], target: Path | None, output: Output) -> None:
    if output.json:
        output.data({"directory": None if target is None else str(target), **found})
    else:
        for name, file in found["files"].items():
            output.line(f"{file['bytes']:>14,}  {name}")
    for note in found["notes"]:
        output.say(note)
    if found["tied"]:
        pairs = [f"{name} is {first}" for name, first in found["tied"].items()]
        output.say(f"safetensors keeps one of tied weights: {listed(pairs, _SHOWN, rest=', …')}")
    kinds = " and ".join(found["dtypes"])
    done = "would have" if target is None else "has"
    output.say(
        f"{target or 'it'} {done} {found['parameters']:,} parameters of {found['run']}, step "
        f"{found['step']}: {size(found['bytes'])} of {kinds}"
    )
