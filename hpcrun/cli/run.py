"""``hpcrun run``: run in the foreground, in this allocation or on this machine."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

import click

from hpcrun import activity, resources
from hpcrun.cli.options import Output, command_line, common, program_arguments
from hpcrun.cli.program_line import ProgramCommand
from hpcrun.errors import EXIT_INTERRUPTED, EXIT_OK, HpcrunError, UsageError
from hpcrun.policy import causes
from hpcrun.state import ledger
from hpcrun.state.spec.executors import LOCAL, SLURM

if TYPE_CHECKING:
    from hpcrun.submission.submission_dir import Prepared


@click.command("run", cls=ProgramCommand)
@program_arguments
@click.option("--new", is_flag=True, help="Give every run a new number, also those run before.")
@common
def command(
    spec: str, overrides: tuple[str, ...], sweeps: tuple[str, ...], new: bool, output: Output
) -> int:
    """Run SPEC here and now, one run of a sweep after another, and show the ranks' output.

    Inside an allocation (salloc) on its nodes, otherwise, and with cluster=local, on this machine.
    Ctrl-C stops the run, as does closing the terminal; the same command goes on from its newest
    checkpoint.
    """
    from hpcrun.slurm import allocation, client, patience
    from hpcrun.submission.submission_dir import chain_data
    from hpcrun.submission.submit import Request, run_chain

    patience.act()
    if not allocation.is_around() and not any(
        override.startswith("cluster=") for override in overrides
    ):
        overrides = (*overrides, "cluster=local")
        if client.available():
            output.say(
                "cluster: local, which is this machine, as this is no allocation; `salloc` makes "
                "one, and `hpcrun submit` queues the runs"
            )
    chain = output.compiled(spec, overrides, sweeps)
    inside = allocation.around(chain[-1].cluster)
    if resources.configs("experiments").get(spec) == Path(file := chain[-1].spec_file):
        output.say(f"{spec} ships with hpcrun: {file}")
    if inside is not None:
        inside.check(run for compiled in chain for run in compiled.runs)
    done, code = run_chain(
        chain,
        Request(command_line(), output.say, new),
        LOCAL if inside is None else SLURM,
        lambda prepared: _bring_to_end(prepared, inside.name if inside else None, output),
    )
    if output.json:
        output.data(chain_data(done))
    return code


def _bring_to_end(prepared: Prepared, allocation: str | None, output: Output) -> int:
    from hpcrun.submission import run_here

    if prepared.draft is None:
        return _nothing_to_do(prepared)
    progress = _Progress(prepared, is_local=allocation is None)
    runs, began = _runs(prepared), time.monotonic()

    def announce(run: int) -> None:
        progress.run = run
        if len(runs) > 1:
            label = prepared.plan.run(run).label
            output.say(f"--- {prepared.plan.name}/{run}" + (f" {label}" if label else ""))

    with activity.doing(progress.told), _output_shown(prepared, output):
        code, signal = run_here.bring_to_end(
            prepared, allocation, announce=announce, say=output.say
        )
    if code == EXIT_INTERRUPTED:
        by = causes.interrupted_by(signal)
        output.say(f"cancelled by {by}; the same command goes on, from what the run has saved")
        return code
    from hpcrun.cli import verdict

    verdict.tell(prepared.experiment, runs, time.monotonic() - began, output)
    return code


class _Progress:
    """Describe the run that is under way, while its ranks print nothing."""

    def __init__(self, prepared: Prepared, *, is_local: bool) -> None:
        self.run: int | None = None
        self._prepared = prepared
        # Slurm is asked for an allocation's job.
        self._pause = 0.5 if is_local else 5.0
        self._asked, self._before = float("-inf"), ""

    def told(self) -> str:
        """Return its state in a line."""
        run = self.run
        if run is None:
            return f"{self._prepared.plan.name}: its first run is about to start"
        if time.monotonic() - self._asked > self._pause:
            self._before, self._asked = self._looked(run), time.monotonic()
        return self._before

    def _looked(self, run: int) -> str:
        from hpcrun.control import wait
        from hpcrun.observe.status.slurm_cache import LastAnswers

        prepared, name = self._prepared, f"{self._prepared.plan.name}/{run}"
        submission = prepared.submission.number
        try:
            attempts = ledger.read(prepared.experiment.run(run))
            if not any(one.started.get("submission") == submission for one in attempts):
                own = prepared.plan.run(run).environment.setup
                setup = own or prepared.plan.cluster.get("setup")
                return f"{name} {'runs its setup lines and ' if setup else ''}starts its supervisor"
            ask = LastAnswers(follows=True).ask
            return wait.standing(self._prepared.experiment, [run], ask)
        except (OSError, HpcrunError):
            return f"{name} is under way"


def _nothing_to_do(prepared: Prepared) -> int:
    from hpcrun.submission.run_actions import GOOD_ENDS

    busy = [decision for decision in prepared.decisions if decision.action not in GOOD_ENDS]
    if not busy:
        return EXIT_OK
    name, job = prepared.plan.name, busy[0].job
    raise UsageError(
        f"{name}/{busy[0].run} is queued or running already (job {job.job_id if job else '?'})",
        hint=f"`hpcrun logs -f {name}` shows it, `hpcrun cancel {name}` ends it",
    )


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
    arguments = (prepared, after, over, output, activity.current())
    thread = threading.Thread(target=_show, args=arguments, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=10)


class _Out:
    """The standard output, on which lines take the place of the reporter's."""

    def __init__(self, stream: BinaryIO, reporter: activity.ActivityLine | None) -> None:
        self._stream, self._reporter = stream, reporter

    def write(self, data: bytes) -> None:
        if data and self._reporter is not None:
            with self._reporter.printing():
                self._stream.write(data)
                self._stream.flush()
        elif data:
            self._stream.write(data)

    def flush(self) -> None:
        self._stream.flush()


def _show(
    prepared: Prepared,
    after: dict[Path, int],
    over: threading.Event,
    output: Output,
    reporter: activity.ActivityLine | None,
) -> None:
    from hpcrun.observe.logs.log_files import LogChoice
    from hpcrun.observe.logs.render import Presenter, Printer
    from hpcrun.observe.logs.watch import Watch
    from hpcrun.observe.read.selection import Finder

    experiment = prepared.experiment
    selected = Finder(experiment.root).runs(experiment, _runs(prepared))
    watch = Watch(selected, LogChoice(attempt="all"), after=after, is_over=over.is_set)
    try:
        out = cast("BinaryIO", _Out(sys.stdout.buffer, reporter))
        watch.show(Presenter(Printer(selected, color=output.color)), out, check=0.1)
    except OSError as error:
        output.say(f"the output is shown no more: {error.strerror or error}")
