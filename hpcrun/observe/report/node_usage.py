"""What the nodes of a run were busy with: means over as many stretches as a report has room for."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpcrun.observe.read import telemetry_reader
from hpcrun.observe.report.curves import differences, rounded
from hpcrun.state.layout import RunPaths

_VALUES = 20_000
_DIGITS = 3
_MOST, _LEAST = 240, 12
_NODES = 16
_HUGE = 1e100
_GIB = 1 << 30
_MB = 1e6


@dataclass(frozen=True)
class Series:
    """One quantity that is sampled on every node.

    Attributes
    ----------
    key
        How the page knows it.
    short, title, unit
        For people.
    """

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
    """The telemetry of one run.

    Attributes
    ----------
    times
        The mean of each stretch, in seconds since the epoch; of those that have a sample.
    nodes
        Node -> key of a `Series` -> its mean in each stretch, None without a sample.
    summary
        One entry a node.
    samples
        How many were read.
    left_out
        Nodes that are in the summary alone.
    """

    times: list[float] = field(default_factory=list)
    nodes: dict[str, dict[str, list[float | None]]] = field(default_factory=dict)
    summary: tuple[NodeSummary, ...] = ()
    samples: int = 0
    left_out: int = 0

    def to_data(self) -> dict[str, Any]:
        """Plain data for the page, by quantity; times are differences in whole seconds."""
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
    """The telemetry of all attempts of one of so many runs."""
    samples: dict[str, list[tuple[float, dict[str, float]]]] = {}
    starts = []
    for attempt in run.attempts():
        for node, lines in telemetry_reader.read(attempt).items():
            if found := list(_samples(lines)):
                samples.setdefault(node, []).extend(found)
                starts.append(found[0][0])
    if not samples:
        return RunTelemetry()
    shown = sorted(samples)[:_NODES]
    keys = {key for node in shown for _, values in samples[node] for key in values}
    room = _VALUES // (runs * len(shown) * max(1, len(keys)))
    longest = max(len(samples[node]) for node in shown)
    count = min(longest, max(_LEAST, min(_MOST, room)))
    # Stretches of as many samples each, so that a gap of days does not take them all, and none from
    # before a gap to after it, unless there are too many.
    moments = sorted(moment for node in shown for moment, _ in samples[node])
    edges = [moments[len(moments) * place // count] for place in range(1, count)]
    if len(starts) < count:
        edges = sorted({*edges, *starts})
    nodes = {node: _means(samples[node], edges) for node in shown}
    times: list[list[float]] = [[] for _ in range(len(edges) + 1)]
    for moment in moments:
        times[bisect_right(edges, moment)].append(moment)
    filled = [place for place, those in enumerate(times) if those]
    return RunTelemetry(
        times=[sum(times[place]) / len(times[place]) for place in filled],
        nodes={
            node: {key: [values[place] for place in filled] for key, values in found.items()}
            for node, found in nodes.items()
        },
        summary=tuple(_summary(node, found) for node, found in sorted(samples.items())),
        samples=sum(map(len, samples.values())),
        left_out=len(samples) - len(shown),
    )


def _samples(lines: Iterable[Mapping[str, Any]]) -> Iterable[tuple[float, dict[str, float]]]:
    for line in lines:
        moment = _number(line.get("time"))
        values = {key: value for key, value in _values(line).items() if value is not None}
        if moment is not None and values:
            yield moment, values


def _values(line: Mapping[str, Any]) -> dict[str, float | None]:
    """A sample in the units of `SERIES`."""
    listed = line.get("gpus")
    gpus = [gpu for gpu in listed if isinstance(gpu, dict)] if isinstance(listed, list) else []

    def of_gpus(name: str) -> list[float]:
        return [value for gpu in gpus if (value := _number(gpu.get(name))) is not None]

    busy, used = of_gpus("utilization"), of_gpus("memory")
    watts, degrees = of_gpus("power"), of_gpus("temperature")
    memory = _number(line.get("memory"))
    return {
        "gpu": sum(busy) / len(busy) if busy else None,
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
    numbers = [_number(one) for one in directions] if isinstance(directions, list) else []
    known = [one for one in numbers if one is not None]
    return sum(known) / _MB if known else None


def _number(value: Any) -> float | None:
    """A number whose sums are finite; None for all else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) < _HUGE else None


def _means(
    samples: Sequence[tuple[float, dict[str, float]]], edges: Sequence[float]
) -> dict[str, list[float | None]]:
    found: dict[str, list[list[float]]] = {}
    for moment, values in samples:
        place = bisect_right(edges, moment)
        for key, value in values.items():
            found.setdefault(key, [[] for _ in range(len(edges) + 1)])[place].append(value)
    return {
        key: [rounded(sum(these) / len(these), _DIGITS) if these else None for these in places]
        for key, places in found.items()
    }


def _summary(node: str, samples: Sequence[tuple[float, dict[str, float]]]) -> NodeSummary:
    columns: dict[str, list[float]] = {}
    for _, values in samples:
        for key, value in values.items():
            columns.setdefault(key, []).append(value)
    return NodeSummary(
        node, {key: (sum(these) / len(these), max(these)) for key, these in columns.items()}
    )
