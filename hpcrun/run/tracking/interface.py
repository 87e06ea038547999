"""The interface of a tracker, and the description of a run that each is given."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hpcrun.policy import batch
from hpcrun.state import ledger
from hpcrun.state.layout import RunPaths
from hpcrun.state.metrics_file import Line
from hpcrun.state.plan import RunPlan


def identity(paths: RunPaths) -> str:
    """Return the name of a run for trackers: the same for all its attempts, and for no other run.

    It covers the time of the first start, because a directory that was removed and made again holds
    another run. The plan's identity would change when a run is lengthened.
    """
    first = next((one.began for one in ledger.read(paths)), None)
    text = json.dumps([os.path.realpath(paths.directory), first])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class RunDescription:
    """A run, as trackers show it."""

    # The experiment's name, and the run's: ``study/3 lr=0.1``.
    experiment: str
    name: str
    identity: str
    """The value of `identity` for the run."""
    parameters: dict[str, Any]
    """``config`` of the spec, the batch sizes under ``deepspeed``, and ``swept``."""
    tracking: dict[str, Any]
    """The spec's block of this name."""

    @classmethod
    def of(cls, experiment: str, run: RunPlan, paths: RunPaths) -> RunDescription:
        """Describe a run from its plan and ledger."""
        deepspeed = run.deepspeed
        return cls(
            experiment=experiment,
            name=f"{experiment}/{run.number} {run.label}".rstrip(),
            identity=identity(paths),
            parameters={
                "config": run.config,
                "deepspeed": {key: deepspeed[key] for key in batch.KEYS if key in deepspeed},
                "swept": run.swept,
            },
            tracking=run.spec.get("tracking") or {},
        )


class Tracker(Protocol):
    """One tracker's record of one run, open in this process.

    It is given a ``directory`` for its files (not made yet), the last `state` of the process before
    (empty for the first), and the newest ``step`` that was sent.
    """

    def __init__(
        self, run: RunDescription, directory: Path, state: dict[str, Any], step: int
    ) -> None: ...

    @property
    def state(self) -> dict[str, Any]:
        """The facts that the next process needs to go on, as JSON; kept after each `send`."""

    @property
    def starts_over(self) -> bool:
        """Check whether lines that an earlier process sent never arrived.

        All lines are sent again then, and the tracker leaves out those that did arrive.
        """

    def send(self, lines: Sequence[Line], kept: int | None) -> None:
        """Send new lines, which replace all steps after ``kept`` (None: they replace nothing)."""

    def close(self, ended: str | None) -> None:
        """Send what is held back, and end.

        ``ended`` is how the run has: ``completed``, ``failed`` or ``cancelled``; None if it goes
        on, in another process.
        """


def flat(value: Any, name: str = "") -> Iterator[tuple[str, bool | float | str]]:
    """Yield full key and value of each parameter that a table of hyperparameters can show."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from flat(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, (bool, int, float, str)):
        yield name, value
    elif value is not None:
        yield name, json.dumps(value)
