"""Verdicts on nodes, from results as the conductor writes them."""

from __future__ import annotations

from typing import Any

import pytest

from hpcrun.site.slurm_site import SlurmNode
from hpcrun.tools.doctor import node_verdict
from hpcrun.tools.doctor.node_verdict import BAD, WARNING, NodeVerdict, judge
from hpcrun.tools.doctor.site_baseline import NodeBaseline
from tests.support import made_site

GPU: dict[str, Any] = {
    **{"index": 0, "name": "NVIDIA H100", "driver": "550.54", "memory": 81559, "memory_used": 4},
    **{"utilization": 0, "ecc": "Enabled", "ecc_errors": 0, "retired_pending": "No"},
    **{"clock": 1980, "clock_most": 1980, "pcie_width": 16, "pcie_width_most": 16},
}


TOOLS = {"c++": "/usr/bin/g++", "ninja": "/usr/bin/ninja", "nvcc": None, "Python.h": "/x"}


def node(**more: Any) -> dict[str, Any]:
    """A node with two GPUs, all of it well."""
    gpus = [{**GPU, "index": number} for number in range(2)]
    return {
        "facts": {"gpus": gpus, "gpus_given": 2, "libraries": {"torch": "2"}, "compiler": TOOLS},
        "clock": {"ahead": 0.001, "within": 0.0005},
        "storage": {"sees": 0.01, "sync": 0.004, "is_seen": True},
        "tensor": [{"devices": 2, "gemm": 6e14, "allreduce": []} for _ in range(2)],
        **more,
    }


def result(**changed: Any) -> dict[str, Any]:
    """Three nodes n1, n2 and n3 that are well, but for what is changed."""
    nodes = {name: node() for name in ("n1", "n2", "n3")}
    ways = [("n1", "n2"), ("n2", "n1"), ("n2", "n3"), ("n3", "n2"), ("n3", "n1"), ("n1", "n3")]
    links = {"rates": [[*way, 2e9] for way in ways], "latencies": [], "findings": []}
    row = {"bytes": 1 << 27, "seconds": 0.01, "algbw": 1e10, "busbw": 1.6e10}
    reduced = {"rows": [row], "nodes": ["n1", "n2", "n3"], "ranks": 6, "interface": "ib0"}
    found = {"nodes": nodes, "interface": "ib0", "links": {**links, "reference": 2e9}}
    return {**found, "fabric": [], "allreduce": reduced, "seconds": 12.0, **changed}


def slurm(**gres: str) -> dict[str, SlurmNode]:
    """Slurm's view of nodes with these GPUs, such as ``n1="gpu:8"``; each has 64 CPUs."""
    lines = [line for name, own in gres.items() for line in made_site.nodes([name], Gres=own)]
    return dict(made_site.site([made_site.partition("all", ",".join(gres))], lines).nodes)


def told(verdict: NodeVerdict) -> list[tuple[tuple[str, ...], str, str, str]]:
    return [(one.nodes, one.severity, one.kind, one.message) for one in verdict.findings]


def test_all_is_well() -> None:
    verdict = judge(result(), None)
    assert verdict.findings == ()
    assert verdict.is_well
    assert verdict.bad == {}


def _links(*findings: dict[str, Any]) -> dict[str, Any]:
    return result(links={"rates": [], "latencies": [], "findings": [*findings], "reference": 2e9})


@pytest.mark.parametrize(
    ("finding", "message"),
    [
        (
            {"kind": "slow_sender", "nodes": ["n2"], "rate": 6e6},
            "it sends 6.0 MB/s over ib0, the others 2.0 GB/s",
        ),
        (
            {"kind": "slow_receiver", "nodes": ["n2"], "rate": 6e6},
            "it receives 6.0 MB/s over ib0, the others 2.0 GB/s",
        ),
        (
            {"kind": "unreached", "nodes": ["n2"], "rate": 0.0, "error": "timed out"},
            "no other node reaches it over ib0 (timed out)",
        ),
    ],
)
def test_a_slow_link_of_a_node(finding: dict[str, Any], message: str) -> None:
    verdict = judge(_links({**finding, "reference": 2e9}), None)
    assert verdict.bad == {"n2": message}
    assert not verdict.is_well


def test_a_slow_way_makes_neither_end_bad() -> None:
    finding = {"kind": "slow_pair", "nodes": ["n1", "n3"], "rate": 6e6, "reference": 2e9}
    verdict = judge(_links(finding), None)
    assert verdict.bad == {}
    assert not verdict.is_well
    assert told(verdict)[0][3] == "6.0 MB/s between them over ib0, the others 2.0 GB/s"


