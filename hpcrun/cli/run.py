"""``hpcrun run``: in the foreground, in this allocation or on this machine."""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from hpcrun.cli.options import Output, common
from hpcrun.cli.spec_options import spec_arguments
from hpcrun.cli.submit import command_line
from hpcrun.errors import EXIT_INTERRUPTED, EXIT_OK, UsageError

if TYPE_CHECKING:
    from hpcrun.compile import Compiled
    from hpcrun.observe.logs.tail import Source
    from hpcrun.observe.read.selection import Selected
    from hpcrun.submit.prepared import Prepared, Submitted


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
    from hpcrun.compile.chain import dependences
    from hpcrun.slurm import allocation
    from hpcrun.state import permissions
    from hpcrun.state.layout import experiment
    from hpcrun.submit import lock
    from hpcrun.submit.prepared import chain_data
    from hpcrun.submit.submission_dir import check_root
    from hpcrun.submit.submit import prepare

    inside = allocation.current()
    if inside is None and not any(override.startswith("cluster=") for override in overrides):
        overrides = (*overrides, "cluster=local")
    chain = compile_chain(spec, overrides, sweeps, root=output.root)
    if inside is not None:
        inside.check(run.spec for compiled in chain for run in compiled.runs)
    check_root(chain[-1].root)
    done: dict[str, Submitted] = {}
    code = EXIT_OK
    for compiled in chain:
        compiled = _with_executor(compiled, "local" if inside is None else "slurm")
        permissions.use_umask(compiled.cluster)
        group = permissions.group_id(compiled.cluster)
        with lock.held(experiment(compiled.root, compiled.name), output.say, group):
            prepared = prepare(
                compiled,
                new=new and compiled.file == chain[-1].file,
                depends_on=dependences(compiled, {file: one.numbers for file, one in done.items()}),
                argv=command_line(),
                say=output.say,
            )
        done[compiled.file] = prepared.result()
        code = _bring_to_end(prepared, inside.name if inside else None, output)
        if code != EXIT_OK:
            break
    if output.json:
        output.data(chain_data(done.values()))
    return code


def _bring_to_end(prepared: Prepared, allocation: str | None, output: Output) -> int:
    from hpcrun.submit import run_here

    if prepared.draft is None:
        return _nothing_to_do(prepared)
    follower = _Follower(prepared, output)
    try:
        with follower:
            return run_here.bring_to_end(
                prepared, allocation, announce=follower.announce, say=output.say
            )
    except KeyboardInterrupt:
        output.say("interrupted; the same command goes on from the newest checkpoint")
        return EXIT_INTERRUPTED


def _with_executor(compiled: Compiled, executor: str) -> Compiled:
    if compiled.cluster["executor"] == executor:
        return compiled
    cluster = {**compiled.cluster, "executor": executor}
    if executor == "local":
        # The profile's interfaces are those of the cluster's nodes.
        cluster["fabric"] = {}
    return dataclasses.replace(compiled, cluster=cluster)


def _nothing_to_do(prepared: Prepared) -> int:
    busy = [decision for decision in prepared.decisions if decision.action != "completed"]
    if not busy:
        return EXIT_OK
    name, job = prepared.plan.name, busy[0].job
    raise UsageError(
        f"{name}/{busy[0].run} is queued or running already (job {job.job_id if job else '?'})",
        hint=f"`hpcrun logs -f {name}` shows it, `hpcrun cancel {name}` ends it",
    )


class _Follower:
    """Shows the ranks' output while runs go on; with ``--json`` or ``-q`` nothing is shown."""

    def __init__(self, prepared: Prepared, output: Output) -> None:
        self._prepared, self._output = prepared, output
        self._runs = [run for array in prepared.plan.arrays for run in array.runs]
        self._begun: dict[int, int] = {}
        for run in self._runs:
            attempts = prepared.experiment.run(run).attempts()
            self._begun[run] = attempts[-1].number if attempts else 0
        self._chosen: list[Selected] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)

    def __enter__(self) -> _Follower:
        if not self._output.json and self._output.verbosity >= 0:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10)

    def announce(self, run: int) -> None:
        """Say which run begins, where there are several."""
        if len(self._runs) > 1:
            plan = self._prepared.plan
            label = plan.run(run).label
            self._output.say(f"--- {plan.name}/{run}" + (f" {label}" if label else ""))

    def _show(self) -> None:
        from hpcrun.observe.logs.follow import LOCAL, REMOTE, Follower
        from hpcrun.observe.logs.log_format import Printer
        from hpcrun.observe.logs.remote_storage import is_remote
        from hpcrun.observe.logs.render import Presenter

        self._chosen = self._selected()

        out = sys.stdout.buffer
        presenter = Presenter(Printer(self._chosen, color=self._output.color))
        pace = REMOTE if is_remote(self._prepared.experiment.directory) else LOCAL
        follower = Follower(self._sources, self._over.is_set, idle=out.flush, check=0.1, pace=pace)
        try:
            for block in follower.blocks():
                out.write(presenter.block(block))
            out.flush()
        except OSError as error:
            self._output.say(f"the output is shown no more: {error.strerror or error}")

    def _sources(self, final: bool) -> Iterable[Source]:
        """The logs of the attempts of now; agents' and supervisors' where no rank said a word."""
        from hpcrun.observe.logs import log_files

        if final:
            self._chosen = self._selected()
        for source in log_files.sources(
            self._chosen, log_files.Choice(attempt="all"), fallback=final
        ):
            if source.attempt is None or source.attempt > self._begun[source.run]:
                yield source

    def _selected(self) -> list[Selected]:
        from hpcrun.observe.read.selection import Finder

        directory = self._prepared.experiment.directory
        numbers = ",".join(map(str, self._runs))
        return Finder(directory.parent).resolve([f"{directory.name}/{numbers}"])
