"""Metrics of a run: averaged over ranks without making a step wait, one JSON line a step.

What the ranks exchange for that also carries their votes on a stop.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcrun.errors import NonFiniteLossError
from hpcrun.run.protocol.attempt_fence import AttemptFence
from hpcrun.run.protocol.output import tell
from hpcrun.run.rank import process_groups
from hpcrun.run.rank.async_allreduce import Exchange
from hpcrun.state import files
from hpcrun.state.metrics_file import RESERVED

# Short steps share an exchange, and a write: about one a second.
WINDOW = 1.0
MOST_STEPS = 8


@dataclass
class _Step:
    """What one step logged; ``averaged`` has what this rank gives to an average."""

    number: int
    time: float
    plain: dict[str, float] = field(default_factory=dict)
    averaged: dict[str, Any] = field(default_factory=dict)


class _OnItsWay:
    """A number that a GPU has yet to compute, and then copies to the host."""

    def __init__(self, tensor: Any) -> None:
        import torch

        self._host = torch.empty((), dtype=torch.float64, pin_memory=True)
        self._host.copy_(tensor.detach().reshape(()), non_blocking=True)
        self._copied = torch.cuda.Event()
        self._copied.record()

    def __float__(self) -> float:
        self._copied.synchronize()
        return float(self._host)


class MetricsLog:
    """Writes what `Session.log` is given.

    Tensors are averaged over all ranks while the next step computes; plain numbers are taken from
    rank 0. Steps much shorter than a second share an exchange, up to eight, as rank 0 says; and
    lines are written once a second at most: 500 runs of short steps would otherwise keep the
    metadata server of a shared file system busy.

    Parameters
    ----------
    path
        The attempt's ``metrics.jsonl``; only rank 0 writes it.
    fence
        Checked before anything is written.
    watched
        Metrics that have to be finite.
    told_to_stop
        Whether this rank has been told to stop; asked once an exchange.

    Attributes
    ----------
    latest
        Name -> the last value that this rank knows: all of them on rank 0, elsewhere those that
        were averaged.
    not_finite
        The last steps in a row at which a watched metric was infinite or not a number.
    """

    def __init__(
        self,
        path: Path,
        rank: int,
        world_size: int,
        fence: AttemptFence,
        watched: frozenset[str] = frozenset(),
        told_to_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._rank = rank
        self._world_size = world_size
        self._fence = fence
        self._watched = watched
        self._told_to_stop = told_to_stop
        self._steps: list[_Step] = []
        self._over = 0
        self._sent: tuple[list[_Step], Exchange] | None = None
        self._every = 1
        self._since = 0
        self._exchanged = time.monotonic()
        self._stop = False
        self._lines: list[dict[str, Any]] = []
        self._file = files.Appender(path, tell)
        self._written = float("-inf")
        self.latest: dict[str, float] = {}
        self.not_finite: list[int] = []

    @property
    def error(self) -> OSError | None:
        """Why lines that should be in the file are not; None when they are."""
        return self._file.error

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        """Log values of one step; several calls of one step become one line.

        Parameters
        ----------
        metrics
            Names to numbers or one-element tensors; every rank gives the same names in the same
            order.
        step
            The finished optimizer step, from 1.

        Raises
        ------
        ValueError
            A name is one of the line's own fields.
        """
        if taken := RESERVED.intersection(metrics):
            raise ValueError(
                f"no metric can be named {' or '.join(sorted(taken))}: hpcrun's own fields are "
                "called so"
            )
        current = self._step(step)
        for name, value in metrics.items():
            if not hasattr(value, "detach"):
                if self._rank == 0:
                    current.plain[name] = float(value)
            elif value.is_cuda:
                current.averaged[name] = _OnItsWay(value)
            else:
                current.averaged[name] = float(value)

    def stop_agreed(self, step: int) -> bool:
        """Whether all ranks stop now; collective, to be called once after each optimizer step.

        What a rank was told before one exchange is acted on a step later, by all ranks at the same
        one.
        """
        self._step(step)
        self._end_step(step)
        return self._stop

    def flush(self) -> None:
        """Finish all steps and write their lines; collective."""
        self._receive()
        if self._steps:
            self._send(self._steps)
            self._receive()
        self._write()

    def leave(self, patience: float, *, failing: bool = False) -> None:
        """Write what is known as this process ends; other ranks may be gone.

        Parameters
        ----------
        patience
            Seconds to wait for the others. Of a step that could not be averaged in that time, the
            line says so by ``"ranks": 1``.
        failing
            This rank left at a place of its own. Nothing is sent then: an exchange of another
            length would meet the one of its peers, and gloo aborts the ranks that take part.
        """
        try:
            if not self._complete(time.monotonic() + patience, failing):
                self._alone([*(self._sent[0] if self._sent else ()), *self._steps])
        finally:
            self._write()

    def _complete(self, deadline: float, failing: bool) -> bool:
        """Average what waits with the other ranks; False when that is not to be had in time."""
        while self._sent is not None or self._steps:
            if self._sent is None:
                if failing:
                    return False
                if self._world_size > 1 and not process_groups.has_one_of_the_host():
                    # To form the group would wait for ranks that may never come.
                    return False
                try:
                    self._send(self._steps)
                except Exception:
                    # The process group may be gone in any way.
                    return False
                continue
            try:
                if not self._sent[1].wait(deadline - time.monotonic()):
                    return False
                self._receive()
            except RuntimeError:
                return False
        return True

    def check(self, steps: int) -> None:
        """See that the watched metrics were finite at one of the last so many steps; 0: never.

        Raises
        ------
        NonFiniteLossError
            They were not.
        """
        if steps and len(self.not_finite) >= steps:
            raise NonFiniteLossError(
                f"the loss has not been finite since step {self.not_finite[0]}",
                hint="lower the learning rate, clip gradients, or use bf16 in place of fp16; the "
                "checkpoints before that step are kept",
            )

    def _step(self, number: int) -> _Step:
        """What is logged of a step; that of an earlier one is over."""
        if not self._steps or self._steps[-1].number != number:
            if self._steps:
                self._end_step(self._steps[-1].number)
            self._steps.append(_Step(number, time.time()))
        return self._steps[-1]

    def _end_step(self, number: int) -> None:
        if number <= self._over:
            return
        self._over = number
        self._since += 1
        self._receive()
        if self._since >= self._every:
            last = self._steps[-1] if self._steps else None
            # To read what the GPU still computes would make this step wait for it.
            waits = last is not None and any(
                isinstance(value, _OnItsWay) for value in last.averaged.values()
            )
            self._send(self._steps[:-1] if waits else self._steps)
            if self._world_size == 1:
                self._receive()

    def _send(self, steps: list[_Step]) -> None:
        now = time.monotonic()
        wanted = int(WINDOW * self._since / max(now - self._exchanged, 1e-6))
        every = min(max(wanted, 1), MOST_STEPS) if self._world_size > 1 else 1
        numbers = [float(value) for step in steps for value in step.averaged.values()]
        exchange = Exchange(numbers, self._told_to_stop(), every, self._rank, self._world_size)
        self._sent = steps, exchange
        self._steps = self._steps[len(steps) :]
        self._since, self._exchanged = 0, now

    def _receive(self) -> None:
        if self._sent is None:
            return
        steps, exchange = self._sent
        averages, stop, self._every = exchange.result()
        self._sent = None
        self._stop = self._stop or stop
        left = iter(averages)
        for step in steps:
            self._finish(step, {name: next(left) for name in step.averaged})
        if time.monotonic() - self._written >= WINDOW:
            self._write()

    def _alone(self, steps: list[_Step]) -> None:
        """Finish steps without the other ranks."""
        self._sent, self._steps = None, []
        for step in steps:
            own = {name: float(value) for name, value in step.averaged.items()}
            self._finish(step, {**own, "ranks": 1} if own else {})

    def _finish(self, step: _Step, averages: dict[str, float]) -> None:
        values = {**step.plain, **averages}
        self.latest.update(values)
        seen = [values[name] for name in self._watched if name in values]
        if not all(map(math.isfinite, seen)):
            self.not_finite.append(step.number)
        elif seen:
            self.not_finite.clear()
        if self._rank == 0 and values:
            self._lines.append({"step": step.number, "time": step.time, **values})

    def _write(self) -> None:
        lines, self._lines = self._lines, []
        if lines or self._file.error:
            self._fence.check()
            self._file.write(*lines)
            self._written = time.monotonic()
