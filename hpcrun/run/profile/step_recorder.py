"""Records a rank's profile, step by step, and then ends its program.

The steps, in order: a warm-up; some that are timed as they are; one with the profiler on, which
settles it; as many that are profiled; one whose operations and memory are counted. Then the rank
writes its trace and its summary, and the program ends as if it were done: by SystemExit(0).
"""

from __future__ import annotations

import atexit
import contextlib
import gzip
import json
import os
import resource
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from hpcrun.run.profile import trace_parts
from hpcrun.run.profile.memory_kinds import MemoryCensus
from hpcrun.run.profile.op_counts import OperationCounter, measured_peak
from hpcrun.run.profile.step_hooks import StepHooks
from hpcrun.run.protocol.launch import Launch
from hpcrun.run.protocol.output import tell
from hpcrun.state import files
from hpcrun.state.layout import AttemptPaths
from hpcrun.state.spec import profiling

_NO_RANGE = contextlib.nullcontext()
_current: StepRecorder | None = None


class StepRecorder:
    """The profile of this process's rank, as the program's framework counts it.

    ``attempt`` says where its files go, ``node`` is its node's name; ``steps`` and ``warmup`` are
    the optimizer steps that are profiled, and that pass before.
    """

    def __init__(
        self, attempt: AttemptPaths, node: str, rank: int, steps: int, warmup: int
    ) -> None:
        self._paths, self._rank, self._node = attempt, rank, node
        self._steps, self._warmup = steps, warmup
        self._taken = 0
        self._began = 0.0
        self._bare = self._profiled = 0.0
        self._profiler: Any = None
        self._range, self._batch = contextlib.ExitStack(), contextlib.ExitStack()
        self._counter: OperationCounter | None = None
        self._memory: dict[str, int] = {}
        self._dtype: Any = None
        self._problems: list[str] = []
        self._is_written = False

    def stepping(self, optimizer: Any, engine: Any) -> None:
        """Take the census of memory in the step that is counted, before gradients are used."""
        if self._counter is None or self._memory:
            return
        try:
            census = MemoryCensus(optimizer, engine, self._counter.has_seen)
            activations, passing = self._counter.most_held(census.gradients)
        except Exception as error:  # of tensors and optimizers of any kind; the rest stands
            self._problems.append(f"memory: {type(error).__name__}: {error}")
            return
        self._memory = {
            **census.bytes_of,
            "activations": activations,
            "backward buffers": passing,
        }
        modules = list(engine.module.parameters()) if engine is not None else []
        first = modules or [one for group in optimizer.param_groups for one in group["params"]]
        self._dtype = first[0].dtype if first else None

    def stepped(self) -> None:
        """Go on to what the next step is for."""
        self._taken += 1
        timed, profiled = self._warmup, self._warmup + self._steps + 1
        if self._taken == timed:
            self._begin_timing()
        elif self._taken == timed + self._steps:
            self._bare = self._since()
            self._begin_profiling()
        elif profiled <= self._taken < profiled + self._steps:
            if self._taken > profiled:
                self._mark_step()
            else:
                _synchronize()
                self._mark_step()
                # The first range takes long to begin, and the trace counts from its own begin.
                self._begin_timing()
        elif self._taken == profiled + self._steps:
            self._profiled = self._since()
            self._end_profiling()
            self._counter = OperationCounter()
            self._counter.start()
        elif self._taken == profiling.needed(self._steps, self._warmup):
            self._finish()

    def range(self, name: str) -> contextlib.AbstractContextManager[Any]:
        """Return a context that marks a range in the trace, while there is one."""
        if name == trace_parts.FORWARD:
            self._batch.close()
        if self._profiler is None:
            return _NO_RANGE
        import torch

        found: contextlib.AbstractContextManager[Any] = torch.profiler.record_function(name)
        return found

    def fetch_batch(self) -> None:
        """Mark the making of a batch, which ends where the engine's forward pass begins."""
        self._batch.close()
        self._batch.enter_context(self.range(trace_parts.BATCH))

    def leave(self) -> None:
        """Write how far the program came, if it ends before its profile was done."""
        if self._profiler is not None:
            # Torch's crashes the interpreter that ends while it runs.
            self._end_ranges()
            self._profiler.stop()
            self._profiler = None
        if not self._is_written and self._taken:
            try:
                files.write_json(self._paths.profile(self._rank), {"taken": self._taken})
            except OSError as error:
                tell(f"profile: {error}")

    def _begin_timing(self) -> None:
        _synchronize()
        if (cuda := _cuda()) is not None:
            cuda.reset_peak_memory_stats()
        self._began = time.perf_counter()

    def _since(self) -> float:
        _synchronize()
        return time.perf_counter() - self._began

    def _begin_profiling(self) -> None:
        import torch

        activities = [torch.profiler.ProfilerActivity.CPU]
        if _cuda() is not None:
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._profiler = torch.profiler.profile(activities=activities)
        self._profiler.start()

    def _mark_step(self) -> None:
        self._range.close()
        self._range.enter_context(self.range(trace_parts.STEP))

    def _end_ranges(self) -> None:
        self._batch.close()
        self._range.close()

    def _end_profiling(self) -> None:
        self._end_ranges()
        self._profiler.stop()
        self._profiler.export_chrome_trace(str(self._paths.trace(self._rank)))
        self._profiler = None

    def _finish(self) -> None:
        counter = self._counter
        assert counter is not None
        self._counter = None
        counter.stop()
        summary = {
            "taken": self._taken,
            "rank": self._rank,
            "node": self._node,
            "steps": self._steps,
            "bare_seconds": self._bare,
            "profiled_seconds": self._profiled,
            "flops": counter.flops,
            "memory": self._memory,
            **self._device(),
            "trace_bytes": self._paths.trace(self._rank).stat().st_size,
            **self._parts(),
            "problems": self._problems,
        }
        files.write_json(self._paths.profile(self._rank), summary)
        self._is_written = True
        raise SystemExit(0)

    def _parts(self) -> dict[str, Any]:
        with gzip.open(self._paths.trace(self._rank), "rb") as stream:
            events = json.load(stream)["traceEvents"]
        found = asdict(trace_parts.step_parts(events))
        return {"trace_seconds": found.pop("seconds"), **found}

    def _device(self) -> dict[str, Any]:
        """Return what computed, in which precision, its memory, and on a CPU the measured peak."""
        import torch

        cuda = _cuda()
        kind = "cpu" if cuda is None else "cuda"
        dtype = self._dtype or torch.float32
        if torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
        found: dict[str, Any] = {"dtype": str(dtype).removeprefix("torch.")}
        # In kB on Linux.
        found["process_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if cuda is None:
            return {**found, "device": "cpu", "peak": measured_peak(dtype)}
        return {
            **found,
            "device": cuda.get_device_name(),
            "peak": None,
            "tf32": torch.get_float32_matmul_precision() != "highest",
            "device_bytes": cuda.max_memory_allocated(),
            "reserved_bytes": cuda.max_memory_reserved(),
        }


def _cuda() -> Any:
    """Return ``torch.cuda`` if this process uses a GPU."""
    import torch

    is_used = torch.cuda.is_available() and os.environ.get("DS_ACCELERATOR") != "cpu"
    return torch.cuda if is_used else None


def _synchronize() -> None:
    if (cuda := _cuda()) is not None:
        cuda.synchronize()


def begin() -> None:
    """Profile this process, if its rank is to be profiled."""
    wanted, launch = os.environ.get(profiling.VARIABLE), Launch.current()
    if not wanted or launch is None:
        return
    steps, warmup = map(int, wanted.split(","))
    node, rank = launch.own_node.name, int(os.environ.get("RANK", 0))
    recorder = StepRecorder(launch.paths, node, rank, steps, warmup)
    StepHooks(recorder).install()
    atexit.register(recorder.leave)
    global _current
    _current = recorder


def mark_each(batches: Iterator[list[int]]) -> Iterator[list[int]]:
    """Return the same batches; in a profile, what is done to fetch each is marked in the trace."""
    return batches if _current is None else _mark_fetches(batches, _current)


def _mark_fetches(batches: Iterator[list[int]], recorder: StepRecorder) -> Iterator[list[int]]:
    for one in batches:
        recorder.fetch_batch()
        yield one
