"""The tables and lines of a profile, for a terminal and for the report."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpcrun.observe.profile.step_profile import RankProfile, StepProfile
from hpcrun.observe.tables import Table
from hpcrun.state.layout import AttemptPaths
from hpcrun.state.spec.profiling import COMMUNICATION, PARTS
from hpcrun.text import plural, size

# Of more ranks those are shown that wait least, and those that wait most.
_SHOWN = 16


def shown(profile: StepProfile) -> list[RankProfile]:
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
    for one in shown(profile):
        told = [share(one.parts[part], one.sum_of_parts) for part in PARTS]
        mfu = "" if one.utilization is None else f"{one.utilization:.1%}"
        step = milliseconds(one.sum_of_parts)
        table.add(str(one.rank), one.node, step, *told, milliseconds(one.hidden), mfu)
    return table


def memory_table(profile: StepProfile) -> Table:
    """Return bytes by kind; a row for each rank."""
    kinds = list(dict.fromkeys(kind for one in profile.ranks for kind in one.memory))
    on_gpu = any(one.device_bytes is not None for one in profile.ranks)
    headers = (
        "RANK",
        *(kind.upper() for kind in kinds),
        *(["DEVICE"] if on_gpu else []),
        "PROCESS",
    )
    table = Table(headers, right=frozenset(headers))
    for one in shown(profile):
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
    if left := len(profile.ranks) - len(shown(profile)):
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
            for one in shown(profile)
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
