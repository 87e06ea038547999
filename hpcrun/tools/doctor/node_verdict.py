"""Which nodes are not well, and why: judged from what the job measured. Pure.

With a baseline, what is below 90 % of it is wrong. Without one nodes are compared with each other,
and only what is far from the median is: TCP alone makes links differ by a third. Nodes of a
partition need not be alike: no node is bad for lacking what Slurm does not promise of it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcrun.site.slurm_site import SlurmNode
from hpcrun.text import listed, one_line, plural, size
from hpcrun.tools.doctor.site_baseline import ENOUGH, NodeBaseline

BAD, WARNING = "bad", "warning"
# Parts of the median below which a GPU, or a processor, is bad without a baseline.
_GPU_OF_MEDIAN, _CPU_OF_MEDIAN = 0.85, 0.5
# Seconds: clocks that differ, files that are seen late, fsync.
_SKEW, _SEEN_LATE, _SYNC = 1.0, 5.0, 1.0
_BUSY, _USED_MB = 20, 2000
_CPU = "CPU"


@dataclass(frozen=True)
class NodeTestFinding:
    """One thing about one node, or about the way between two."""

    nodes: tuple[str, ...]
    severity: str
    """`BAD` for a node that runs should not have, `WARNING` for what should be known."""
    kind: str
    """``no_answer``, ``link``, ``slow_link``, ``fabric``, ``gpu``, ``gemm``, ``clock``, …"""
    message: str

    def to_data(self) -> dict[str, Any]:
        return {**vars(self), "nodes": list(self.nodes)}


@dataclass(frozen=True)
class NodeVerdict:
    """The findings on all nodes, and what was measured in a row for each."""

    nodes: tuple[str, ...]
    findings: tuple[NodeTestFinding, ...]

    @property
    def bad(self) -> dict[str, str]:
        """Return node -> why it is bad; a way between two nodes makes neither of them bad."""
        found: dict[str, list[str]] = {}
        for one in self.findings:
            if one.severity == BAD and len(one.nodes) == 1:
                found.setdefault(one.nodes[0], []).append(one.message)
        return {node: "; ".join(found[node]) for node in self.nodes if node in found}

    @property
    def is_well(self) -> bool:
        return not any(one.severity == BAD for one in self.findings)


def judge(
    result: Mapping[str, Any],
    baseline: NodeBaseline | None,
    slurm: Mapping[str, SlurmNode] | None = None,
    asked: int = 0,
) -> NodeVerdict:
    """Judge the result of a job.

    ``slurm`` has the nodes as Slurm knows them; ``asked`` GPUs were asked for of each.
    """
    nodes: Mapping[str, Any] = result["nodes"]
    known = slurm or {}
    found = [
        *_answers(nodes),
        *_links(result),
        *_fabric(result),
        *_gpus(nodes, known, asked),
        *_products(nodes, baseline, known),
        *_all_reduce(result, baseline),
        *_clocks(nodes),
        *_storage(nodes),
        *_compilers(nodes),
    ]
    return NodeVerdict(tuple(nodes), tuple(found))


def _answers(nodes: Mapping[str, Any]) -> Iterator[NodeTestFinding]:
    for node, one in nodes.items():
        if "error" in one:
            yield NodeTestFinding((node,), BAD, "no_answer", one_line(str(one["error"])))


def _links(result: Mapping[str, Any]) -> Iterator[NodeTestFinding]:
    name = result.get("interface") or "the fast interface"
    # What is known of them already.
    cut_off = {node for node, one in result["nodes"].items() if "error" in one}
    for node, one in result["nodes"].items():
        if "link" in one:
            cut_off.add(node)
            yield NodeTestFinding((node,), BAD, "link", one_line(str(one["link"])))
    for one in result["links"]["findings"]:
        nodes, usual = tuple(map(str, one["nodes"])), float(one["reference"])
        if set(nodes) & cut_off:
            continue
        why = f" ({one_line(str(one['error']))})" if one.get("error") else ""
        told = rate_text(float(one.get("rate", 0.0)))
        usually = f"the others {rate_text(usual)}" if usual else "nobody has it"
        words = {
            "slow_sender": f"it sends {told} over {name}, {usually}",
            "slow_receiver": f"it receives {told} over {name}, {usually}",
            "unreached": f"no other node reaches it over {name}{why}",
            "slow_pair": f"{told} between them over {name}, {usually}{why}",
        }
        if one["kind"] == "late":
            late = f"answers over {name} take {float(one['latency']) * 1e6:.0f} µs"
            message = f"{late}, of others {usual * 1e6:.0f} µs"
            yield NodeTestFinding(nodes, WARNING, "late_link", message)
        elif one["kind"] in words:
            yield NodeTestFinding(nodes, BAD, "slow_link", words[one["kind"]])


def _fabric(result: Mapping[str, Any]) -> Iterator[NodeTestFinding]:
    for one in result["fabric"]:
        known = one["kind"] in ("down", "no_subnet_manager", "slow")
        severity = BAD if known else WARNING
        yield NodeTestFinding(
            (str(one["node"]),), severity, "fabric", one_line(str(one["message"]))
        )


def _gpus(
    nodes: Mapping[str, Any], slurm: Mapping[str, SlurmNode], asked: int
) -> Iterator[NodeTestFinding]:
    facts = {node: one["facts"] for node, one in nodes.items() if "facts" in one}
    there = {node: own["gpus"] for node, own in facts.items()}
    counts = [len(gpus) for gpus in there.values() if gpus is not None]
    usual = statistics.mode(counts) if counts else 0
    drivers = {
        node: {str(gpu["driver"]) for gpu in gpus or [] if "driver" in gpu}
        for node, gpus in there.items()
    }
    every = sorted(set().union(*drivers.values()))
    for node, own in facts.items():
        # Slurm knows none where whole nodes were asked for.
        has = slurm[node].gpus_of(None) or asked if node in slurm else None
        if fewer := _number_of_gpus(own, has, asked, usual):
            severity, told = fewer
            yield NodeTestFinding((node,), severity, "gpu", told)
        for gpu in own["gpus"] or []:
            for severity, kind, told in _one_gpu(gpu):
                told = f"GPU {gpu.get('index', '?')}{told}"
                yield NodeTestFinding((node,), severity, kind, told)
        if len(every) > 1 and drivers[node]:
            told = f"its driver is {listed(sorted(drivers[node]), 2)}; there are {listed(every, 4)}"
            yield NodeTestFinding((node,), WARNING, "driver", told)


def _number_of_gpus(
    own: Mapping[str, Any], has: int | None, asked: int, usual: int
) -> tuple[str, str] | None:
    """Return the severity and the words for a node that shows fewer GPUs than it should.

    ``has`` are those that Slurm knows there (None where it does not tell), ``usual`` what most
    nodes show.
    """
    gpus, given = own["gpus"], own.get("gpus_given")
    if given and has is not None:
        # More than the node has are those of the first node: steps inherit its variables.
        given = min(given, has)
    if "gpu_trouble" in own:
        trouble = one_line(str(own["gpu_trouble"]))
        if given or asked:
            return BAD, trouble
        # nvidia-smi may be on nodes of processors, and fails without a GPU that it may see.
        return (WARNING, f"{trouble}; the test was given none of its GPUs") if has else None
    if gpus is None:
        if not usual or (has == 0 and not asked):
            return None
        severity = BAD if given or has or asked else WARNING
        return severity, "it has no driver for GPUs, the others have"
    if given and len(gpus) < given:
        return BAD, f"it shows {len(gpus)} of the {plural(given, 'GPU')} that Slurm gives"
    if len(gpus) >= usual or (has is not None and has <= len(gpus)):
        return None
    # Where GPUs were asked for and none are counted, Slurm's are parts of boards (MIG).
    of_boards = given is not None or not asked
    as_many = (given or 0) >= usual or (of_boards and (has or 0) >= usual)
    told = f"it shows {plural(len(gpus), 'GPU')}, the others {usual}"
    return BAD if as_many else WARNING, told


def _one_gpu(gpu: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield severity, kind and words of what is wrong with a GPU."""
    if "trouble" in gpu:
        yield BAD, "gpu", f": {one_line(str(gpu['trouble']))}"
    if errors := gpu.get("ecc_errors"):
        yield BAD, "ecc", f": {plural(errors, 'uncorrected ECC error')} since the driver began"
    if str(gpu.get("retired_pending", "")).lower() == "yes":
        yield BAD, "ecc", ": pages wait to be retired, which a reset of the GPU does"
    if gpu.get("ecc") == "Disabled":
        yield WARNING, "ecc", ": ECC is off"
    if gpu.get("slowdown"):
        yield BAD, "clock_slowdown", f": {gpu['slowdown']}"
    width, most = gpu.get("pcie_width"), gpu.get("pcie_width_most")
    if width and most and width < most:
        yield WARNING, "pcie", f": PCIe has {width} lanes of {most}"
    used, utilization = gpu.get("memory_used", 0), gpu.get("utilization", 0)
    if used > _USED_MB or utilization > _BUSY:
        told = f" is busy: {used} MB used, {utilization} % utilised, before the test"
        yield WARNING, "busy", told


