"""Measurements of a profile by rank: parts of a step, flops, memory; and the slowest rank."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from hpcrun import fields
from hpcrun.errors import UsageError
from hpcrun.fields import INDEX, LIST, METRICS, NAME, NUMBER, TEXT, TEXTS, WHOLE
from hpcrun.observe.tables import Table
from hpcrun.state import files
from hpcrun.state.layout import AttemptPaths
from hpcrun.state.spec.profiling import COMMUNICATION, PARTS
from hpcrun.text import plural, size

# The part of a step by which ranks may differ and still count as even.
EVEN = 0.02
_SUMMARY = {
    **dict.fromkeys(("rank", "steps", "taken"), INDEX),
    "node": NAME,
    **dict.fromkeys(("device", "dtype"), TEXT),
    **dict.fromkeys(("bare_seconds", "profiled_seconds", "hidden", "peak"), NUMBER),
    **dict.fromkeys(("parts", "phases", "collectives", "memory"), METRICS),
    **dict.fromkeys(("process_bytes", "device_bytes", "trace_bytes"), WHOLE),
    "flops": fields.NUMBER,
    "problems": TEXTS,
}
_RANK = {
    **{name: kind for name, kind in _SUMMARY.items() if not name.endswith("_seconds")},
    "bare": NUMBER,
    "step": NUMBER,
}
_OPTIONAL = ("peak", "device_bytes", "taken")
# Of a GPU's name and precision the operations a second; None where they are not known.
PeakOf = Callable[[str, str, bool], float | None]
# Of more ranks those are shown that wait least, and those that wait most.
_SHOWN = 16


@dataclass(frozen=True)
class RankProfile:
    """Measurements of one rank; times in seconds a step, sizes in bytes."""

    rank: int
    node: str
    device: str
    """``cpu``, or the GPU's name as its driver has it."""
    dtype: str
    """Data type of its matrix products, such as ``bfloat16``."""
    steps: int
    """Steps that were profiled; as many were timed without."""
    bare: float
    """A step as it is, without the profiler."""
    step: float
    """A step while it was profiled, by the program's clock."""
    parts: dict[str, float]
    """By `hpcrun.state.spec.profiling.PARTS`, from the trace: together a profiled step."""
    hidden: float
    """Communication behind other parts."""
    phases: dict[str, float]
    """``forward``, ``backward``, ``step`` of a DeepSpeed engine, as the host sees them."""
    collectives: dict[str, float]
    """Communication by name, hidden or not."""
    flops: int
    """Floating point operations of a step on this rank; 0 where none were seen."""
    peak: float | None
    """Operations a second that the device can do: a GPU's by its data sheet, of a CPU what matrix
    products were measured to reach. None for a GPU that is not in the catalogue."""
    memory: dict[str, int]
    """Bytes by kind while gradients are there; ``activations`` at most."""
    process_bytes: int
    """Most memory of the process."""
    device_bytes: int | None
    """Most memory of its tensors on a GPU."""
    trace_bytes: int
    problems: tuple[str, ...] = ()

    @property
    def busy(self) -> float:
        """Seconds of a step in which it does not wait for communication."""
        return sum(self.parts.values()) - self.parts[COMMUNICATION]

    @property
    def sum_of_parts(self) -> float:
        """All parts together."""
        return sum(self.parts.values())

    @property
    def utilization(self) -> float | None:
        """Part of the device's peak that a step without the profiler reaches: its MFU."""
        if not self.peak or not self.flops or not self.bare:
            return None
        return self.flops / self.bare / self.peak


@dataclass(frozen=True)
class SlowRank:
    """The rank that the others wait for."""

    rank: int
    node: str
    behind: float
    """Seconds a step that it is busy longer than the median of the others."""
    part: str
    """Part of the step that takes it longer by most."""
    part_behind: float


