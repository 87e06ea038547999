"""``hpcrun profile``: where the time of a step goes, its MFU and its memory, by rank."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcrun import activity, tools
from hpcrun.cli.options import Output, command_line, common, spec_arguments
from hpcrun.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, UsageError
from hpcrun.slurm import patience
from hpcrun.state.spec import profiling

if TYPE_CHECKING:
    from hpcrun.compile import Compiled
    from hpcrun.observe.step_profile import StepProfile


@click.command("profile")
@spec_arguments
@click.option(
    "--steps",
    type=click.IntRange(1, 100),
    default=profiling.STEPS,
    show_default=True,
    help="Optimizer steps to profile; as many are timed without the profiler.",
)
@click.option(
    "--warmup",
    type=click.IntRange(1),
    default=profiling.WARM_UP,
    show_default=True,
    help="Optimizer steps before.",
)
@click.option(
    "-o",
    "--output",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write a report with the profile too.",
)
@click.option("-n", "--dry-run", is_flag=True, help="Only say what would be done.")
@common
def command(
    spec: str,
    overrides: tuple[str, ...],
    sweeps: tuple[str, ...],
    steps: int,
    warmup: int,
    file: Path | None,
    dry_run: bool,
    output: Output,
) -> int:
    """Run a few steps of SPEC, or of the run NAME/3, and tell where their time goes.

    They are a run of their own, NAME-profile, which begins afresh, saves nothing and ends by
    itself; of a sweep the first run is taken. NAME/3 has the code and the configuration that were
    frozen for it. Each rank's trace is kept for Perfetto. Ctrl-C cancels it.
    """
    from hpcrun.submission.submit import Request
    from hpcrun.tools.perf import profile_run
    from hpcrun.tools.perf.profile_run import UnfinishedProfileError

    if file is not None:
        _check(file)
    with _compiled(spec, overrides, sweeps, output) as compiled:
        compiled = profile_run.with_profile(compiled, steps, warmup)
        if dry_run:
            return _tell_plan(compiled, steps, warmup, output)
        patience.act()
        request = Request(command_line(), output.say, new=True)
        try:
            found = profile_run.profile(compiled, request)
        except UnfinishedProfileError as error:
            from hpcrun.cli import verdict

            verdict.say_causes(error.experiment, [error.run], output)
            output.say(f"{error.message}; {error.hint}")
            return EXIT_FAILED
    if found is None:
        return EXIT_INTERRUPTED
    if output.json:
        output.data(found.to_data())
    else:
        _print(found, output)
    if file is not None:
        _write(file, found, compiled, output)
    return EXIT_OK


@contextlib.contextmanager
def _compiled(
    spec: str, overrides: tuple[str, ...], sweeps: tuple[str, ...], output: Output
) -> Iterator[Compiled]:
    """Compile a spec, or a run as it was frozen."""
    from hpcrun.compile import compile_spec
    from hpcrun.observe.read.selection import Finder
    from hpcrun.state.root_place import default_root
    from hpcrun.tools.perf import profile_run

    if not profile_run.is_run(spec):
        with activity.doing(f"reading {spec}"):
            found = compile_spec(spec, overrides, sweeps, root=output.root)
        output.notes([found])
        yield found
        return
    if overrides or sweeps:
        raise UsageError(
            f"{spec} is profiled as it was frozen; found {(*overrides, *sweeps)[0]}",
            hint="name its spec in its place to profile it with other values",
        )
    (selected,) = Finder(output.root or default_root()).resolve([spec])
    with profile_run.frozen(selected) as found:
        yield found


def _tell_plan(compiled: Compiled, steps: int, warmup: int, output: Output) -> int:
    needed = profiling.needed(steps, warmup)
    if output.json:
        told = {"experiment": compiled.name, "steps": steps, "warmup": warmup, "needed": needed}
        output.data(told)
    else:
        output.line(f"{compiled.name}: {needed} optimizer steps, of which {steps} are profiled")
    return EXIT_OK


def _print(found: StepProfile, output: Output) -> None:
    from hpcrun.observe import step_profile

    for line in step_profile.head(found):
        output.line(line)
    for caption, table in step_profile.tables(found):
        output.line("")
        output.line(f"{caption}:")
        table.print(color=output.color)
    output.line("")
    for line in step_profile.findings(found):
        output.line(line)


def _check(file: Path) -> None:
    """Raise UsageError, before anything runs, if the report cannot be written there."""
    if not tools.has("report"):
        raise UsageError("-o needs `hpcrun report`, which this hpcrun lacks", hint="leave -o out")
    from hpcrun.tools.report.report_command import check_file

    check_file(file, force=False)


def _write(file: Path, found: StepProfile, compiled: Compiled, output: Output) -> None:
    from hpcrun.observe.read.selection import Finder
    from hpcrun.state import files
    from hpcrun.tools.report.page import render
    from hpcrun.tools.report.report import collect

    selected = Finder(compiled.root).resolve([found.name])
    page = render(collect(selected, say=output.say)).encode("utf-8", "replace")
    files.write_bytes(file, page)
    output.say(f"{file}: {len(page) / 1000:,.0f} kB")
