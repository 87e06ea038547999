"""The allocation around a command, from the variables that Slurm sets in it."""

from __future__ import annotations

from typing import Any

import pytest

from hpcrun.errors import ClusterRefused, HpcrunError
from hpcrun.slurm import allocation
from hpcrun.slurm.allocation import Allocation
from hpcrun.state.spec.blocks import RunSpec
from tests.support.slurm_shim import Shim


def _runs(**resources: Any) -> list[RunSpec]:
    return [RunSpec({"resources": resources})]


@pytest.fixture
def inside(shim: Shim, monkeypatch: pytest.MonkeyPatch) -> Allocation:
    shim.answer("srun", {})
    for name, value in {
        "JOB_ID": "77",
        "JOB_NODELIST": "n[1-2],m3",
        "JOB_CPUS_PER_NODE": "8(x2),4",
        "GPUS_PER_NODE": "a100:2",
    }.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    found = allocation.around({"executor": "slurm"})
    assert found is not None
    return found


def test_what_it_has(inside: Allocation) -> None:
    assert inside == Allocation("77", "77", ("n1", "n2", "m3"), 0, 4, 2)


def test_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert allocation.around({"executor": "slurm"}) is None


def test_none_is_around_what_runs_on_this_machine(inside: Allocation) -> None:
    assert allocation.is_around()
    assert allocation.around({"executor": "local"}) is None


@pytest.mark.parametrize(
    "resources",
    [{}, {"nodes": 3, "gpus_per_node": 2}, {"ntasks_per_node": 2, "cpus_per_task": 2}],
)
def test_what_fits(inside: Allocation, resources: dict[str, Any]) -> None:
    inside.check(_runs(**resources))


@pytest.mark.parametrize(
    ("resources", "says"),
    [
        ({"nodes": 4}, "asks for 4 nodes (resources.nodes); the allocation 77 has 3"),
        (
            {"nodes": 2, "spare_nodes": 2},
            "asks for 4 nodes (resources.nodes + spare_nodes); the allocation 77 has 3",
        ),
        ({"gpus_per_node": 3}, "asks for 3 GPUs per node"),
        ({"ntasks_per_node": 5}, "asks for 5 CPUs per node"),
        ({"ntasks_per_node": 2, "cpus_per_task": 4}, "asks for 8 CPUs per node"),
    ],
)
def test_what_does_not_fit(inside: Allocation, resources: dict[str, Any], says: str) -> None:
    with pytest.raises(ClusterRefused) as caught:
        inside.check([*_runs(), *_runs(**resources)])
    assert says in caught.value.message
    assert "salloc" in str(caught.value.hint)


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_JOB_ID", "124")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")
    return monkeypatch


def test_a_jobs_allocation(job: pytest.MonkeyPatch) -> None:
    assert Allocation.current() == Allocation("124", "124", ("n1", "n2"), 0)


def test_an_array_element_has_the_name_that_requeue_needs(job: pytest.MonkeyPatch) -> None:
    job.setenv("SLURM_ARRAY_JOB_ID", "120")
    job.setenv("SLURM_ARRAY_TASK_ID", "0")
    job.setenv("SLURM_RESTART_COUNT", "2")
    assert Allocation.current() == Allocation("124", "120_0", ("n1", "n2"), 2)


def _divided(job: pytest.MonkeyPatch, *nodes: str) -> None:
    job.setenv("SLURM_HET_SIZE", str(len(nodes)))
    for number, each in enumerate(nodes):
        job.setenv(f"SLURM_JOB_NODELIST_HET_GROUP_{number}", each)
        job.setenv(f"SLURM_JOB_ID_HET_GROUP_{number}", str(124 + number))


def test_a_heterogeneous_job_has_the_nodes_of_all_parts(job: pytest.MonkeyPatch) -> None:
    _divided(job, "n[1-2]", "m1", "n7")
    found = Allocation.current()
    assert (found.job_id, found.name, found.nodes) == ("124", "124", ("n1", "n2", "m1", "n7"))
    assert found.part_ids == ("124", "125", "126")
    assert found.parts == {"n1": 0, "n2": 0, "m1": 1, "n7": 2}


def test_parts_with_a_node_in_common_are_refused(job: pytest.MonkeyPatch) -> None:
    _divided(job, "n[1-2]", "n2")
    with pytest.raises(HpcrunError, match="Slurm gave node n2 to two parts of this job"):
        Allocation.current()


@pytest.mark.parametrize("missing", ["SLURM_JOB_ID", "SLURM_JOB_NODELIST"])
def test_outside_a_job_it_says_so(job: pytest.MonkeyPatch, missing: str) -> None:
    job.delenv(missing)
    with pytest.raises(HpcrunError, match="not inside a Slurm job"):
        Allocation.current()


@pytest.mark.parametrize(("answer", "is_alone"), [("NO", True), ("OK", False), ("USER", False)])
def test_whole_nodes_have_to_be_this_jobs_alone(
    inside: Allocation, shim: Shim, answer: str, is_alone: bool
) -> None:
    shim.answer("squeue", {"out": f"{answer}\n"})
    inside.check(_runs(gpus_per_node=2))
    runs = _runs(gpus_per_node=2, gpu_request="none", node_has_gpus=2)
    if is_alone:
        inside.check(runs)
        return
    with pytest.raises(ClusterRefused, match="may share its nodes") as caught:
        inside.check(runs)
    assert "salloc --exclusive" in str(caught.value.hint)
