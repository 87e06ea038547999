"""Submit a run that is hurt on purpose, and measure what each fault cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from hpcrun.compile import Compiled
from hpcrun.control.cancel import cancel
from hpcrun.control.wait import wait
from hpcrun.errors import UsageError
from hpcrun.host import interrupted_from_outside
from hpcrun.observe.diagnosis import fault_costs
from hpcrun.observe.read.selection import Finder
from hpcrun.policy import faults as policy_faults
from hpcrun.state.layout import ExperimentPaths
from hpcrun.submission.submit import Request, submit


@dataclass(frozen=True)
class DrillResult:
    """The run's state at the end, and each fault's outcome in the order given."""

    experiment: str
    run: int
    completed: bool
    outcomes: list[fault_costs.FaultOutcome]

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
    outcomes = fault_costs.outcomes(experiment.run(number), faults)
    return DrillResult(experiment.name, number, not failed, outcomes)