@dataclass(frozen=True)
class StepProfile:
    """The profile of a run."""

    name: str
    """The run's, such as ``fine-profile/0``."""
    directory: str
    """The attempt's directory, which holds the traces."""
    warmup: int
    ranks: tuple[RankProfile, ...]

    @property
    def bare(self) -> float:
        """Seconds of a step without the profiler, of the rank in the middle."""
        return median(one.bare for one in self.ranks)

    @property
    def step(self) -> float:
        """The same while it is profiled."""
        return median(one.step for one in self.ranks)

    @property
    def flops(self) -> int:
        """Operations of a step on all ranks."""
        return sum(one.flops for one in self.ranks)

    @property
    def utilization(self) -> float | None:
        """The mean MFU of the ranks; None where that of some is unknown."""
        found = [one.utilization for one in self.ranks]
        known = [one for one in found if one is not None]
        return sum(known) / len(known) if len(known) == len(found) else None

    @property
    def slowest(self) -> SlowRank | None:
        """The rank that waits least; None where ranks are even, or there is one."""
        if len(self.ranks) < 2:
            return None
        slow = max(self.ranks, key=lambda one: one.busy)
        others = [one for one in self.ranks if one is not slow]
        behind = slow.busy - median(one.busy for one in others)
        if behind < EVEN * slow.sum_of_parts:
            return None
        later = {
            part: slow.parts[part] - median(one.parts[part] for one in others)
            for part in PARTS
            if part != COMMUNICATION
        }
        part = max(later, key=later.__getitem__)
        return SlowRank(slow.rank, slow.node, behind, part, later[part])

    def to_data(self) -> dict[str, Any]:
        """Return what ``hpcrun profile --json`` prints."""
        slow = self.slowest
        ranks = [
            {
                **dataclasses.asdict(one),
                "utilization": one.utilization,
                "trace": AttemptPaths.trace_name(one.rank),
            }
            for one in self.ranks
        ]
        return {
            "run": self.name,
            "directory": self.directory,
            "warmup": self.warmup,
            "step_seconds": self.bare,
            "profiled_step_seconds": self.step,
            "flops": self.flops,
            "utilization": self.utilization,
            "slowest": None if slow is None else dataclasses.asdict(slow),
            "ranks": ranks,
        }


def of_summaries(
    name: str, attempt: AttemptPaths, world_size: int, warmup: int, peak_of: PeakOf
) -> StepProfile:
    """Return the profile that the ranks of an attempt have written.

    Raises UsageError if a rank wrote none, or ended before its profile was done.
    """
    ranks = []
    for rank in range(world_size):
        found = _read(attempt, rank)
        if "parts" not in found and not found.get("taken"):
            raise UsageError(
                f"rank {rank} of {name} took no optimizer step that can be seen: of Python "
                "programs, torch.optim and DeepSpeed engines are looked at"
            )
        if "parts" not in found:
            steps = f"after {found['taken']} optimizer steps"
            raise UsageError(f"rank {rank} of {name} ended {steps}, before its profile was done")
        ranks.append(_rank(found, peak_of))
    return StepProfile(name, str(attempt.directory), warmup, tuple(ranks))


def _read(attempt: AttemptPaths, rank: int) -> dict[str, Any]:
    path = attempt.profile(rank)
    try:
        found = files.read_json(path)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    problem = "it is no mapping"
    if isinstance(found, dict):
        needed = [one for one in _SUMMARY if one not in _OPTIONAL] if "parts" in found else ()
        problem = fields.wrong(found, _SUMMARY, needed) or _wrong_parts(found)
    if problem:
        raise UsageError(f"{path} is no profile of a rank: {problem}")
    return dict(found)


def _wrong_parts(found: Mapping[str, Any]) -> str:
    missing = [part for part in PARTS if part not in found.get("parts", PARTS)]
    return f"parts has no {missing[0]}" if missing else ""