def products(nodes: Mapping[str, Any]) -> dict[tuple[str, int, str], float]:
    """Return (node, rank on it, kind) -> floating point operations a second.

    The kind is a GPU's name, or ``CPU`` with the processor's model where it is known.
    """
    found = {}
    for node, one in nodes.items():
        facts = one.get("facts", {})
        gpus = facts.get("gpus") or []
        for number, rank in enumerate(one.get("tensor", ())):
            if "gemm" in rank:
                kind = f"{_CPU} {facts.get('processor') or ''}".strip()
                if rank.get("devices"):
                    kind = str(gpus[number]["name"]) if number < len(gpus) else "GPU"
                found[node, number, kind] = float(rank["gemm"])
    return found


def _products(
    nodes: Mapping[str, Any], baseline: NodeBaseline | None, slurm: Mapping[str, SlurmNode]
) -> Iterator[NodeTestFinding]:
    for node, one in nodes.items():
        ranks = one.get("tensor", ())
        if ranks and not any("gemm" in rank for rank in ranks):
            why = next((str(rank["error"]) for rank in ranks if "error" in rank), "no result")
            yield NodeTestFinding(
                (node,), BAD, "gemm", f"torch computes nothing there: {one_line(why)}"
            )
    every = products(nodes)
    alike: dict[Any, list[float]] = {}
    for (node, _, kind), rate in every.items():
        alike.setdefault(_peers(node, kind, slurm), []).append(rate)
    on_cpus = [rate for (*_, kind), rate in every.items() if _is_cpu(kind)]
    for (node, number, kind), rate in every.items():
        stored = baseline.gemm.get(kind) if baseline else None
        usual = stored or statistics.median(alike[_peers(node, kind, slurm)])
        if stored:
            limit, whose = ENOUGH, "the baseline is"
        else:
            limit, whose = (_CPU_OF_MEDIAN if _is_cpu(kind) else _GPU_OF_MEDIAN), "the median is"
        place = "a processor" if _is_cpu(kind) else f"GPU {number}"
        if rate < limit * usual:
            told = f"{place} computes {flops_text(rate)}, {whose} {flops_text(usual)}"
            # A baseline does not tell which of the nodes of several kinds it was taken from.
            is_mixed = stored and len([one for one in alike if one[0] == kind]) > 1
            yield NodeTestFinding((node,), WARNING if is_mixed else BAD, "gemm", told)
        elif not stored and _is_cpu(kind) and rate < limit * statistics.median(on_cpus):
            told = f"{place} computes {flops_text(rate)}, the median of nodes that are not alike "
            told += f"is {flops_text(statistics.median(on_cpus))}"
            yield NodeTestFinding((node,), WARNING, "gemm", told)


