"""The parts of a rank's steps, from the events of its trace: each moment is counted once.

Pure: events are those of torch.profiler's Chrome trace, times in microseconds.

On a GPU its kernels decide: while one computes, the moment is compute (the optimizer's, if it was
launched in there); while only a collective's runs, communication; while only a copy to the device
runs, or nothing does and the program fetches a batch, data; all else is the host's. On a CPU the
operators decide: in a batch's fetching it is data, in an operator compute or optimizer, else
communication while a collective is under way, else the optimizer's or the host's.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hpcrun.state.spec.profiling import COMMUNICATION, COMPUTE, DATA, HOST, OPTIMIZER, PARTS

# Ranges that `step_recorder` marks in a trace.
STEP, BATCH = "hpcrun::step", "hpcrun::batch"
FORWARD, BACKWARD, ENGINE_STEP = "hpcrun::forward", "hpcrun::backward", "hpcrun::engine_step"
PHASES = {FORWARD: "forward", BACKWARD: "backward", ENGINE_STEP: "step"}

_COLLECTIVE_KERNEL = re.compile(r"(?i)nccl|rccl")
# What a backend marks on the thread that does the work; NCCL's marks are only the launch.
_COLLECTIVE_RANGE = re.compile(r"(?:gloo|mpi|ucc):")
_TO_DEVICE = re.compile(r"(?i)htod|host ?to ?device|h2d")
_ON_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}
_LAUNCHES = {"cuda_runtime", "cuda_driver", "hip_runtime"}

_Spans = list[tuple[float, float]]


class NoStepsError(ValueError):
    """A trace has no marked step."""


@dataclass(frozen=True)
class StepParts:
    """The parts of the profiled steps, in seconds of all of them together."""

    steps: int
    seconds: float
    """From the first step's begin to the last one's end."""
    parts: dict[str, float]
    """By `hpcrun.state.spec.profiling.PARTS`; they add up to ``seconds``."""
    hidden: float
    """Communication while something else was counted."""
    phases: dict[str, float]
    """``forward``, ``backward`` and ``step`` of a DeepSpeed engine, on the host's clock."""
    on_device: bool
    """Kernels of a GPU were counted, rather than operators of the CPU."""
    collectives: dict[str, float] = field(default_factory=dict)
    """Seconds by name; those that overlap count each."""


def step_parts(events: Iterable[Mapping[str, Any]]) -> StepParts:
    """Count each moment of the marked steps once; raise NoStepsError if no range is a `STEP`."""
    kinds = _Kinds()
    complete = [one for one in events if one.get("ph") == "X" and _is_timed(one)]
    for one in complete:
        kinds.note(one)
    if not kinds.steps:
        raise NoStepsError("the trace has no marked step")
    kinds.sort_operators(complete)
    begin, end = min(kinds.steps)[0], max(stop for _, stop in kinds.steps)
    layers = {name: _within(spans, begin, end) for name, spans in kinds.layers.items()}
    layers[_COLLECTIVE] = _within(itertools.chain(*kinds.collectives.values()), begin, end)
    decide = _device_part if kinds.on_device else _host_part
    parts = dict.fromkeys(PARTS, 0.0)
    hidden = 0.0
    for length, active in _stretches(layers, begin, end):
        part = decide(active)
        parts[part] += length
        if _COLLECTIVE in active and part != COMMUNICATION:
            hidden += length
    return StepParts(
        steps=len(kinds.steps),
        seconds=(end - begin) / 1e6,
        parts={name: value / 1e6 for name, value in parts.items()},
        hidden=hidden / 1e6,
        phases={
            PHASES[name]: _length(_within(spans, begin, end)) / 1e6
            for name, spans in kinds.phases.items()
            if spans
        },
        on_device=kinds.on_device,
        collectives={
            name: _length(clipped) / 1e6
            for name, spans in sorted(kinds.collectives.items())
            if (clipped := _clipped(spans, begin, end))
        },
    )


_BATCH, _COLLECTIVE, _OPERATOR, _STEPPING = "batch", "collective", "operator", "stepping"
_UPDATE, _COPY = "update", "copy"


def _host_part(active: set[str]) -> str:
    if _BATCH in active:
        return DATA
    if _OPERATOR in active:
        return OPTIMIZER if _STEPPING in active else COMPUTE
    if _COLLECTIVE in active:
        return COMMUNICATION
    return OPTIMIZER if _STEPPING in active else HOST


def _device_part(active: set[str]) -> str:
    if _OPERATOR in active:
        return COMPUTE
    if _UPDATE in active:
        return OPTIMIZER
    if _COLLECTIVE in active:
        return COMMUNICATION
    return DATA if active & {_COPY, _BATCH} else HOST


