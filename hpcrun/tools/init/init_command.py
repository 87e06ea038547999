"""``hpcrun init``: a profile of this cluster, and a project that runs on it as it is."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcrun.cli.options import Output, common
from hpcrun.errors import EXIT_OK, UsageError
from hpcrun.host import expand_home
from hpcrun.text import visible

if TYPE_CHECKING:
    from hpcrun.tools.init.starter.init_plan import InitPlan


@click.command("init")
@click.argument("directory", default=".", metavar="[DIR]")
@click.option("--local", "is_local", is_flag=True, help="For this machine; Slurm is not asked.")
@click.option("--profile-only", is_flag=True, help="The cluster's profile, without a project.")
@click.option("--from", "script", metavar="FILE", help="Make the spec of this sbatch script.")
@click.option(
    "-o", "--output", "spec", metavar="SPEC", help="With --from: where the spec is written."
)
@click.option("--force", is_flag=True, help="Replace files that are there and differ.")
@click.option("-n", "--dry-run", is_flag=True, help="Print the files; write nothing.")
@common
def command(
    directory: str,
    is_local: bool,
    profile_only: bool,
    script: str | None,
    spec: str | None,
    force: bool,
    dry_run: bool,
    output: Output,
) -> int:
    """Write a profile of this cluster, and a project in DIR that trains on it as it is.

    Asks Slurm and this login node what the site is (partitions, limits, accounts, storage, modules,
    Pythons with torch), and writes a profile with comments to ~/.config/hpcrun/clusters. DIR, by
    default the current directory, gets experiment.yaml and train.py. Where there is no Slurm, the
    project runs on this machine. What is there already is kept.

    With --from, only a spec and a shell file are written, made of an sbatch script; nothing of that
    is executed. Where each of its lines went is told beside it, and what the spec asks for.
    """
    if script is not None:
        return _convert(script, spec, directory, force, dry_run, output, is_local or profile_only)
    if spec is not None:
        raise UsageError("-o names the spec that --from makes", hint="hpcrun init DIR")
    from hpcrun.slurm import patience
    from hpcrun.tools.init.starter import init_plan

    patience.act()
    request = init_plan.InitRequest(
        expand_home(directory), output.root, force, is_local, profile_only
    )
    plan = init_plan.make(request)
    if not dry_run:
        plan.write()
    for note in plan.notes:
        output.say(f"note: {note}")
    if output.json:
        output.data(init_plan.data(plan, dry_run=dry_run))
    else:
        _print(plan, output, dry_run=dry_run)
    if dry_run:
        output.say("nothing was written (--dry-run)")
    return EXIT_OK


def _convert(
    script: str,
    spec: str | None,
    directory: str,
    force: bool,
    dry_run: bool,
    output: Output,
    is_starter: bool,
) -> int:
    from hpcrun.tools.init.convert.conversion import converted

    if is_starter:
        raise UsageError("--from makes a spec: --local and --profile-only are for a new project")
    path = None if spec is None else expand_home(spec)
    done = converted(Path(expand_home(script)), expand_home(directory), path, force=force)
    if not dry_run:
        done.write()
    if output.json:
        output.data(done.to_data(dry_run=dry_run))
    elif dry_run:
        click.echo(visible(done.conversion.spec), nl=False)
        if done.shell is not None:
            click.echo(f"--- {done.shell.path.name}\n{visible(done.shell.text)}", nl=False)
    else:
        for one in filter(None, (done.spec, done.shell)):
            output.line(f"{one.action}: {one.path}")
    for line in () if output.json else done.lines():
        click.echo(line, err=dry_run)
    for note in done.conversion.notes:
        output.say(f"note: {note}")
    if dry_run:
        output.say("nothing was written (--dry-run)")
    elif not output.json:
        output.line(f"next: hpcrun check {shlex.quote(str(done.spec.path))}")
    return EXIT_OK


def _print(plan: InitPlan, output: Output, *, dry_run: bool) -> None:
    """Print what was found and done, or would be, and what to type next."""
    from hpcrun.observe.tables import Table
    from hpcrun.tools.init.starter import init_plan

    for one in plan.files if dry_run else ():
        output.line(f"--- {one.path} (would be {one.action})")
        is_long = one.path.suffix == ".json"
        click.echo("as `hpcrun schema` prints it\n" if is_long else visible(one.text))
    table = Table(("found", "what", "learnt from"))
    for row in init_plan.rows(plan):
        table.add(*row)
    table.print(color=output.color)
    for one in () if dry_run else plan.files:
        output.line(f"{one.action}: {one.path}")
    first, *more = plan.next_lines()
    output.line(f"next: {first}")
    for line in more:
        output.line(f"      {line}")