def _is_cpu(kind: str) -> bool:
    return kind.partition(" ")[0] == _CPU


def _peers(node: str, kind: str, slurm: Mapping[str, SlurmNode]) -> tuple[Any, ...]:
    """Return the properties that must agree for two matrix products to be comparable."""
    if _is_cpu(kind) and node in slurm:
        return kind, slurm[node].cpus, slurm[node].gpus_of(None)
    return (kind,)


def shape(result: Mapping[str, Any]) -> str:
    """Return the name of an all-reduce's shape: ``4 nodes, 32 ranks``."""
    reduced = result["allreduce"]
    return f"{len(reduced['nodes'])} nodes, {reduced['ranks']} ranks" if "rows" in reduced else ""


def _all_reduce(
    result: Mapping[str, Any], baseline: NodeBaseline | None
) -> Iterator[NodeTestFinding]:
    reduced = result["allreduce"]
    nodes = tuple(map(str, reduced.get("nodes", ())))
    if len(nodes) > 1 and not reduced["rows"]:
        errors = {
            node: str(rank["error"])
            for node in nodes
            for rank in result["nodes"][node].get("tensor", ())
            if "error" in rank
        }
        told = "; ".join(f"{node}: {one_line(why)}" for node, why in [*errors.items()][:3])
        message = f"the all-reduce over them failed: {told or 'no answer'}"
        yield NodeTestFinding(nodes, BAD, "all_reduce", message)
    for one in reduced.get("pairs", ()):
        pair, rates = tuple(map(str, one["nodes"])), (float(one["rate"]), float(one["reference"]))
        told = f"a bus bandwidth of {rate_text(rates[0])}, the others have {rate_text(rates[1])}"
        where = "it reaches" if len(pair) == 1 else "together they reach"
        yield NodeTestFinding(pair, BAD, "all_reduce", f"{where} {told}")
    stored = baseline.busbw.get(shape(result), {}) if baseline else {}
    rows = reduced.get("rows", ())
    # Small messages measure latency, and noise.
    best = max((row["busbw"] for row in rows), default=0.0)
    usual = max(stored.values(), default=0.0)
    if rows and best < ENOUGH * usual:
        message = f"the all-reduce over them has a bus bandwidth of {rate_text(best)} at "
        message += f"best, the baseline is {rate_text(usual)}"
        yield NodeTestFinding(nodes, BAD, "all_reduce", message)


