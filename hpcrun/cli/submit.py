"""``hpcrun submit``: check and submit an experiment or a sweep."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcrun import activity
from hpcrun.cli.options import (
    Output,
    command_line,
    common,
    program_arguments,
    root_option,
)
from hpcrun.cli.program_line import ProgramCommand
from hpcrun.cli.where import confirm
from hpcrun.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, UsageError
from hpcrun.slurm import client, patience
from hpcrun.text import listed, one_line

if TYPE_CHECKING:
    from hpcrun.compile import Compiled
    from hpcrun.submission.submission_dir import Submitted
    from hpcrun.submission.submit import Preview


@click.command("submit", cls=ProgramCommand)
@program_arguments
@click.option(
    "-n", "--dry-run", is_flag=True, help="Print what would be submitted, as `plan` does."
)
@click.option(
    "-W", "--wait", is_flag=True, help="Wait until all runs end; exit code 1 if one failed."
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask, whatever it may cost.")
@click.option("--no-check", is_flag=True, help="Do not ask the cluster first what it would refuse.")
@click.option(
    "--no-suspects", is_flag=True, help="Use nodes whose hardware failed one of your jobs."
)
@click.option("--new", is_flag=True, help="Give every run a new number, also those run before.")
@click.option(
    "--only",
    "words",
    multiple=True,
    metavar="FILTER",
    help="Submit only runs that are `new`, `failed` or `cancelled`, meet a condition (lr=3e-4, "
    "'lr>=1e-3 and not seed=2') or are named (NAME/0-3).",
)
@common
def command(
    spec: str,
    overrides: tuple[str, ...],
    sweeps: tuple[str, ...],
    dry_run: bool,
    wait: bool,
    yes: bool,
    no_check: bool,
    no_suspects: bool,
    new: bool,
    words: tuple[str, ...],
    output: Output,
) -> int:
    """Submit every run of SPEC that has not completed and is not on its way already.

    Repeat the command to go on: completed runs are left alone (but for a changed value of an
    `extendable` key), runs that are queued or running stay as they are, and those that failed,
    stopped or were cancelled go on from their newest checkpoint (a script as `recovery.resume`
    says), with the code of now. What SPEC depends on is submitted before it. Where the queue has
    no room for all, this waits and submits the rest as jobs end; Ctrl-C leaves the rest for the
    next submit.
    """
    chain = output.compiled(spec, overrides, sweeps)
    only = None
    if words:
        from hpcrun.cli.only import NEW, STATES, chooser

        if new and (states := {*words} & {*STATES}) and NEW not in states:
            raise UsageError(
                f"--new gives every run a new number, and --only {min(states)} is for earlier ones",
                hint="leave --new out, or choose by values, such as --only lr=3e-4",
            )
        only = chooser(words, output.say)
    from hpcrun.submission.most_hours import asks_first, plans_above_limit
    from hpcrun.submission.submission_dir import chain_data
    from hpcrun.submission.submit import Request, preview_chain, submit_chain

    request = Request(command_line(), output.say, new, only, avoid=not no_suspects)
    if any(one.has_default_cluster for one in chain):
        _check_cluster(chain, output, asks=not (dry_run or yes))
    if dry_run:
        if client.available():
            from hpcrun.submission import preflight

            preflight.check_executor(chain[-1].cluster)
        previews = preview_chain(chain, request)
        _show(chain, previews, str(chain[-1].root), output)
        if above := plans_above_limit(one.submitted for one in previews):
            output.say(f"submit asks first: {above}")
        return EXIT_OK
    patience.act()
    # They were said above.
    if not yes and sys.stdin.isatty() and any(one.doubts for one in chain):
        click.confirm("Submit all the same?", abort=True, err=True)
    if not yes and (question := asks_first(chain, request)):
        what, above = question
        confirm(what, f", {above}")
    if not no_check:
        from hpcrun.check.check import SubmitCheck

        request = replace(request, check=SubmitCheck(output.say, [*overrides, *sweeps]))
    with activity.doing(f"submitting {chain[-1].name}"):
        done = submit_chain(chain, request)
    if output.json:
        output.data(chain_data(done))
    else:
        _tell(done, chain[-1], output)
    return _wait(done, output) if wait else EXIT_OK


def _check_cluster(chain: Sequence[Compiled], output: Output, *, asks: bool) -> None:
    """Ask, or say, if the default cluster is another than before.

    Raises UsageError if there is no terminal to ask on.
    """
    from hpcrun.submission.cluster_choice import other_cluster

    if (found := other_cluster(chain)) is None:
        return
    if not asks:
        output.say(f"{found}; {found.hint}")
        return
    if not sys.stdin.isatty():
        raise UsageError(str(found), hint=f"{found.hint}; --yes submits to the default")
    click.confirm(one_line(f"{found}. Submit to {found.now}?"), abort=True, err=True)


def _show(
    chain: Sequence[Compiled], previews: Sequence[Preview], root: str, output: Output
) -> None:
    from hpcrun.cli import plan as printing

    *others, last = previews
    lacking = [printing.tell_unfrozen(one.submitted, Path(root), output) for one in previews]
    if output.json:
        data = {"root": root, **last.to_data(), "unfrozen": lacking[-1]}
        output.data({**data, "before": [one.to_data() for one in others]} if others else data)
        return
    for compiled, one in zip(chain, previews, strict=True):
        if one.plan.arrays:
            lines = "\n".join(printing.lines(one.submitted, root, compiled.no_flags))
            click.echo(lines + ("\n" if one is not last else ""))


def _tell(done: Sequence[Submitted], compiled: Compiled, output: Output) -> None:
    arrays = [array for submitted in done for array in submitted.arrays]
    for array in arrays:
        output.line(array.job_id)
    if arrays:
        where = f"{root_option(compiled.root)} {compiled.name}"
        output.say("")
        output.say(f"hpcrun status{where}   hpcrun logs -f{where}")


def _wait(done: Sequence[Submitted], output: Output) -> int:
    from hpcrun.cli import verdict
    from hpcrun.control.wait import wait
    from hpcrun.host import interrupted_from_outside
    from hpcrun.state import ledger
    from hpcrun.state.layout import ExperimentPaths
    from hpcrun.submission.run_actions import SKIPPED

    name = done[-1].experiment
    root = root_option(done[-1].directory.parent)
    failed: list[str] = []
    count = pruned = 0
    try:
        with interrupted_from_outside():
            for one in done:
                asked = [run.run for run in one.runs if run.action != SKIPPED]
                paths = ExperimentPaths(one.directory)
                ended_badly = wait(paths, asked, say=output.say)
                verdict.say_causes(paths, ended_badly, output)
                failed += [f"{one.experiment}/{run}" for run in ended_badly]
                count += len(asked)
                pruned += sum(ledger.intent(paths.run(run)) == ledger.PRUNED for run in asked)
    except KeyboardInterrupt:
        output.say("")
        output.say(
            f"no longer waiting; the runs go on. `hpcrun status{root} {name}` shows "
            f"them, `hpcrun cancel{root} {name}` ends them"
        )
        return EXIT_INTERRUPTED
    if failed:
        first = failed[0].partition("/")[0]
        output.say(f"did not complete: {listed(failed, 8)}; `hpcrun why{root} {first}` tells more")
        return EXIT_FAILED
    output.say(verdict.all_over(count, pruned))
    output.say(f"next: hpcrun results{root} {name}   hpcrun logs{root} {name}")
    return EXIT_OK