def test_late_answers_are_a_warning() -> None:
    finding = {"kind": "late", "nodes": ["n2"], "latency": 0.002, "reference": 2e-5}
    (one,) = judge(_links(finding), None).findings
    assert (one.severity, one.message) == (
        WARNING,
        "answers over ib0 take 2000 µs, of others 20 µs",
    )


def test_a_node_without_a_link_is_named_once() -> None:
    changed = _links({"kind": "unreached", "nodes": ["n3"], "rate": 0.0, "reference": 2e9})
    changed["nodes"]["n3"]["link"] = "ib0 has no carrier"
    assert judge(changed, None).bad == {"n3": "ib0 has no carrier"}


def test_a_node_that_does_not_answer() -> None:
    changed = result()
    changed["nodes"]["n2"] = {"error": "it fell silent in the middle of the test"}
    assert judge(changed, None).bad == {"n2": "it fell silent in the middle of the test"}
    finding = {"kind": "slow_pair", "nodes": ["n1", "n2"], "rate": 0.0, "reference": 2e9}
    changed["links"]["findings"] = [finding]
    assert [one.kind for one in judge(changed, None).findings] == ["no_answer"]


def test_ports_of_the_fabric() -> None:
    port = {"node": "n2", "kind": "slow", "message": "mlx5_0:1 has 100 Gb/sec, its peers 400"}
    unread = {"node": "n3", "kind": "unreadable", "message": "files do not answer"}
    # Nodes of a partition need not be alike.
    other = {"node": "n1", "kind": "differs", "message": "it has no port for NCCL, n2 has 4"}
    verdict = judge(result(fabric=[port, unread, other]), None)
    assert verdict.bad == {"n2": "mlx5_0:1 has 100 Gb/sec, its peers 400"}
    assert [one.severity for one in verdict.findings] == [BAD, WARNING, WARNING]


@pytest.mark.parametrize(
    ("changes", "severity", "message"),
    [
        ({"ecc_errors": 3}, BAD, "GPU 0: 3 uncorrected ECC errors since the driver began"),
        ({"retired_pending": "Yes"}, BAD, "GPU 0: pages wait to be retired"),
        ({"slowdown": "HW thermal slowdown"}, BAD, "GPU 0: HW thermal slowdown"),
        ({"trouble": "Unknown Error"}, BAD, "GPU 0: Unknown Error"),
        ({"ecc": "Disabled"}, WARNING, "GPU 0: ECC is off"),
        ({"pcie_width": 4}, WARNING, "GPU 0: PCIe has 4 lanes of 16"),
        ({"memory_used": 9000, "utilization": 80}, WARNING, "GPU 0 is busy: 9000 MB used, 80 %"),
    ],
)
def test_a_gpu(changes: dict[str, Any], severity: str, message: str) -> None:
    changed = result()
    changed["nodes"]["n2"]["facts"]["gpus"][0].update(changes)
    (one,) = judge(changed, None).findings
    assert (one.nodes, one.severity) == (("n2",), severity)
    assert message in one.message


def test_gpus_that_are_missing() -> None:
    changed = result()
    facts = {name: changed["nodes"][name]["facts"] for name in ("n1", "n2", "n3")}
    facts["n1"]["gpus"] = facts["n1"]["gpus"][:1]
    facts["n2"]["gpus"] = None
    facts["n3"].update({"gpus": None, "gpu_trouble": "nvidia-smi gave no answer within 20 s"})
    for name in ("n1", "n2"):
        changed["nodes"][name]["tensor"] = changed["nodes"][name]["tensor"][:1]
    assert judge(changed, None).bad == {
        "n1": "it shows 1 of the 2 GPUs that Slurm gives",
        "n2": "it has no driver for GPUs, the others have",
        "n3": "nvidia-smi gave no answer within 20 s",
    }
    # Nobody has a driver, as on nodes of processors: nothing is known, and said elsewhere.
    changed = result()
    for one in changed["nodes"].values():
        one["facts"]["gpus"] = None
        one["tensor"] = [{"devices": 0, "gemm": 1e11}]
    assert judge(changed, None).is_well


