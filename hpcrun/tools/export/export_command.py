"""``hpcrun export``: an experiment without its checkpoints, as one archive."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcrun import activity
from hpcrun.cli.options import Output, common
from hpcrun.cli.where import select, where_argument
from hpcrun.errors import UsageError
from hpcrun.terminal import styled
from hpcrun.text import one_line, plural, size

if TYPE_CHECKING:
    from hpcrun.observe.read.selection import Selected


@click.command("export")
@where_argument
@click.option(
    "-o",
    "--output",
    "target",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE.tar.gz",
    help="Where to write the archive.",
)
@click.option("--logs", is_flag=True, help="With all that was printed.")
@click.option("--force", is_flag=True, help="Replace the file if it is there.")
@click.option("-n", "--dry-run", is_flag=True, help="Only list the files and their bytes.")
@common
def command(
    where: tuple[str, ...],
    conditions: tuple[str, ...],
    target: Path,
    logs: bool,
    force: bool,
    dry_run: bool,
    output: Output,
) -> None:
    """Configuration, code, versions and metrics of runs without their checkpoints, as one archive.

    For the archive of a paper: frozen code, plans, scripts, DeepSpeed's JSON, ledgers, metrics,
    telemetry, a table of results, a README.txt that says what is what and how to run it again, and
    checksums. hpcrun reads it, unpacked, as it reads any experiment. Equal files give equal bytes.

    {where or newest}.
    """
    from hpcrun.observe.status.status import statuses
    from hpcrun.tools.export import export

    _check(target, force or dry_run)
    selected = select(output, where, conditions)
    found = statuses(selected, warn=output.say)
    going_on = sum(not status.over for status in found)
    if going_on:
        output.say(f"{plural(going_on, 'run')} of {len(found)} not over: exported as of now")
    for name in sorted({name for one in selected for name in _suspicious(one)}):
        output.say(f"{name} looks like a secret, and its value is in the archive")
    with activity.doing("looking for the files"):
        members = export.members(selected, found, logs=logs, say=output.say)
    total = sum(member.bytes for member in members)
    listed = [{"name": one.path, "bytes": one.bytes, "sha256": None} for one in members]
    if not dry_run:
        quiet = output.verbosity < 0 or not sys.stderr.isatty()
        with contextlib.ExitStack() as stack:
            bar = stack.enter_context(
                click.progressbar(
                    length=total, label=one_line(target.name), file=styled(sys.stderr), hidden=quiet
                )
            )
            if quiet:
                told = f"writing {target}"
                stack.enter_context(
                    activity.doing(lambda: f"{told}: {size(bar.pos)} of {size(total)}")
                )
            written = export.write(target, members, bar.update)
        listed = [{"name": m.path, "bytes": m.bytes, "sha256": digest} for m, digest in written]
    if output.json:
        output.data({"file": str(target), "bytes": total, "files": listed})
    elif dry_run:
        for one in listed:
            output.line(f"{one['bytes']:>12}  {one['name']}")
    done = f"{target} would have" if dry_run else f"{target} has {size(target.stat().st_size)} with"
    output.say(f"{done} {plural(len(listed), 'file')} of {size(total)}")


def _check(target: Path, may_replace: bool) -> None:
    if not target.name.endswith((".tar.gz", ".tgz")):
        raise UsageError(f"-o {target}: accepted is the name of a .tar.gz")
    if not target.parent.is_dir():
        raise UsageError(f"-o {target}: there is no directory {target.parent}")
    if target.exists() and not may_replace:
        raise UsageError(f"-o {target}: it is there already", hint="--force replaces it")


def _suspicious(one: Selected) -> Iterator[str]:
    """Yield what looks like a secret in a run's configuration and profile."""
    from hpcrun.policy import secret_names

    yield from secret_names.places(one.run.spec)
    yield from secret_names.places(one.plan.cluster, "cluster")
