"""Profile a few steps of a spec, or of a run that there is, by a run of their own."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hpcrun import gpu_catalogue
from hpcrun.compile import Compiled
from hpcrun.compile.freeze import CompiledRun
from hpcrun.control.cancel import cancel
from hpcrun.control.wait import wait
from hpcrun.errors import UsageError
from hpcrun.host import interrupted_from_outside
from hpcrun.observe import step_profile
from hpcrun.observe.read.selection import Finder, Selected
from hpcrun.observe.step_profile import StepProfile
from hpcrun.state import files, permissions
from hpcrun.state.layout import ExperimentPaths
from hpcrun.state.spec import profiling
from hpcrun.submission.code import frozen_code, snapshot
from hpcrun.submission.submit import Request, submit

_RUN = re.compile(r"[A-Za-z][\w.+-]*/[0-9]{1,9}")


class UnfinishedProfileError(UsageError):
    """The run that was to be profiled did not come to the end of it."""

    def __init__(self, experiment: ExperimentPaths, run: int, why: str, hint: str) -> None:
        super().__init__(why, hint=hint)
        self.experiment, self.run = experiment, run


def is_run(word: str) -> bool:
    """Check whether a word is ``NAME/3`` rather than the path of a spec."""
    return _RUN.fullmatch(word) is not None and not Path(word).exists()


def with_profile(compiled: Compiled, steps: int, warmup: int) -> Compiled:
    """Return an experiment NAME-profile of the first run alone, of which some steps are profiled.

    It saves no checkpoints, tells nobody, and is not started again.
    """
    first = compiled.runs[0]
    spec = {
        **first.spec,
        profiling.KEY: {"steps": steps, "warmup": warmup},
        "checkpoint": {**(first.spec.get("checkpoint") or {}), "every": None},
        "recovery": {**(first.spec.get("recovery") or {}), "requeue": False, "in_place": 0},
        "notify": {},
        "tracking": {},
    }
    return dataclasses.replace(
        compiled,
        name=compiled.name if profiling.KEY in first.spec else f"{compiled.name}-{profiling.KEY}",
        runs=(dataclasses.replace(first, spec=spec),),
        prerequisites=(),
    )


@contextlib.contextmanager
def frozen(selected: Selected) -> Iterator[Compiled]:
    """Compile a run as it was frozen: its configuration, and its code, unpacked for the block.

    Raises
    ------
    UsageError
        It is another user's, or its code is gone.
    """
    permissions.check_mine(selected.experiment, [selected.run.number], "profile")
    plan, run, source = selected.plan, selected.run, selected.planned.paths
    archive = source.experiment.frozen_code(snapshot.read_record(source))
    assert archive is not None
    with tempfile.TemporaryDirectory(prefix="hpcrun-profile-") as directory:
        root = Path(directory)
        for member, data in frozen_code.members(archive):
            target = root / member.name
            if ".." in target.parts or not target.parent.resolve().is_relative_to(root.resolve()):
                raise UsageError(f"{archive}: {member.name!r} would be written elsewhere")
            target.parent.mkdir(parents=True, exist_ok=True)
            if member.issym():
                target.symlink_to(member.linkname)
            else:
                target.write_bytes(data)
                target.chmod(member.mode & 0o777)
        yield Compiled(
            name=plan.name,
            root=selected.experiment.root,
            spec_file=plan.spec_file,
            code_root=directory,
            directory=plan.directory,
            cluster=plan.cluster,
            max_parallel=None,
            runs=(CompiledRun(run.identity, run.label, run.swept, run.entry, run.spec),),
        )


def profile(compiled: Compiled, request: Request) -> StepProfile | None:
    """Submit an experiment of `with_profile`, wait, and return its profile; None if interrupted.

    Ctrl-C cancels the run.

    Raises
    ------
    UnfinishedProfileError
        It failed, or ended before its steps were done.
    """
    say, wanted = request.say, compiled.runs[0].spec[profiling.KEY]
    submitted = submit(compiled, request)
    experiment, number = ExperimentPaths(submitted.directory), submitted.runs[0].run
    name = f"{experiment.name}/{number}"
    try:
        with interrupted_from_outside():
            failed = wait(experiment, [number], say=say)
    except KeyboardInterrupt:
        say(f"interrupted; {name} is cancelled")
        cancel(Finder(experiment.root).resolve([name]), say)
        return None
    attempts = experiment.run(number).attempts()
    if failed or not attempts:
        why = f"{name} failed before its profile was done"
        raise UnfinishedProfileError(
            experiment, number, why, f"`hpcrun why {name}` tells the cause"
        )
    ranks, warmup = compiled.runs[0].main_ranks, wanted["warmup"]
    try:
        found = step_profile.of_summaries(name, attempts[-1], ranks, warmup, _peak)
    except UsageError as error:
        needed = profiling.needed(wanted["steps"], warmup)
        hint = (
            f"a profile takes {needed} optimizer steps: have the program make as many, or give "
            "--steps and --warmup less"
        )
        raise UnfinishedProfileError(experiment, number, error.message, hint) from None
    files.write_json(attempts[-1].whole_profile, found.to_data())
    return found


def _peak(device: str, dtype: str, tf32: bool) -> float | None:
    gpu = gpu_catalogue.of_device(device)
    if gpu is None:
        return None
    if dtype == "float32":
        return ((gpu.tf32 if tf32 else None) or gpu.fp32) * 1e12
    if dtype.startswith("float8"):
        return gpu.fp8 * 1e12 if gpu.fp8 else None
    return gpu.half * 1e12 if dtype in ("bfloat16", "float16") else None
