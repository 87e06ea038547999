"""``hpcrun doctor --nodes``: chooses nodes, runs the job, judges, records, and reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcrun.errors import EXIT_FAILED, EXIT_OK, BrokenFile, HpcrunError, UsageError
from hpcrun.site import slurm_records
from hpcrun.site.slurm_site import SlurmNode
from hpcrun.slurm import patience
from hpcrun.state.suspect_nodes import HOURS, SuspectNodes
from hpcrun.text import Say, listed, shortened, size
from hpcrun.tools.doctor import node_choice, node_job, node_verdict, site_baseline
from hpcrun.tools.doctor.doctor_profile import DoctorProfile
from hpcrun.tools.doctor.examination import read_site
from hpcrun.tools.doctor.node_job import NodeJobRequest, NodeTest
from hpcrun.tools.doctor.node_verdict import BAD, NodeVerdict, flops_text, rate_text
from hpcrun.tools.doctor.site_baseline import NodeBaseline

if TYPE_CHECKING:
    from hpcrun.observe.tables import Table

# Kinds of findings that only hardware makes.
_HARDWARE = ("link", "slow_link", "fabric", "gpu", "ecc", "clock_slowdown")


@dataclass(frozen=True)
class NodeExamination:
    """The result of a job, and the verdict."""

    partition: str
    job: str
    result: Mapping[str, Any]
    verdict: NodeVerdict
    baseline: NodeBaseline | None
    notes: Sequence[str] = ()

    @property
    def exit_code(self) -> int:
        """Return 1 if a node, or a way between nodes, is bad; else 0."""
        return EXIT_OK if self.verdict.is_well else EXIT_FAILED

    @property
    def seconds(self) -> float:
        return float(self.result["seconds"])

    def to_data(self) -> dict[str, Any]:
        """Return it as plain data; unknown is null."""
        return {
            "partition": self.partition,
            "job": self.job,
            "interface": self.result["interface"],
            "seconds": self.seconds,
            "bad": self.verdict.bad,
            "findings": [one.to_data() for one in self.verdict.findings],
            "nodes": self.result["nodes"],
            "links": self.result["links"],
            "allreduce": self.result["allreduce"],
            "baseline": vars(self.baseline) if self.baseline else None,
            "notes": list(self.notes),
        }

    def table(self) -> Table:
        """Return a row for each node."""
        from hpcrun.observe.tables import Table

        right = ("sends", "receives", "GEMM", "fsync", "clock")
        table = Table(
            ("node", "verdict", "GPUs", *right),
            right=frozenset(right),
            styled=frozenset({"verdict"}),
        )
        products = node_verdict.products(self.result["nodes"])
        for node, one in self.result["nodes"].items():
            gpus = one.get("facts", {}).get("gpus")
            sent, got = node_verdict.best_rates(self.result, node)
            slowest = min(
                (rate for (name, *_), rate in products.items() if name == node), default=0
            )
            storage, clock = one.get("storage", {}), one.get("clock")
            table.add(
                node,
                "bad" if node in self.verdict.bad else "well",
                "" if gpus is None else _gpus(gpus),
                *("" if rate is None else rate_text(rate) for rate in (sent, got)),
                flops_text(slowest) if slowest else "",
                f"{storage['sync'] * 1000:.3g} ms" if storage.get("sync") else "",
                f"{clock['ahead'] * 1000:+.0f} ms" if clock else "",
            )
        return table

    def lines(self) -> list[str]:
        """Return the all-reduce, what is wrong, and what to type."""
        reduced = self.result["allreduce"]
        told = [
            f"all-reduce of {size(row['bytes'])} over {node_verdict.shape(self.result)}: "
            f"algbw {rate_text(row['algbw'])}, busbw {rate_text(row['busbw'])}"
            for row in reduced.get("rows", ())
        ]
        for one in self.verdict.findings:
            where = listed(one.nodes, 4)
            told.append(f"{one.severity}: {where}: {one.message}")
        bad = self.verdict.bad
        if bad:
            names, some = ",".join(bad), listed([*bad], 4)
            peers = [node for node in self.verdict.nodes if node not in bad][:1]
            told += [
                f"to run without {some}: hpcrun submit SPEC resources.exclude={names}",
                f"to test again: hpcrun doctor --nodes {','.join([*bad, *peers])}",
                f"for administrators: scontrol update nodename={names} state=drain "
                'reason="hpcrun doctor"',
            ]
        elif any(one.severity == BAD for one in self.verdict.findings):
            told.append(
                "which of these nodes it is, tests with others show: hpcrun doctor --nodes "
                f"{len(self.verdict.nodes) + 2}"
            )
        return told


def _gpus(gpus: Sequence[Mapping[str, Any]]) -> str:
    names = {str(gpu.get("name", "GPU")) for gpu in gpus}
    return f"{len(gpus)} {listed(sorted(names), 2)}" if gpus else "0"


def examine_nodes(profile: DoctorProfile, test: NodeTest, say: Say) -> NodeExamination:
    """Test nodes in a job, and judge them.

    Raises UsageError for nodes that are not there, or where there is no Slurm; as `node_job.run`
    does; BrokenFile for a baseline that is none.
    """
    if not profile.is_slurm:
        raise UsageError(
            f"--nodes tests the nodes of a Slurm cluster; the profile '{profile.name}' runs on "
            "this machine",
            hint="`hpcrun doctor` examines this machine; --cluster NAME chooses another profile",
        )
    patience.act()
    site = read_site(profile)
    wanted = test.partition or (profile.data["resources"].get("partition") or "").split(",")[0]
    choice = node_choice.choose(test.words, wanted or None, site)
    if profile.data["resources"]["gpu_request"] == "none":
        choice = replace(choice, gpus=profile.data["resources"]["node_has_gpus"])
    for note in choice.notes:
        say(note)
    file = test.baseline or site_baseline.place(profile.root)
    # One that is saved anew need not be right.
    baseline = None if test.saves else site_baseline.read(file, choice.partition)
    request = NodeJobRequest(choice, test, baseline_rate=baseline.link if baseline else None)
    result = node_job.run(profile, request, say)
    verdict = _judge(result, baseline, site.nodes, choice.gpus)
    notes = _notes(result, baseline)
    notes += record_suspects(profile.root, verdict)
    if test.saves:
        if verdict.is_well:
            site_baseline.write(file, choice.partition, node_verdict.baseline_of(result))
            notes.append(f"kept as the baseline of {choice.partition}: {file}")
        else:
            notes.append("not kept as the baseline, as not all is well")
    return NodeExamination(choice.partition, result["job"], result, verdict, baseline, notes)


def _judge(
    result: Mapping[str, Any],
    baseline: NodeBaseline | None,
    slurm: Mapping[str, SlurmNode],
    asked: int,
) -> NodeVerdict:
    try:
        return node_verdict.judge(result, baseline, slurm, asked)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BrokenFile.of("result.json of the job", f"{type(error).__name__}: {error}") from None


def _notes(result: Mapping[str, Any], baseline: NodeBaseline | None) -> list[str]:
    notes = []
    facts = [one["facts"] for one in result["nodes"].values() if "facts" in one]
    if skipped := result["allreduce"].get("skipped"):
        notes.append(f"no matrix product and no all-reduce: {skipped}")
    if omitted := result["allreduce"].get("omitted"):
        notes.append(f"no all-reduce: {omitted}")
    given = [one["gpus_given"] for one in facts if one.get("gpus_given")]
    if given and all(one["gpus"] is None for one in facts):
        notes.append(
            f"GPUs are not examined: Slurm gives {given[0]} a node, and none has a driver of "
            "NVIDIA's"
        )
    if baseline is None:
        notes.append(
            "without a baseline nodes are compared with each other; when all are well, "
            "--save-baseline keeps one"
        )
    return notes


def record_suspects(root: Path, verdict: NodeVerdict) -> list[str]:
    """Put the nodes whose hardware is broken into the record; return notes for the user."""
    broken: dict[str, str] = {}
    for one in verdict.findings:
        if one.severity == BAD and len(one.nodes) == 1 and one.kind in _HARDWARE:
            broken.setdefault(one.nodes[0], one.message)
    try:
        for node, why in broken.items():
            SuspectNodes(root).record(node, why, "doctor")
    except HpcrunError as error:
        return [f"not recorded as suspect: {error.message}"]
    names = listed(sorted(broken), 8)
    told = f"suspect for {HOURS:g} hours: {names}; your submissions leave such nodes out"
    return [told] if broken else []


def clear_suspects(root: Path, names: str) -> list[str]:
    """Take nodes out of the record, and return them.

    Raises UsageError for what is no list of nodes, and for nodes that are not in the record.
    """
    wanted = list(dict.fromkeys(slurm_records.nodes(names)))
    if not wanted:
        raise UsageError(
            f"--clear: found {shortened(names, 80)!r}; accepted are names such as node[01-04],n7"
        )
    there = [one.node for one in SuspectNodes(root).read()]
    if unknown := [node for node in wanted if node not in there]:
        raise UsageError(
            f"--clear: {listed(unknown, 4)} is not among the suspect nodes; there is "
            f"{listed(sorted(there), 8) or 'no node'}",
            hint="`hpcrun doctor` lists them",
        )
    return SuspectNodes(root).forget(wanted)