class _Kinds:
    """The events of a trace, by what they say about a moment."""

    def __init__(self) -> None:
        self.steps: _Spans = []
        self.phases: dict[str, _Spans] = {name: [] for name in PHASES}
        self.collectives: dict[str, _Spans] = {}
        # What else counts.
        kinds = (_BATCH, _OPERATOR, _UPDATE, _COPY, _STEPPING)
        self.layers: dict[str, _Spans] = {name: [] for name in kinds}
        self.on_device = False
        # Of backends, and the program's own, which may send a message by itself.
        self._working_threads: set[Any] = set()
        self._own_threads: set[Any] = set()
        self._kernels: list[tuple[float, float, Any]] = []
        self._launched: dict[Any, float] = {}

    def note(self, event: Mapping[str, Any]) -> None:
        """Sort in one event, but for the CPU's operators."""
        kind, name = event.get("cat"), str(event.get("name"))
        start = float(event["ts"])
        span = (start, start + float(event["dur"]))
        if kind in _ON_DEVICE:
            self.on_device = True
            if kind == "kernel" and _COLLECTIVE_KERNEL.search(name):
                self.collectives.setdefault(name.partition("(")[0], []).append(span)
            elif kind == "gpu_memcpy" and _TO_DEVICE.search(name):
                self.layers[_COPY].append(span)
            else:
                self._kernels.append((*span, _correlation(event)))
        elif kind in _LAUNCHES:
            self._launched[_correlation(event)] = start
        elif kind == "user_annotation":
            self._note_range(name, span, event)

    def _note_range(self, name: str, span: tuple[float, float], event: Mapping[str, Any]) -> None:
        if name == STEP:
            self.steps.append(span)
            self._own_threads.add(event.get("tid"))
        elif name == BATCH or name.startswith("enumerate(DataLoader)"):
            self.layers[_BATCH].append(span)
        elif _COLLECTIVE_RANGE.match(name):
            self.collectives.setdefault(name, []).append(span)
            self._working_threads.add(event.get("tid"))
        elif name == ENGINE_STEP or name.startswith("Optimizer.step#"):
            self.layers[_STEPPING].append(span)
        if name in self.phases:
            self.phases[name].append(span)

    def sort_operators(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Decide what computes: kernels by where they were launched, or the CPU's operators."""
        if not self.on_device:
            threads: dict[Any, list[tuple[float, float, str]]] = {}
            of_backends = self._working_threads - self._own_threads
            for one in events:
                if one.get("cat") == "cpu_op" and one.get("tid") not in of_backends:
                    start = float(one["ts"])
                    span = (start, start + float(one["dur"]), str(one.get("name")))
                    threads.setdefault(one.get("tid"), []).append(span)
            for spans in threads.values():
                self.layers[_OPERATOR] += _computing(spans)
            return
        for name in [name for name in self.collectives if _COLLECTIVE_RANGE.match(name)]:
            # Of a CPU group beside the GPUs' one: its waiting shows as the host's.
            del self.collectives[name]
        stepping = _union(self.layers[_STEPPING])
        starts = [start for start, _ in stepping]
        for start, stop, correlation in self._kernels:
            launched = self._launched.get(correlation, start)
            place = bisect_right(starts, launched) - 1
            is_update = place >= 0 and launched <= stepping[place][1]
            self.layers[_UPDATE if is_update else _OPERATOR].append((start, stop))


def _computing(spans: list[tuple[float, float, str]]) -> Iterator[tuple[float, float]]:
    """Yield the operators of a thread that compute.

    Those of ATen, and others that call none; what only wraps others, such as a node of the backward
    pass, may wait for a collective meanwhile. Starting a collective is no computation.
    """
    spans.sort(key=lambda one: (one[0], -one[1]))
    for place, (start, stop, name) in enumerate(spans):
        if name.startswith(("c10d::", "record_param_comms")):
            continue
        after = spans[place + 1] if place + 1 < len(spans) else None
        is_leaf = after is None or after[0] >= stop
        if name.startswith("aten::") or is_leaf:
            yield start, stop


def _is_timed(event: Mapping[str, Any]) -> bool:
    return all(isinstance(event.get(key), (int, float)) for key in ("ts", "dur"))


def _correlation(event: Mapping[str, Any]) -> Any:
    return (event.get("args") or {}).get("correlation")


def _stretches(
    layers: Mapping[str, _Spans], begin: float, end: float
) -> Iterator[tuple[float, set[str]]]:
    """Yield the stretches between changes: their length, and the layers that are active then."""
    changes: list[tuple[float, bool, str]] = []
    for name, spans in layers.items():
        for start, stop in spans:
            changes += [(start, True, name), (stop, False, name)]
    changes.sort(key=lambda one: one[0])
    active: set[str] = set()
    before = begin
    for at, begins, name in changes:
        if at > before:
            yield at - before, active
            before = at
        # The spans of a layer do not touch each other.
        (active.add if begins else active.discard)(name)
    if end > before:
        yield end - before, active


def _clipped(spans: Iterable[tuple[float, float]], begin: float, end: float) -> _Spans:
    return [(max(a, begin), min(b, end)) for a, b in spans if a < end and b > begin]


def _within(spans: Iterable[tuple[float, float]], begin: float, end: float) -> _Spans:
    return _union(_clipped(spans, begin, end))


def _union(spans: Iterable[tuple[float, float]]) -> _Spans:
    """Merge spans that overlap or touch."""
    found: _Spans = []
    for start, stop in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], stop))
        else:
            found.append((start, stop))
    return found


def _length(spans: _Spans) -> float:
    return sum(stop - start for start, stop in spans)