def _rank(found: dict[str, Any], peak_of: PeakOf) -> RankProfile:
    steps = max(1, found["steps"])
    peak = found.get("peak")
    if peak is None:
        peak = peak_of(found["device"], found["dtype"], found.get("tf32") is True)

    def each(values: Mapping[str, float]) -> dict[str, float]:
        return {key: value / steps for key, value in values.items()}

    return RankProfile(
        **{key: found[key] for key in ("rank", "node", "device", "dtype", "steps", "memory")},
        bare=found["bare_seconds"] / steps,
        step=found["profiled_seconds"] / steps,
        parts=each({part: found["parts"][part] for part in PARTS}),
        hidden=found["hidden"] / steps,
        phases=each(found["phases"]),
        collectives=each(found["collectives"]),
        flops=int(found["flops"]),
        peak=peak,
        process_bytes=found["process_bytes"],
        device_bytes=found.get("device_bytes"),
        trace_bytes=found["trace_bytes"],
        problems=tuple(found["problems"]),
    )


def read(attempt: AttemptPaths) -> StepProfile | None:
    """Return the profile that was kept beside the traces; None if there is none that is one."""
    try:
        found = files.read_json(attempt.whole_profile)
    except (OSError, ValueError):
        return None
    kinds = {"run": TEXT, "directory": TEXT, "warmup": INDEX, "ranks": LIST}
    if not isinstance(found, dict) or fields.wrong(found, kinds, tuple(kinds)):
        return None
    ranks = tuple(_ranks(found["ranks"]))
    if not ranks or len(ranks) != len(found["ranks"]):
        return None
    return StepProfile(found["run"], found["directory"], found["warmup"], ranks)


def _ranks(found: Sequence[Any]) -> Iterator[RankProfile]:
    names = [one.name for one in dataclasses.fields(RankProfile)]
    needed = [name for name in names if name not in _OPTIONAL]
    for one in found:
        if not isinstance(one, dict) or fields.wrong(one, _RANK, needed) or _wrong_parts(one):
            return
        given: dict[str, Any] = {name: one.get(name) for name in names}
        yield RankProfile(**{**given, "problems": tuple(one["problems"])})


