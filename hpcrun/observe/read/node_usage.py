"""The telemetry of a run's nodes, averaged over stretches of time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hpcrun.errors import BrokenFile
from hpcrun.fields import TIME
from hpcrun.observe.read.metric_curves import differences, rounded
from hpcrun.state import files
from hpcrun.state.layout import RunPaths

# A moment in seconds since the epoch, and values by the key of a `Series`.
Sample = tuple[float, dict[str, float]]

# Values of all runs together; the most and the least stretches of a run; the nodes that are drawn.
_VALUES, _MOST, _LEAST, _NODES = 20_000, 240, 12, 16
_DIGITS = 3
# Samples of a run that are kept in memory; a node takes one in ten seconds.
MOST_READ = 500_000
_HUGE = 1e100  # the sum of smaller values is finite
_GIB = 1 << 30
_MB = 1e6


class Series(NamedTuple):
    """One quantity that is sampled on every node: its key in the page, and its names."""

    key: str
    short: str
    title: str
    unit: str


SERIES = (
    Series("gpu", "GPU", "GPU utilisation, mean of a node's GPUs", "%"),
    Series("gpu_least", "least GPU", "GPU utilisation, least of a node's GPUs", "%"),
    Series("gpu_memory", "GPU memory", "GPU memory, most of a node's GPUs", "GiB"),
    Series("power", "power", "GPU power, all of a node's GPUs", "W"),
    Series("temperature", "temperature", "GPU temperature, hottest of a node's GPUs", "°C"),
    Series("cpu", "CPU", "CPU", "%"),
    Series("memory", "memory", "Memory", "GiB"),
    Series("fabric", "fabric", "Fabric, both directions", "MB/s"),
    Series("network", "network", "Other network, both directions", "MB/s"),
)


@dataclass(frozen=True)
class NodeSummary:
    """One node, over all samples: ``(mean, most)`` by the key of a `Series`."""

    node: str
    values: dict[str, tuple[float, float]]


@dataclass(frozen=True)
class RunTelemetry:
    """The telemetry of one run."""

    times: list[float] = field(default_factory=list)
    """The mean time of the samples in each stretch, in seconds since the epoch."""
    nodes: dict[str, dict[str, list[float | None]]] = field(default_factory=dict)
    """Node -> key of a `Series` -> its mean in each stretch, None without a sample."""
    summary: tuple[NodeSummary, ...] = ()
    """One entry for each node."""
    samples: int = 0
    """The number of samples read."""
    left_out: int = 0
    """The number of nodes that only the summary has."""
    is_cut: bool = False
    """There are more than `MOST_READ` samples, and the rest was not read."""
    unread: tuple[str, ...] = ()
    """Why files could not be read."""

    def to_data(self) -> dict[str, Any]:
        """Return plain data for the page, by quantity; times are differences in whole seconds."""
        return {
            "times": differences([round(time) for time in self.times]),
            "values": {
                one.key: {
                    node: found[one.key] for node, found in self.nodes.items() if one.key in found
                }
                for one in SERIES
            },
        }


def read(run: RunPaths, runs: int) -> RunTelemetry:
    """Read the telemetry of all attempts of one of so many runs."""
    samples: dict[str, list[Sample]] = {}
    starts = []
    unread = []
    left, is_cut = MOST_READ, False
    for attempt in run.attempts():
        for node, path in attempt.telemetries():
            found: list[Sample] = []
            try:
                for sample in _samples(files.read_lines(path)):
                    if not left:
                        is_cut = True
                        break
                    found.append(sample)
                    left -= 1
            except OSError as error:
                unread.append(BrokenFile.of(path, error).message)
            if found:
                samples.setdefault(node, []).extend(found)
                starts.append(found[0][0])
    if not samples:
        return RunTelemetry(unread=tuple(unread))
    shown = sorted(samples)[:_NODES]
    keys = {key for node in shown for _, values in samples[node] for key in values}
    room = _VALUES // (runs * len(shown) * max(1, len(keys)))
    longest = max(len(samples[node]) for node in shown)
    count = min(longest, max(_LEAST, min(_MOST, room)))
    # Stretches of as many samples each, so that a gap of days does not take them all, and none
    # that spans a gap, unless there are too many.
    moments = sorted(moment for node in shown for moment, _ in samples[node])
    edges = [moments[len(moments) * place // count] for place in range(1, count)]
    if len(starts) < count:
        edges = sorted({*edges, *starts})
    times: list[list[float]] = [[] for _ in range(len(edges) + 1)]
    for moment in moments:
        times[bisect_right(edges, moment)].append(moment)
    filled = [place for place, those in enumerate(times) if those]
    return RunTelemetry(
        times=[_mean(times[place]) for place in filled],
        nodes={node: _means(samples[node], edges, filled) for node in shown},
        summary=tuple(_summary(node, found) for node, found in sorted(samples.items())),
        samples=sum(map(len, samples.values())),
        left_out=len(samples) - len(shown),
        is_cut=is_cut,
        unread=tuple(unread),
    )


def _samples(lines: Iterable[Mapping[str, Any]]) -> Iterable[Sample]:
    for line in lines:
        moment: Any = line.get("time")
        values = {key: value for key, value in sample_values(line).items() if value is not None}
        if TIME.accepts(moment) and values:
            yield float(moment), values


def sample_values(line: Mapping[str, Any]) -> dict[str, float | None]:
    """Convert a sample to the units of `SERIES`; None for what it does not have."""
    listed = line.get("gpus")
    gpus = [gpu for gpu in listed if isinstance(gpu, dict)] if isinstance(listed, list) else []

    def of_gpus(name: str) -> list[float]:
        return _numbers(gpu.get(name) for gpu in gpus)

    busy, used = of_gpus("utilization"), of_gpus("memory")
    watts, degrees = of_gpus("power"), of_gpus("temperature")
    memory = _number(line.get("memory"))
    return {
        "gpu": _mean(busy) if busy else None,
        "gpu_least": min(busy) if len(busy) > 1 else None,
        "gpu_memory": max(used) / _GIB if used else None,
        "power": sum(watts) if watts else None,
        "temperature": max(degrees, default=None),
        "cpu": _number(line.get("cpu")),
        "memory": None if memory is None else memory / _GIB,
        "fabric": _both(line.get("fabric")),
        "network": _both(line.get("network")),
    }


def _both(directions: Any) -> float | None:
    known = _numbers(directions) if isinstance(directions, list) else []
    return sum(known) / _MB if known else None


def _numbers(values: Iterable[Any]) -> list[float]:
    return [number for value in values if (number := _number(value)) is not None]


def _number(value: Any) -> float | None:
    """Return a number whose sums are finite; None for all else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) < _HUGE else None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _means(
    samples: Sequence[Sample], edges: Sequence[float], filled: Sequence[int]
) -> dict[str, list[float | None]]:
    found: dict[str, dict[int, list[float]]] = {}
    for moment, values in samples:
        place = bisect_right(edges, moment)
        for key, value in values.items():
            found.setdefault(key, {}).setdefault(place, []).append(value)
    return {
        key: [rounded(_mean(at[place]), _DIGITS) if place in at else None for place in filled]
        for key, at in found.items()
    }


def _summary(node: str, samples: Sequence[Sample]) -> NodeSummary:
    columns: dict[str, list[float]] = {}
    for _, values in samples:
        for key, value in values.items():
            columns.setdefault(key, []).append(value)
    return NodeSummary(node, {key: (_mean(these), max(these)) for key, these in columns.items()})