def test_mixed_nodes_are_not_bad_for_fewer_gpus() -> None:
    """n1 has processors alone, n2 one GPU, n3 and n4 two."""
    changed = result()
    changed["nodes"]["n4"] = node()
    facts = {name: one["facts"] for name, one in changed["nodes"].items()}
    # Steps inherit what the first node was given.
    facts["n1"].update({"gpus": None, "gpus_given": 2})
    facts["n2"].update({"gpus": facts["n2"]["gpus"][:1], "gpus_given": None})
    known = slurm(n1="(null)", n2="gpu:1", n3="gpu:2", n4="gpu:2")
    assert judge(changed, None, known).findings == ()
    # Slurm says that they have as many.
    changed["nodes"]["n2"]["tensor"] = changed["nodes"]["n2"]["tensor"][:1]
    assert judge(changed, None, slurm(n1="gpu:2", n2="gpu:2", n3="gpu:2", n4="gpu:2")).bad == {
        "n1": "it has no driver for GPUs, the others have",
        "n2": "it shows 1 GPU, the others 2",
    }
    # Nobody knows what they should have.
    facts["n1"]["gpus_given"] = None
    found = judge(changed, None)
    assert [(one.nodes, one.severity) for one in found.findings] == [
        (("n1",), WARNING),
        (("n2",), WARNING),
    ]
    # Slurm counts parts of boards, and gives no number of boards.
    parts = slurm(n1="gpu:2", n2="gpu:1g.10gb:7", n3="gpu:2", n4="gpu:2")
    assert [*judge(changed, None, parts, asked=2).bad] == ["n1"]
    # Slurm knows none, and the profile does.
    unknown = slurm(n1="(null)", n2="(null)", n3="(null)", n4="(null)")
    found = judge(changed, None, unknown, asked=2)
    assert [one.nodes for one in found.findings] == [("n1",), ("n2",)]


def test_nvidia_smi_that_fails_without_a_gpu_of_its_own() -> None:
    changed = result()
    trouble = "nvidia-smi ended with exit code 9: it couldn't communicate with the driver"
    for name in ("n1", "n2"):
        facts = changed["nodes"][name]["facts"]
        facts.update({"gpus": None, "gpus_given": None, "gpu_trouble": trouble})
    known = slurm(n1="(null)", n2="gpu:2", n3="gpu:2")
    (one,) = judge(changed, None, known).findings
    assert (one.nodes, one.severity) == (("n2",), WARNING)
    assert one.message == f"{trouble}; the test was given none of its GPUs"
    assert judge(changed, None, known, asked=2).bad == {"n1": trouble, "n2": trouble}
    changed["nodes"]["n2"]["facts"]["gpus_given"] = 2
    assert judge(changed, None, known).bad == {"n2": trouble}


def test_another_driver_is_a_warning() -> None:
    changed = result()
    changed["nodes"]["n2"]["facts"]["gpus"] = [{**GPU, "driver": "535.1"}, {**GPU, "index": 1}]
    found = judge(changed, None)
    assert found.is_well
    assert {one.kind for one in found.findings} == {"driver"}


def test_products_are_compared_with_the_median_or_the_baseline() -> None:
    changed = result()
    changed["nodes"]["n2"]["tensor"][1]["gemm"] = 4.8e14
    message = "GPU 1 computes 480 TFLOP/s, the median is 600 TFLOP/s"
    assert judge(changed, None).bad == {"n2": message}
    changed["nodes"]["n2"]["tensor"][1]["gemm"] = 5.3e14
    assert judge(changed, None).is_well
    stored = NodeBaseline(gemm={"NVIDIA H100": 6.2e14})
    message = "GPU 1 computes 530 TFLOP/s, the baseline is 620 TFLOP/s"
    assert judge(changed, stored).bad == {"n2": message}


def test_processors_differ_more() -> None:
    changed = result()
    for name, rate in (("n1", 1e11), ("n2", 7e10), ("n3", 4e10)):
        changed["nodes"][name]["facts"]["gpus"] = None
        changed["nodes"][name]["tensor"] = [{"devices": 0, "gemm": rate}]
    assert judge(changed, None).is_well
    changed["nodes"]["n3"]["tensor"][0]["gemm"] = 3e10
    message = "a processor computes 30 GFLOP/s, the median is 70 GFLOP/s"
    assert judge(changed, None).bad == {"n3": message}


def test_processors_are_compared_where_nodes_are_alike() -> None:
    changed = result()
    for name, rate in (("n1", 1e11), ("n2", 9e10), ("n3", 3e10)):
        changed["nodes"][name]["facts"]["gpus"] = None
        changed["nodes"][name]["tensor"] = [{"devices": 0, "gemm": rate}]
    message = "a processor computes 30 GFLOP/s, the median is 90 GFLOP/s"
    assert judge(changed, None, slurm(n1="", n2="", n3="")).bad == {"n3": message}
    others = "a processor computes 30 GFLOP/s, the median of nodes that are not alike is 90 GFLOP/s"
    mixed = slurm(n1="", n2="", n3="gpu:2")
    assert told(judge(changed, None, mixed)) == [(("n3",), WARNING, "gemm", others)]
    # A baseline that knows no models tells no more.
    stored = NodeBaseline(gemm={"CPU": 9e10})
    assert [one.severity for one in judge(changed, stored, mixed).findings] == [WARNING]
    for name, model in (("n1", "EPYC"), ("n2", "EPYC"), ("n3", "Atom")):
        changed["nodes"][name]["facts"]["processor"] = model
    assert told(judge(changed, None)) == [(("n3",), WARNING, "gemm", others)]
    kept = node_verdict.baseline_of(changed)
    assert kept.gemm == {"CPU EPYC": 9.5e10, "CPU Atom": 3e10}
    assert judge(changed, kept).is_well