def shown_ranks(profile: StepProfile) -> list[RankProfile]:
    """Return the ranks that a table has room for: all, or those that are busy most and least."""
    if len(profile.ranks) <= _SHOWN:
        return list(profile.ranks)
    order = sorted(profile.ranks, key=lambda one: -one.busy)
    return [*order[: _SHOWN // 2], *order[-_SHOWN // 2 :]]


def parts_table(profile: StepProfile) -> Table:
    """Return milliseconds of a step by part; a row for each rank."""
    names = [part.upper() for part in PARTS]
    headers = ("RANK", "NODE", "STEP", *names, "HIDDEN", "MFU")
    table = Table(headers, right=frozenset(headers) - {"NODE"})
    for one in shown_ranks(profile):
        told = [share(one.parts[part], one.sum_of_parts) for part in PARTS]
        mfu = "" if one.utilization is None else f"{one.utilization:.1%}"
        step = milliseconds(one.sum_of_parts)
        table.add(str(one.rank), one.node, step, *told, milliseconds(one.hidden), mfu)
    return table


def memory_table(profile: StepProfile) -> Table:
    """Return bytes by kind; a row for each rank."""
    kinds = list(dict.fromkeys(kind for one in profile.ranks for kind in one.memory))
    on_gpu = any(one.device_bytes is not None for one in profile.ranks)
    headers = ["RANK", *map(str.upper, kinds), *(["DEVICE"] if on_gpu else []), "PROCESS"]
    table = Table(headers, right=frozenset(headers))
    for one in shown_ranks(profile):
        cells = [size(int(one.memory[kind])) if kind in one.memory else "" for kind in kinds]
        device = [size(one.device_bytes or 0)] if on_gpu else []
        table.add(str(one.rank), *cells, *device, size(one.process_bytes))
    return table


def head(profile: StepProfile) -> Iterator[str]:
    """Yield the lines above the tables: the step, and how much of the device's peak it reaches."""
    steps, ranks = profile.ranks[0].steps, len(profile.ranks)
    slower = profile.step / profile.bare - 1 if profile.bare else 0.0
    yield (
        f"{profile.name}: a step takes {milliseconds(profile.bare)} ms "
        f"({milliseconds(profile.step)} ms while profiled, {slower:+.0%}), "
        f"mean of {plural(steps, 'step')} on {plural(ranks, 'rank')}"
    )
    yield _operations(profile)


def _operations(profile: StepProfile) -> str:
    first = profile.ranks[0]
    if not profile.flops:
        return "MFU unknown: no operations were counted in a step"
    rate = profile.flops / profile.bare if profile.bare else 0.0
    told = f"{quantity(profile.flops)}FLOP a step, {quantity(rate)}FLOP/s"
    if profile.utilization is None:
        return f"{told}; MFU unknown: {first.device} is not in the catalogue of GPUs"
    peak = f"{quantity(first.peak or 0.0)}FLOP/s"
    if first.device == "cpu":
        return (
            f"{told}; MFU {profile.utilization:.1%} of {peak} a rank, which matrix products of "
            f"{first.dtype} were measured to reach here (a CPU has no data sheet's peak)"
        )
    return (
        f"{told}; MFU {profile.utilization:.1%} of {peak}, the peak of {first.device} in "
        f"{first.dtype}"
    )


def findings(profile: StepProfile) -> Iterator[str]:
    """Yield the lines below the tables: the slowest rank, what was not found, where traces are."""
    if left := len(profile.ranks) - len(shown_ranks(profile)):
        yield f"{plural(left, 'rank')} between these are not shown; --json has them"
    if (slow := profile.slowest) is not None:
        yield (
            f"slowest: rank {slow.rank} on {slow.node}, for which the others wait: it is busy "
            f"{milliseconds(slow.behind)} ms a step longer than they are at the median, most of "
            f"all in {slow.part} ({milliseconds(slow.part_behind)} ms)"
        )
    elif len(profile.ranks) > 1:
        yield "no rank is slower than the others by more than 2 % of a step"
    if phases := profile.ranks[0].phases:
        told = ", ".join(f"{name} {milliseconds(value)} ms" for name, value in phases.items())
        yield f"the engine's calls on rank {profile.ranks[0].rank}: {told}"
    for one in profile.ranks:
        for problem in one.problems:
            yield f"rank {one.rank}: {problem}"
    total = sum(one.trace_bytes for one in profile.ranks)
    first = Path(profile.directory) / AttemptPaths.trace_name(profile.ranks[0].rank)
    yield (
        f"{plural(len(profile.ranks), 'trace')}, {size(total)} together, for ui.perfetto.dev: "
        f"{first}" + (" and beside it" if len(profile.ranks) > 1 else "")
    )


def tables(profile: StepProfile) -> list[tuple[str, Table]]:
    """Return the tables, each with its caption."""
    return [
        ("milliseconds of a profiled step, and their part of it", parts_table(profile)),
        ("memory of a rank's tensors by kind, and of its process", memory_table(profile)),
    ]


def section(profile: StepProfile) -> dict[str, Any]:
    """Return what a report shows of a profile."""
    longest = max(one.sum_of_parts for one in profile.ranks) or 1.0
    return {
        "title": profile.name,
        "head": list(head(profile)),
        "bars": [
            (one.rank, [round(100 * one.parts[part] / longest, 2) for part in PARTS])
            for one in shown_ranks(profile)
        ],
        "tables": tables(profile),
        "findings": list(findings(profile)),
        "meanings": list(meanings()),
    }


def meanings() -> Iterator[tuple[str, str]]:
    """Yield each part and what it is, for a legend."""
    yield from PARTS.items()
    yield "hidden", f"{COMMUNICATION} while another part is counted; not in the sum"


def milliseconds(seconds: float) -> str:
    """``0.42``, ``12.3``, ``1,234``: milliseconds, three digits."""
    value = 1000 * seconds
    if value >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def share(seconds: float, whole: float) -> str:
    """``12.3 (45%)``."""
    return f"{milliseconds(seconds)} ({seconds / whole:.0%})" if whole else milliseconds(seconds)


def quantity(value: float) -> str:
    """``1.23 T``, before a unit."""
    for power, letter in ((15, "P"), (12, "T"), (9, "G"), (6, "M")):
        if value >= 10.0**power:
            return f"{value / 10.0**power:.3g} {letter}"
    return f"{value:.3g} "
