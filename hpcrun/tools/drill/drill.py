"""Submit a run that is hurt on purpose, and measure what each fault cost."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hpcrun.compile import Compiled
from hpcrun.control.cancel import cancel
from hpcrun.control.wait import wait
from hpcrun.errors import UsageError
from hpcrun.fields import TIME
from hpcrun.host import interrupted_from_outside
from hpcrun.observe.read.selection import Finder
from hpcrun.policy import causes
from hpcrun.policy import faults as policy_faults
from hpcrun.policy.recovery import began_with
from hpcrun.state import files, ledger, session_log
from hpcrun.state.layout import AttemptPaths, ExperimentPaths, RunPaths
from hpcrun.state.ledger import Attempt
from hpcrun.submission.submit import Request, submit


@dataclass(frozen=True)
class DrillResult:
    """The run's state at the end, and each fault's outcome in the order given."""

    experiment: str
    run: int
    completed: bool
    outcomes: list[FaultOutcome]

    @property
    def came_back(self) -> int:
        """The number of faults that the run came back after."""
        return sum(outcome.came_back for outcome in self.outcomes)


def default_faults(compiled: Compiled) -> list[str]:
    """Return all faults that the first run can outlive."""
    first, left_out = compiled.runs[0], set()
    if not first.outlives_nodes:
        left_out.add(policy_faults.LOSE_NODE)
    if first.entry.kind != "function" and not first.checkpoint.every:
        # It saves by itself, and not as sessions do.
        left_out.add(policy_faults.CORRUPT_CHECKPOINT)
    return [fault for fault in policy_faults.FAULTS if fault not in left_out]


def with_faults(compiled: Compiled, faults: Sequence[str], steps: int) -> Compiled:
    """Return an experiment NAME-drill of the first run alone, to which the faults are done.

    A fault comes ``steps`` optimizer steps after a start. Raise UsageError if the spec lacks what a
    fault needs.
    """
    first = compiled.runs[0]
    if policy_faults.CORRUPT_CHECKPOINT in faults and not first.checkpoint.every:
        raise UsageError(
            f"{policy_faults.CORRUPT_CHECKPOINT} needs a run that saves by itself",
            hint="add checkpoint.every=N, of so few steps that two checkpoints are there before",
        )
    if policy_faults.CORRUPT_CHECKPOINT in faults and first.checkpoint.keep < 2:
        raise UsageError(
            f"{policy_faults.CORRUPT_CHECKPOINT} needs a checkpoint to go back to; "
            "checkpoint.keep is 1",
            hint="add checkpoint.keep=2",
        )
    if policy_faults.STOP_RANK in faults and first.recovery.hang_after is None:
        raise UsageError(
            f"{policy_faults.STOP_RANK} is never noticed: recovery.hang_after is null",
            hint='add recovery.hang_after="00:05:00"',
        )
    block = {"faults": list(faults), "steps": steps}
    run = dataclasses.replace(first, spec={**first.spec, policy_faults.KEY: block})
    return dataclasses.replace(compiled, name=f"{compiled.name}-{policy_faults.KEY}", runs=(run,))


def drill(compiled: Compiled, faults: Sequence[str], request: Request) -> DrillResult | None:
    """Submit an experiment of `with_faults` and wait for its end; None if it was interrupted.

    Ctrl-C cancels the run.
    """
    say = request.say
    submitted = submit(compiled, request)
    experiment, number = ExperimentPaths(submitted.directory), submitted.runs[0].run
    name = f"{experiment.name}/{number}"
    try:
        times = "once" if len(faults) == 1 else f"{len(faults)} times"
        say(f"{name} will be hurt {times}; this takes a while")
        with interrupted_from_outside():
            failed = wait(experiment, [number], say=say)
    except KeyboardInterrupt:
        say(f"interrupted; {name} is cancelled")
        cancel(Finder(experiment.directory.parent).resolve([name]), say)
        return None
    found = outcomes(experiment.run(number), faults)
    return DrillResult(experiment.name, number, not failed, found)


@dataclass(frozen=True)
class FaultOutcome:
    """One fault and what followed; None where nothing did."""

    fault: str
    rank: int | None = None
    node: str | None = None
    attempt: int | None = None
    """The attempt that it hit; None, as all below, if the run ended before."""
    cause: str | None = None
    """The recorded cause, a kind of `hpcrun.policy.causes`."""
    action: str | None = None
    """``restart``, ``requeue`` or ``stop``."""
    seconds: float | None = None
    """From the fault to the first logged step after it."""
    lost_steps: int | None = None
    """Steps that were done again."""
    came_back: bool = False
    """True if the run made steps, or completed, after it."""


def outcomes(paths: RunPaths, faults: Sequence[str]) -> list[FaultOutcome]:
    """Return what followed each of the requested faults, in their order."""
    attempts = ledger.read(paths)
    injected = ledger.faults(paths)
    found = [_outcome(paths, record, attempts) for record in injected]
    return [*found, *map(FaultOutcome, faults[len(injected) :])]


def _outcome(paths: RunPaths, fault: dict[str, Any], attempts: Sequence[Attempt]) -> FaultOutcome:
    number = int(fault["attempt"])
    hurt = next(attempt for attempt in attempts if attempt.number == number)
    if hurt.outcome == causes.COMPLETED:
        # It came too late to do any harm.
        return FaultOutcome(str(fault["fault"]))
    later = [paths.attempt(attempt.number) for attempt in attempts if attempt.number > number]
    times = (time for each in later if (time := _first_logged(each)) is not None)
    first = next(times, None)
    # Of a program that saves by itself, the first step that it logs tells.
    known = dict(zip((one.number for one in attempts), began_with(attempts), strict=True))
    steps = (
        known[each.number] if (step := session_log.read_any(each).restored_step) is None else step
        for each in later
    )
    restored = next((step for step in steps if step is not None), None)
    reached = hurt.end.get("reached_step")
    return FaultOutcome(
        fault=str(fault["fault"]),
        rank=fault.get("rank"),
        node=fault.get("node"),
        attempt=number,
        cause=hurt.kind,
        action=hurt.action,
        seconds=None if first is None else round(first - float(fault["time"]), 1),
        came_back=first is not None
        or any(attempt.outcome == causes.COMPLETED for attempt in attempts),
        lost_steps=None if reached is None or restored is None else max(0, reached - restored),
    )


def _first_logged(attempt: AttemptPaths) -> float | None:
    """Return the time of an attempt's first line of metrics; None without one."""
    with contextlib.suppress(OSError):
        for line in files.read_lines(attempt.metrics):
            if TIME.accepts(line.get("time")):
                return float(line["time"])
    return None
