"""Metrics of a run, averaged over ranks without making a step wait.

The all-reduce that averages them also carries the ranks' votes on a stop.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcrun.errors import UsageError
from hpcrun.run.protocol.attempt_fence import AttemptFence
from hpcrun.run.protocol.output import tell
from hpcrun.run.rank.async_allreduce import AsyncAllReduce
from hpcrun.run.rank.process_groups import HOST, has_group
from hpcrun.state import files
from hpcrun.state.metrics_file import RESERVED

# Short steps share an all-reduce, and a write: about one a second.
WINDOW = 1.0
MOST_STEPS = 8


@dataclass
class _Step:
    """The values of one step; ``averaged`` holds this rank's part of each average."""

    number: int
    time: float
    names: set[str] = field(default_factory=set)
    """Those of all values, also on ranks that do not keep them."""
    plain: dict[str, Any] = field(default_factory=dict)
    averaged: dict[str, Any] = field(default_factory=dict)


class _GpuValue:
    """A number that a GPU still computes, copied to the host asynchronously."""

    def __init__(self, tensor: Any) -> None:
        import torch

        self._host = torch.empty((), dtype=torch.float64, pin_memory=True)
        self._host.copy_(tensor.detach().reshape(()), non_blocking=True)
        self._copied = torch.cuda.Event()
        self._copied.record()

    def __float__(self) -> float:
        self._copied.synchronize()
        return float(self._host)