def test_torch_that_fails() -> None:
    changed = result()
    changed["nodes"]["n2"]["tensor"] = [{"error": "it ended with exit code 1: no CUDA"}]
    assert judge(changed, None).bad == {
        "n2": "torch computes nothing there: it ended with exit code 1: no CUDA"
    }


def test_an_all_reduce_that_fails_or_is_slow() -> None:
    changed = result()
    changed["allreduce"]["rows"] = []
    changed["nodes"]["n2"]["tensor"][0]["error"] = "timeout"
    verdict = judge(changed, None)
    assert verdict.bad == {}
    assert told(verdict)[0][3] == "the all-reduce over them failed: n2: timeout"
    stored = NodeBaseline(busbw={"3 nodes, 6 ranks": {"134217728": 1.7e10, "65536": 1e9}})
    assert judge(result(), stored).is_well
    stored = NodeBaseline(busbw={"3 nodes, 6 ranks": {"134217728": 2e10}})
    verdict = judge(result(), stored)
    assert "16.0 GB/s at best, the baseline is 20.0 GB/s" in told(verdict)[0][3]
    assert not verdict.is_well
    # Of another number of nodes.
    stored = NodeBaseline(busbw={"4 nodes, 8 ranks": {"134217728": 2e10}})
    assert judge(result(), stored).is_well


def test_pairs_by_nccl() -> None:
    changed = result()
    changed["allreduce"]["pairs"] = [{"nodes": ["n2"], "rate": 5e9, "reference": 4e10}]
    message = "it reaches a bus bandwidth of 5.0 GB/s, the others have 40.0 GB/s"
    assert judge(changed, None).bad == {"n2": message}
    changed["allreduce"]["pairs"] = [{"nodes": ["n1", "n3"], "rate": 5e9, "reference": 4e10}]
    verdict = judge(changed, None)
    assert (verdict.bad, verdict.is_well) == ({}, False)
    assert told(verdict)[0][3].startswith("together they reach a bus bandwidth of 5.0 GB/s")


@pytest.mark.parametrize(
    ("storage", "severity", "message"),
    [
        ({"error": "Read-only file system"}, BAD, "it cannot write to the root: Read-only"),
        ({"sees": None, "is_seen": True}, BAD, "it does not see the root's new files"),
        ({"sees": 0.1, "is_seen": False}, BAD, "it does not see the root's new files"),
        ({"sees": 9.0, "is_seen": True}, WARNING, "files of other nodes after 9 s"),
        ({"sees": 0.1, "is_seen": True, "sync": 2.5}, WARNING, "fsync and rename take 2.5 s"),
    ],
)
def test_storage(storage: dict[str, Any], severity: str, message: str) -> None:
    changed = result()
    changed["nodes"]["n2"]["storage"] = storage
    (one,) = judge(changed, None).findings
    assert (one.nodes, one.severity) == (("n2",), severity)
    assert message in one.message


def test_clocks() -> None:
    changed = result()
    changed["nodes"]["n2"]["clock"]["ahead"] = -3.0
    (one,) = judge(changed, None).findings
    assert (one.severity, one.message) == (WARNING, "its clock is 3.0 s behind")


def test_a_node_without_a_compiler() -> None:
    changed = result()
    changed["nodes"]["n2"]["facts"]["compiler"] = {**TOOLS, "c++": None}
    (one,) = judge(changed, None).findings
    assert (one.nodes, one.severity) == (("n2",), WARNING)
    assert one.message == "no g++: DeepSpeed's operators cannot be compiled there"


def test_the_baseline_of_a_result() -> None:
    found = node_verdict.baseline_of(result())
    assert found.link == 2e9
    assert found.gemm == {"NVIDIA H100": 6e14}
    assert found.busbw == {"3 nodes, 6 ranks": {str(1 << 27): 1.6e10}}
    assert judge(result(), found).is_well
    assert node_verdict.best_rates(result(), "n2") == (2e9, 2e9)
    assert node_verdict.best_rates(result(), "n9") == (None, None)
