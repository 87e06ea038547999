"""A plan's arrays against made sites; against a real Slurm: tests/cluster/test_check.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from hpcrun.check import check as checking
from hpcrun.check.finding import ERROR, NOTE, WARNING, Finding, KeyPlaces, merge
from hpcrun.check.job_request import JobRequest
from hpcrun.errors import HpcrunError
from hpcrun.site.slurm_site import SlurmLimits, SlurmReservation, SlurmSite, make
from hpcrun.slurm import mpi_types
from hpcrun.state.plan import Array, Entry, Plan, RunPlan

EMPTY = dict.fromkeys(("MaxTRES", "MinTRES", "GrpTRES", "MaxWall"), "")
QOS = {**EMPTY, "MaxJobsPerUser": "", "MaxSubmitJobsPerUser": ""}
OWN = {**EMPTY, "Partition": "", "MaxJobs": "", "MaxSubmitJobs": "", "DefaultQOS": ""}


def site(
    enforce: str = "associations,limits,qos",
    flags: str = "",
    features: str = "a100,fast,2080ti",
    **partition: str,
) -> SlurmSite:
    """A partition `main` of three nodes with four GPUs, and `old` without any.

    ``flags`` are those of the QOS `long`.
    """
    fields = {"Nodes": "g[1-3]", "State": "UP", "Default": "YES", "MaxTime": "1-00:00:00"}
    main = " ".join(f"{name}={value}" for name, value in {**fields, **partition}.items())
    gpus = f"CPUTot=32 RealMemory=200000 Gres=gpu:a100:4 AvailableFeatures={features}"
    told = {
        "config": [
            "AccountingStorageType = accounting_storage/slurmdbd",
            f"AccountingStorageEnforce = {enforce}",
            "MaxArraySize = 101",
            "MaxJobCount = 1000",
        ],
        "partition": [
            f"PartitionName=main {main}",
            "PartitionName=old Nodes=c[1-9] State=UP MaxTime=UNLIMITED",
            "PartitionName=secret Nodes=c1 State=UP Hidden=YES",
        ],
        "node": [
            f"NodeName=g1 {gpus} State=IDLE",
            f"NodeName=g2 {gpus} State=MIXED",
            f"NodeName=g3 {gpus} State=DOWN+DRAIN Reason=dimm",
            *(f"NodeName=c{n} CPUTot=8 RealMemory=16000 State=IDLE" for n in range(1, 10)),
        ],
        "licenses": ["LicenseName=matlab Total=4"],
    }
    rows = {
        "user": [{"DefaultAccount": "lab"}],
        "associations": [
            {**OWN, "Account": "lab", "QOS": "normal,long"},
            {**OWN, "Account": "poor", "QOS": "normal", "MaxWall": "01:00:00", "MaxTRES": "node=1"},
        ],
        "qos": [
            {**QOS, "Name": name, "Flags": flags if name == "long" else ""}
            for name in ("normal", "long", "vip")
        ],
        "parents": [
            {"Account": name, "ParentName": above}
            for name, above in (("lab", "physics"), ("poor", "root"), ("physics", "root"))
        ],
    }
    return make(told, rows, "", "ann", frozenset({"ml"}))


def request(runs: int = 1, **options: str) -> JobRequest:
    """A job of two nodes with four ranks each; options with underscores for dashes."""
    given = {"nodes": "2", "ntasks-per-node": "4", "cpus-per-task": "2", "time": "10:00:00"}
    given |= {name.replace("_", "-"): value for name, value in options.items()}
    script = "".join(f'#SBATCH --{name}="{value}"\n' for name, value in given.items())
    return JobRequest(tuple(range(runs)), script, given)


def found(job: JobRequest, there: SlurmSite) -> list[Finding]:
    return merge(checking.judge_job(job, there))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"partition": "main", "gpus_per_node": "a100:4", "account": "lab", "qos": "long"},
        {"partition": "old", "nodes": "9", "cpus_per_task": "1"},
        {"partition": "old,main", "gpus_per_node": "4"},
        {"constraint": "a100&fast"},
        {"constraint": "[a100*2&fast*1]"},
        {"constraint": "2080ti|fast"},
        {"gpus_per_node": "A100:4"},
        {"ntasks_per_node": "64", "overcommit": ""},
        {"mem": "0"},
        {"mem": "195G"},
        {"licenses": "matlab:4"},
        {"exclude": "g3,c[1-2]"},
        {"nodelist": "./nodes"},
        {"array": "0-100%3"},
    ],
)
def test_what_is_right(options: dict[str, str]) -> None:
    assert found(request(**options), site()) == []


WRONG: dict[str, tuple[dict[str, str], str, str]] = {
    "a partition": ({"partition": "man"}, "resources.partition", "no partition 'man'; this clu"),
    "no such feature": ({"constraint": "h100"}, "resources.constraint", "no node has the feature"),
    "features of no node": ({"partition": "old", "constraint": "fast"}, "resources.constraint", ""),
    "CPUs": ({"cpus_per_task": "9"}, "resources.cpus_per_task", "36 CPUs (4 ranks x 9) a node; "),
    "ranks": (
        {"ntasks_per_node": "33", "cpus_per_task": "1"},
        "resources.ntasks_per_node",
        "found 33 CPUs (33 ranks x 1) a node; the largest has 32",
    ),
    "memory": ({"mem": "300G"}, "resources.mem", "found 300G of memory a node; the largest has 19"),
    "memory a CPU": ({"mem_per_cpu": "100G"}, "resources.mem", "found 800G"),
    "GPUs": ({"gpus_per_node": "8"}, "resources.gpus_per_node", "the most of a node are 4 a100"),
    "a type of GPU": ({"gpus_per_node": "h100:4"}, "resources.gpu_type", "4 GPUs of type h100"),
    "GPUs of none": (
        {"gpus_per_node": "1", "partition": "old"},
        "resources.gpus_per_node",
        "no node has a GPU that Slurm knows",
    ),
    "nodes": ({"nodes": "4"}, "resources.nodes", "found 4 nodes; there are 3 in the partition mai"),
    "nodes without some": ({"nodes": "3", "exclude": "g1"}, "resources.nodes", "there are 2"),
    "all excluded": ({"exclude": "g[1-3]"}, "resources.partition", "has no node that the job may"),
    "time": ({"time": "2-00:00:00"}, "resources.time", "found 2-00:00:00 (2 d 00 h); the parti"),
    "a node that is none": ({"exclude": "g9"}, "resources.exclude", "there is no node g9"),
    "nodelist": ({"nodelist": "x1"}, "resources.sbatch.nodelist", "there is no node x1"),
    "an account": ({"account": "labs"}, "resources.account", "may not charge the account 'labs'"),
    "a QOS": ({"qos": "lung"}, "resources.qos", "there is no QOS 'lung'"),
    "another's QOS": ({"qos": "vip"}, "resources.qos", "the account lab may not use the QOS 'vip'"),
    "an account's time": (
        {"account": "poor", "nodes": "1"},
        "resources.time",
        "the account poor a",
    ),
    "an account's nodes": (
        {"account": "poor", "time": "00:30:00"},
        "resources.nodes",
        "the job takes 2 of node; the account poor accepts at most 1",
    ),
    "an array's index": ({"array": "0-101"}, "limits.max_array_size", "accepts up to 100 (MaxAr"),
    "a reservation": ({"reservation": "course"}, "resources.reservation", "no reservation 'cours"),
    "a licence": ({"licenses": "matlap"}, "resources.sbatch.licenses", "there is no licence 'matl"),
    "licences": ({"licenses": "matlab:5"}, "resources.sbatch.licenses", "this cluster has 4"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong(name: str) -> None:
    options, key, words = WRONG[name]
    (one,) = found(request(**options), site())
    assert (one.severity, one.key) == (ERROR, key)
    assert words in one.message


PARTITIONS: dict[str, tuple[dict[str, str], str, str, str]] = {
    "drained": ({"State": "DRAIN"}, ERROR, "resources.partition", "its state is DRAIN"),
    "inactive": ({"State": "INACTIVE"}, ERROR, "resources.partition", "takes no jobs"),
    "down": ({"State": "DOWN"}, WARNING, "resources.partition", "jobs wait until the admin"),
    "root's": ({"RootOnly": "YES"}, ERROR, "resources.partition", "only root may use"),
    "a group's": ({"AllowGroups": "ops"}, ERROR, "resources.partition", "for the groups ops; you"),
    "an account's": ({"AllowAccounts": "rich"}, ERROR, "resources.partition", "for the accounts r"),
    "closed": ({"DenyAccounts": "lab"}, ERROR, "resources.partition", "closed to the account lab"),
    "reserved": ({"ReqResv": "YES"}, ERROR, "resources.reservation", "used with a reservation"),
    "small": ({"MaxNodes": "1"}, ERROR, "resources.nodes", "accepts at most 1"),
    "large": ({"MinNodes": "3"}, ERROR, "resources.nodes", "accepts at least 3"),
    "few CPUs": ({"MaxCPUsPerNode": "4"}, ERROR, "resources.cpus_per_task", "the largest has 4"),
    "from elsewhere": ({"AllocNodes": "login9"}, WARNING, "resources.partition", "submitted from"),
}


@pytest.mark.parametrize("name", PARTITIONS)
def test_a_partition_that_is_not_for_this_job(name: str) -> None:
    fields, severity, key, words = PARTITIONS[name]
    (one,) = found(request(), site(**fields))
    assert (one.severity, one.key) == (severity, key)
    assert words in one.message


def test_accounts_below_one_that_is_let_in() -> None:
    """As newer Slurms do; of accounts that cannot be seen nothing is certain."""
    assert found(request(), site(AllowAccounts="physics")) == []
    there = dataclasses.replace(site(AllowAccounts="rich"), parents={})
    assert [one.severity for one in found(request(), there)] == [WARNING]


@pytest.mark.parametrize(
    ("flag", "options", "partition"),
    [
        ("PartitionTimeLimit", {"time": "2-00:00:00"}, {}),
        ("PartitionMaxNodes", {}, {"MaxNodes": "1"}),
        ("DenyOnLimit,PartitionMinNodes", {}, {"MinNodes": "3"}),
    ],
)
def test_a_qos_without_a_limit_of_the_partition(
    flag: str, options: dict[str, str], partition: dict[str, str]
) -> None:
    assert found(request(qos="long", **options), site(flags=flag, **partition)) == []
    [one] = found(request(qos="long", **options), site(**partition))
    assert one.severity == ERROR
    unknown = dataclasses.replace(site(**partition), qos=None, associations=None)
    [one] = found(request(qos="long", **options), unknown)
    assert one.severity == WARNING


def test_associations_of_another_cluster_do_not_count() -> None:
    row = {**OWN, "Account": "lab", "QOS": "normal", "MaxWall": "01:00:00"}
    parents = [{"Cluster": "there", "Account": "lab", "ParentName": "root"}]
    rows = {"user": [], "qos": [], "parents": parents}
    for cluster, count in (("here", 1), ("there", 0)):
        rows["associations"] = [{**row, "Cluster": cluster}]
        told = {"config": ["ClusterName = here", "AccountingStorageType = x/slurmdbd"]}
        made = make(told, rows, "", "ann", frozenset())
        assert len(made.associations or ()) == count
        assert made.parents == {}


def test_a_partition_by_qos() -> None:
    (one,) = found(request(qos="normal"), site(AllowQos="long"))
    assert "is for the QOS long; the job's is normal" in one.message
    (one,) = found(request(qos="normal"), site(DenyQos="normal"))
    assert "is closed to the QOS normal" in one.message


def test_no_partition_where_there_is_no_default() -> None:
    (one,) = found(request(), site(Default="NO"))
    assert "no partition is named, and this cluster has no default; it has main, old" in one.message


def test_nodes_that_are_down_are_waited_for() -> None:
    (one,) = found(request(nodes="3"), site())
    assert one.severity == WARNING
    assert "2 of the 3 that fit are up" in one.message
    assert "g3 is down or drained (dimm)" in one.message


def test_of_two_partitions_one_that_fits_is_enough() -> None:
    assert found(request(partition="old,main", gpus_per_node="4"), site()) == []
    both = found(request(partition="old,main", gpus_per_node="8"), site())
    assert [one.severity for one in both] == [ERROR, ERROR]


def test_what_is_not_enforced_is_a_warning() -> None:
    for options in ({"account": "labs"}, {"qos": "lung"}, {"account": "poor", "nodes": "1"}):
        (one,) = found(request(**options), site(enforce="none"))
        assert one.severity == WARNING
        assert "does not enforce it (AccountingStorageEnforce)" in one.message


def test_without_accounting_accounts_are_not_judged() -> None:
    there = dataclasses.replace(site(), associations=None, qos=None, without_accounting="none")
    assert found(request(account="labs", qos="lung"), there) == []


@pytest.mark.parametrize(
    ("limits", "severity", "words"),
    [
        ({"max_submit": 2}, WARNING, "accepts 2 that wait or run at once"),
        ({"max_submit": 0}, ERROR, "accepts 0"),
        ({"max_jobs": 2}, NOTE, "has at most 2 run at once"),
        ({"least": {"gres/gpu": 4}}, None, ""),
    ],
)
def test_limits_of_a_qos(limits: Mapping[str, Any], severity: str | None, words: str) -> None:
    there = dataclasses.replace(site(), qos={"normal": SlurmLimits(**limits)})
    every = found(request(3, qos="normal"), there)
    assert [one.severity for one in every] == ([severity] if severity else [])
    assert all(words in one.message for one in every)


def test_the_first_limit_that_is_set_counts() -> None:
    """The QOS of the partition, then the job's, then the association's."""
    qos = {"normal": SlurmLimits(max_wall=36_000), "gate": SlurmLimits(most={"node": 2})}
    there = dataclasses.replace(site(QoS="gate"), qos=qos)
    assert found(request(account="poor", qos="normal"), there) == []


RESERVATION = SlurmReservation("course", ("bob",), (), (), ("g1",), 1.0, 2e10, ())
RESERVATIONS: dict[str, tuple[dict[str, Any], str, str]] = {
    "another's": ({"nodes": ("g1", "g2")}, ERROR, "is for bob; you are ann with the account lab"),
    "over": ({"users": ("ann",), "nodes": ("g1", "g2"), "end": 2.0}, ERROR, "ended at"),
    "to come": ({"users": ("ann",), "nodes": (), "start": 1e10}, NOTE, "the job waits for it"),
    "small": ({"users": ("ann",)}, ERROR, "found 2 nodes; the reservation course has 1"),
    "without me": ({"users": ("-ann",), "nodes": ()}, ERROR, "is for"),
}


@pytest.mark.parametrize("name", RESERVATIONS)
def test_a_reservation(name: str) -> None:
    fields, severity, words = RESERVATIONS[name]
    one = dataclasses.replace(RESERVATION, **fields)
    there = dataclasses.replace(site(), reservations={"course": one})
    (said,) = found(request(reservation="course"), there)
    assert said.severity == severity
    assert words in said.message


@pytest.mark.parametrize(
    "fields", [{"users": ("ann",)}, {"accounts": ("lab",)}, {"groups": ("ml",)}, {"users": ()}]
)
def test_a_reservation_that_is_mine(fields: dict[str, Any]) -> None:
    one = dataclasses.replace(RESERVATION, **{"users": (), "nodes": (), **fields})
    there = dataclasses.replace(site(), reservations={"course": one})
    assert found(request(reservation="course"), there) == []


def test_a_key_is_found_where_it_is_written(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").write_text("name: a\nresources:\n  nodes: 2\n")
    (tmp_path / "site.yaml").write_text("resources: {nodes: 1, partition: x}\n")
    (tmp_path / "broken.yaml").write_text("{")
    sources = [tmp_path / name for name in ("own.yaml", "broken.yaml", "none.yaml", "site.yaml")]
    places = KeyPlaces(sources, ["time=10", "+resources.mem=1G"])
    assert places.of("resources.nodes") == "own.yaml:3"
    assert places.of("resources.partition") == "site.yaml:1"
    assert places.of("resources.time") == places.of("resources.mem") == "command line"
    assert places.of("resources.qos") == places.of("") == ""


def test_equal_findings_of_several_runs_are_one() -> None:
    several = [Finding(WARNING, "a", "b", runs=(2,)), Finding(ERROR, "c", "d", runs=(1,))]
    several += [Finding(WARNING, "a", "b", runs=(0, 1))]
    assert [(one.severity, one.runs) for one in merge(several)] == [
        (ERROR, (1,)),
        (WARNING, (0, 1, 2)),
    ]
    assert merge(several)[0].lines(3) == "error: c: run 1: d"
    assert merge(several)[1].lines(3) == "warning: a: b"


def test_a_type_of_mpi_that_srun_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(*named: str | None) -> Plan:
        runs = [RunPlan(n, "", "", {}, Entry("command"), {"resources": {"mpi": one}})
                for n, one in enumerate(named)]  # fmt: skip
        return Plan("e", "", "", "", {}, None, tuple(runs))

    monkeypatch.setattr(mpi_types, "offered", lambda: ["pmi2"])
    (one,) = checking.mpi_types_are_there(plan(None, "none", "pmi2", "pmix_v4", "pmix_v4"))
    assert (one.severity, one.key, one.runs) == (ERROR, "resources.mpi", (3, 4))
    assert one.message == "srun knows no 'pmix_v4' (srun --mpi=list): it has pmi2"

    def fails() -> list[str]:
        raise HpcrunError("srun --mpi=list: no answer")

    monkeypatch.setattr(mpi_types, "offered", fails)
    assert [*checking.mpi_types_are_there(plan(None, "none"))] == []
    (one,) = checking.mpi_types_are_there(plan("pmi2"))
    assert (one.severity, one.message) == (NOTE, "not checked: srun --mpi=list: no answer")


@pytest.mark.parametrize(
    ("resources", "share"),
    [
        ({"gpus_per_node": 4}, 8),
        ({"gpus_per_node": 2, "ntasks_per_node": 1}, 16),
        ({"gpus_per_node": 4, "cpus_per_task": 1}, None),
        ({"gpus_per_node": 0}, None),
        ({"gpus_per_node": 8}, None),
    ],
)
def test_the_cpus_of_a_gpu_are_proposed(resources: dict[str, Any], share: int | None) -> None:
    wanted = {"nodes": 1, "ntasks_per_node": None, "cpus_per_task": None, **resources}
    run = RunPlan(0, "", "", {}, Entry("command"), {"resources": wanted, "recovery": {}})
    options = {"nodes": 1, "ntasks-per-node": run.ranks_per_node, "gpus-per-node": run.all_gpus}
    options["cpus-per-task"] = 1
    script = "".join(f"#SBATCH --{name}={value}\n" for name, value in options.items())
    plan = Plan("e", "", "", "", {}, None, (run,), (Array((0,), script, 0.0),))
    told = [one for one in checking.judge(plan, site()) if one.severity == NOTE]
    assert [one.hint for one in told] == ([f"type cpus_per_task={share}"] if share else [])


@pytest.mark.parametrize(
    ("partition", "shared", "expected"),
    [
        ("main", "NO", [(WARNING, "it may hide them")]),
        ("old", "NO", []),
        ("main", "FORCE:1", [(WARNING, "it may hide them")]),
        ("main", "FORCE:4", [(WARNING, "it may hide them"), (ERROR, "OverSubscribe=FORCE:4")]),
    ],
)
def test_gpus_that_slurm_does_not_know_are_not_missed(
    partition: str, shared: str, expected: list[tuple[str, str]]
) -> None:
    wanted = {"nodes": 1, "gpus_per_node": 8, "gpu_request": "none", "node_has_gpus": 8}
    run = RunPlan(0, "", "", {}, Entry("command"), {"resources": wanted, "recovery": {}})
    script = f"#SBATCH --nodes=1\n#SBATCH --exclusive\n#SBATCH --partition={partition}\n"
    plan = Plan("e", "", "", "", {}, None, (run,), (Array((0,), script, 0.0),))
    told = [one for one in checking.judge(plan, site(OverSubscribe=shared)) if "gpu" in one.key]
    assert [one.severity for one in told] == [severity for severity, _ in expected]
    assert all(part in one.message for one, (_, part) in zip(told, expected, strict=True))


@pytest.mark.parametrize("option", ["gpus-per-node=a100:8", "gres=nvme:1,gpu:a100:8"])
def test_gpus_are_counted_however_they_are_asked_for(option: str) -> None:
    name, _, value = option.partition("=")
    (one,) = found(request(**{name: value}), site())
    assert (one.key, "the most of a node are 4 a100" in one.message) == ("resources.gpu_type", True)