class _Behind:
    """Writes a file's lines behind the training: storage that answers late holds no step up.

    The ``fence`` is checked before each write.
    """

    def __init__(self, file: files.Appender, fence: AttemptFence) -> None:
        self._file, self._fence = file, fence
        self._given: queue.SimpleQueue[list[dict[str, Any]]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._written = threading.Event()
        self._failure: Exception | None = None

    def write(self, lines: list[dict[str, Any]]) -> None:
        """Write lines, and those that wait, soon."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        self._given.put(lines)
        if self._failure is not None:
            raise self._failure

    def wait(self) -> None:
        """Wait until what was given is written, or cannot be."""
        if self._thread is not None:
            self._written.clear()
            self._given.put([])
            self._written.wait()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        while True:
            lines = self._given.get()
            try:
                if lines or self._file.error:
                    self._fence.check()
                    self._file.write(*lines)
            except Exception as error:
                self._failure = error
            if not lines:
                self._written.set()


class MetricsLog:
    """Writer of what `Session.log` is given.

    Tensors are averaged over all ranks while the next step computes; plain numbers are taken from
    rank 0. Steps much shorter than a second share an all-reduce, up to eight, as rank 0 decides;
    lines are written once a second at most: 500 runs of short steps would otherwise keep the
    metadata server of a shared file system busy.

    Only rank 0 writes to ``path``, behind the training and after checking the ``fence``. ``judge``
    is given each step's values, as they are known and in order, and returns those to keep.
    ``told_to_stop`` is called once per all-reduce for this rank's vote on a stop.
    """

    def __init__(
        self,
        path: Path,
        rank: int,
        world_size: int,
        fence: AttemptFence,
        judge: Callable[[int, dict[str, float]], dict[str, float]] = lambda _, values: values,
        told_to_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._rank, self._world_size = rank, world_size
        self._judge, self._told_to_stop = judge, told_to_stop
        self._steps: list[_Step] = []
        self._over = 0
        self._sent: tuple[list[_Step], AsyncAllReduce] | None = None
        self._every = 1
        self._since = 0
        self._sent_at = time.monotonic()
        self._stop = False
        self._lines: list[dict[str, Any]] = []
        self._file = files.Appender(path, tell)
        self._behind = _Behind(self._file, fence)
        self._written = float("-inf")
        # The last values that this rank knows: all on rank 0, elsewhere those that were averaged.
        self.latest: dict[str, float] = {}

    @property
    def error(self) -> OSError | None:
        """The error that keeps lines out of the file; None if all are in it."""
        return self._file.error

    def log(self, metrics: Mapping[str, Any], step: int, *, spare: bool = False) -> None:
        """Log numbers or one-element tensors of a finished step, as `Session.log` does.

        Several calls for one step become one line, where the last value of a name counts; one that
        is ``spare`` counts only without any other, and is rank 0's alone: where users log the same
        name on one rank, all-reduces would differ in length. Raises `ValueError` for a name that is
        one of the line's own fields.
        """
        if taken := RESERVED.intersection(metrics):
            raise ValueError(
                f"no metric can be named {' or '.join(sorted(taken))}: hpcrun's own fields are "
                "called so"
            )
        current = self._step(step)
        for name, value in {str(name): value for name, value in metrics.items()}.items():
            if spare and name in current.names:
                continue
            current.names.add(name)
            current.plain.pop(name, None)
            current.averaged.pop(name, None)
            is_tensor = hasattr(value, "detach")
            kept = current.averaged if is_tensor and not spare else current.plain
            if kept is current.averaged or self._rank == 0:
                try:
                    kept[name] = _GpuValue(value) if is_tensor and value.is_cuda else float(value)
                except (TypeError, ValueError, RuntimeError) as error:
                    found = f"session.log: {name!r} is {value!r:.80}"
                    raise UsageError(
                        f"{found}; accepted are numbers and tensors of one element",
                        hint="give one number, such as x.mean(); print what is none",
                    ) from error

    def stop_agreed(self, step: int) -> bool:
        """Check whether all ranks stop now; collective, called once after each optimizer step.

        A vote takes effect one step after the all-reduce that carries it, on all ranks alike.
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
        self._behind.wait()

    def leave(self, patience: float, *, failing: bool = False) -> None:
        """Write what is known as this process ends; other ranks may be gone.

        Wait ``patience`` seconds for the others; lines of steps that could not be averaged in that
        time have ``"ranks": 1``. With ``failing``, this rank left at a place of its own and sends
        nothing: an all-reduce of another length would meet the one of its peers, and gloo aborts
        the ranks that take part.
        """
        try:
            if not self._complete(time.monotonic() + patience, failing):
                alone = [*(self._sent[0] if self._sent else ()), *self._steps]
                self._sent, self._steps = None, []
                for step in alone:
                    own = {name: float(value) for name, value in step.averaged.items()}
                    self._finish(step, {**own, "ranks": 1} if own else {})
        finally:
            self._write()
            self._behind.wait()

    def _complete(self, deadline: float, failing: bool) -> bool:
        """Average pending steps with the other ranks; False if that takes too long or fails."""
        while self._sent is not None or self._steps:
            if self._sent is not None:
                try:
                    if not self._sent[1].wait(deadline - time.monotonic()):
                        return False
                    self._receive()
                except (RuntimeError, UsageError):
                    return False
            # To form the group would wait for ranks that may never come.
            elif failing or (self._world_size > 1 and not has_group(HOST)):
                return False
            else:
                try:
                    self._send(self._steps)
                except Exception:  # the process group may be gone in any way
                    return False
        return True

    def _step(self, number: int) -> _Step:
        """Return the record of a step; the step before it ends with its first record."""
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
            last = self._steps[-1]
            # To read what the GPU still computes would make this step wait for it; all ranks have
            # to decide alike.
            values = [*last.averaged.values()]
            if self._world_size == 1:
                values += last.plain.values()
            waits = any(isinstance(value, _GpuValue) for value in values)
            self._send(self._steps[:-1] if waits else self._steps)
            if self._world_size == 1:
                self._receive()

    def _send(self, steps: list[_Step]) -> None:
        now = time.monotonic()
        wanted = int(WINDOW * self._since / max(now - self._sent_at, 1e-6))
        every = min(max(wanted, 1), MOST_STEPS) if self._world_size > 1 else 1
        numbers = {
            (step.number, name): float(value)
            for step in steps
            for name, value in step.averaged.items()
        }
        vote = self._told_to_stop()
        self._sent = steps, AsyncAllReduce(numbers, vote, every, self._rank, self._world_size)
        self._steps = self._steps[len(steps) :]
        self._since, self._sent_at = 0, now

    def _receive(self) -> None:
        if self._sent is None:
            return
        steps, reduced = self._sent
        averages, stop, self._every = reduced.result()
        self._sent = None
        self._stop = self._stop or stop
        left = iter(averages)
        for step in steps:
            self._finish(step, {name: next(left) for name in step.averaged})
        if time.monotonic() - self._written >= WINDOW:
            self._write()

    def _finish(self, step: _Step, averages: dict[str, float]) -> None:
        plain = {name: float(value) for name, value in step.plain.items()}
        values = self._judge(step.number, {**plain, **averages})
        self.latest.update(values)
        if self._rank == 0 and values:
            self._lines.append({"step": step.number, "time": step.time, **values})

    def _write(self) -> None:
        lines, self._lines = self._lines, []
        if lines or self._file.error:
            self._behind.write(lines)
            self._written = time.monotonic()