def _clocks(nodes: Mapping[str, Any]) -> Iterator[NodeTestFinding]:
    ahead = {node: one["clock"] for node, one in nodes.items() if "clock" in one}
    if not ahead:
        return
    usual = statistics.median(one["ahead"] for one in ahead.values())
    for node, one in ahead.items():
        off = one["ahead"] - usual
        if abs(off) > _SKEW + one["within"]:
            told = f"its clock is {abs(off):.1f} s {'ahead' if off > 0 else 'behind'}"
            yield NodeTestFinding((node,), WARNING, "clock", told)


def _storage(nodes: Mapping[str, Any]) -> Iterator[NodeTestFinding]:
    for node, one in nodes.items():
        found = one.get("storage")
        if found is None:
            continue
        if "error" in found:
            message = f"it cannot write to the root: {one_line(str(found['error']))}"
            yield NodeTestFinding((node,), BAD, "storage", message)
        elif found.get("is_seen") is False or ("sees" in found and found["sees"] is None):
            message = "it does not see the root's new files, or the others not its own"
            yield NodeTestFinding((node,), BAD, "storage", message)
        else:
            if (found.get("sees") or 0) > _SEEN_LATE:
                told = f"it sees files of other nodes after {found['sees']:.0f} s"
                yield NodeTestFinding((node,), WARNING, "storage", told)
            if (found.get("sync") or 0) > _SYNC:
                told = f"fsync and rename take {found['sync']:.1f} s there"
                yield NodeTestFinding((node,), WARNING, "storage", told)


def _compilers(nodes: Mapping[str, Any]) -> Iterator[NodeTestFinding]:
    there = {node: one["facts"]["compiler"] for node, one in nodes.items() if "facts" in one}
    for name, told in (("c++", "g++"), ("ninja", "ninja"), ("Python.h", "Python's headers")):
        lacking = tuple(node for node, tools in there.items() if not tools.get(name))
        if lacking:
            message = f"no {told}: DeepSpeed's operators cannot be compiled there"
            yield NodeTestFinding(lacking, WARNING, "compiler", message)


def baseline_of(result: Mapping[str, Any]) -> NodeBaseline:
    """Return the baseline that a result of healthy nodes gives: medians."""
    rates = [float(rate) for *_, rate in result["links"]["rates"]]
    by_kind: dict[str, list[float]] = {}
    for (_, _, kind), rate in products(result["nodes"]).items():
        by_kind.setdefault(kind, []).append(rate)
    rows = result["allreduce"].get("rows", ())
    return NodeBaseline(
        link=statistics.median(rates) if rates else None,
        gemm={kind: statistics.median(own) for kind, own in by_kind.items()},
        busbw={shape(result): {str(row["bytes"]): row["busbw"] for row in rows}} if rows else {},
        nodes=tuple(result["nodes"]),
    )


def best_rates(result: Mapping[str, Any], node: str) -> tuple[float | None, float | None]:
    """Return the most that a node sent and received, in bytes per second."""
    rates: Sequence[Any] = result["links"]["rates"]
    sent = [float(rate) for one, _, rate in rates if one == node]
    got = [float(rate) for _, other, rate in rates if other == node]
    return max(sent, default=None), max(got, default=None)


def rate_text(value: float) -> str:
    return f"{size(int(value))}/s"


def flops_text(value: float) -> str:
    if value >= 1e12:
        return f"{value / 1e12:.3g} TFLOP/s"
    return f"{value / 1e9:.3g} GFLOP/s"
