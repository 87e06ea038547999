"""`hpcrun check` and the check inside `submit`, on a real Slurm that enforces its limits."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster.workbench import Workbench
from tests.testbed import VERSIONS, Cluster

pytestmark = [pytest.mark.timeout(300)]

CONFIG = {
    "AccountingStorageEnforce": "associations,limits,qos",
    "Licenses": "matlab:4",
    "MaxArraySize": "50",
}
FEATURES = {"n1": "fast,ssd", "n2": "fast,ssd", "n3": "big", "n4": "big"}
PARTITIONS = {
    "drained": "State=DRAIN",
    "roots": "RootOnly=YES",
    "rich": "AllowAccounts=rich",
    "ops": "AllowGroups=root",
    "long": "AllowQos=long",
    "closed": "DenyAccounts=research",
    "small": "MaxNodes=1",
    "large": "MinNodes=3",
    "short": "Nodes=ALL MaxTime=10",
    "reserved": "ReqResv=YES",
    "thin": "MaxCPUsPerNode=2",
}
SPEC: dict[str, Any] = {
    "entry": ["true"],
    "cluster": "bed",
    "resources": {"nodes": 1, "ntasks_per_node": 1, "mem": "500M", "time": "00:05:00"},
}
PROGRAM = "import {module}\nprint(1)\n"


def _spec(**resources: Any) -> dict[str, Any]:
    return {**SPEC, "resources": {**SPEC["resources"], **resources}}


def _option(name: str, value: Any) -> dict[str, Any]:
    return _spec(sbatch={name: value})


# Name -> spec, the key, and words of the message.
WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "partition": (_spec(partition="mian"), "resources.partition", "did you mean 'main'?"),
    "one of two partitions": (_spec(partition="main,x"), "resources.partition", "no partition 'x'"),
    "drained": (_spec(partition="drained"), "resources.partition", "its state is DRAIN"),
    "root's": (_spec(partition="roots"), "resources.partition", "only root may use"),
    "for another account": (
        _spec(partition="rich"),
        "resources.partition",
        "for the accounts rich",
    ),
    "for another group": (_spec(partition="ops"), "resources.partition", "for the groups root"),
    "for another QOS": (
        _spec(partition="long", qos="normal"),
        "resources.qos",
        "is for the QOS long; the job's is normal",
    ),
    "closed to my account": (_spec(partition="closed"), "resources.partition", "closed to the acc"),
    "a reservation is needed": (
        _spec(partition="reserved"),
        "resources.reservation",
        "none is nam",
    ),
    "most nodes": (_spec(partition="small", nodes=2), "resources.nodes", "accepts at most 1"),
    "least nodes": (_spec(partition="large", nodes=2), "resources.nodes", "accepts at least 3"),
    "partition's time": (_spec(partition="short", time="11"), "resources.time", "at most 10 min"),
    "time": (_spec(time="2-00:00:00"), "resources.time", "the partition main accepts at most"),
    "account": (_spec(account="reserch"), "resources.account", "did you mean 'research'?"),
    "QOS": (_spec(qos="norml"), "resources.qos", "did you mean 'normal'?"),
    "another's QOS": (_spec(qos="vip"), "resources.qos", "the account research may not use"),
    "QOS's time": (
        _spec(qos="brief", time="20"),
        "resources.time",
        "the QOS brief accepts at most",
    ),
    "QOS's nodes": (_spec(qos="brief", nodes=3), "resources.nodes", "the job takes 3 of node"),
    "QOS's GPUs": (
        _spec(qos="brief", gpus_per_node=2),
        "resources.gpus_per_node",
        "takes 2 of gres",
    ),
    "QOS's least": (_spec(qos="wide"), "resources.nodes", "accepts at least 2"),
    "reservation": (_spec(reservation="cours"), "resources.reservation", "did you mean 'course'?"),
    "another's reservation": (_spec(reservation="course"), "resources.reservation", "is for root"),
    "feature": (_spec(constraint="h100"), "resources.constraint", "no node has the feature 'h100'"),
    "features of no node": (_spec(constraint="fast&big"), "resources.constraint", "the nodes have"),
    "nodes": (_spec(nodes=5), "resources.nodes", "there are 4 in the partition main, of 4"),
    "nodes of a feature": (_spec(nodes=3, constraint="fast"), "resources.nodes", "there are 2"),
    "nodes without some": (_spec(nodes=4, exclude="n1"), "resources.nodes", "there are 3"),
    "exclude": (_spec(exclude="n9"), "resources.exclude", "there is no node n9"),
    "nodelist": (_option("nodelist", "x1"), "resources.sbatch.nodelist", "there is no node x1"),
    "CPUs": (_spec(cpus_per_task=9), "resources.cpus_per_task", "the largest has 8"),
    "partition's CPUs": (
        _spec(partition="thin", cpus_per_task=3),
        "resources.cpus_per_task",
        "has 2",
    ),
    "ranks": (_spec(ntasks_per_node=9), "resources.ntasks_per_node", "found 9 CPUs (9 ranks x 1)"),
    "memory": (_spec(mem="900G"), "resources.mem", "found 900G of memory a node; the largest has"),
    "GPUs": (_spec(gpus_per_node=3), "resources.gpus_per_node", "the most of a node are 2"),
    "type of GPU": (_spec(gpus_per_node=1, gpu_type="h100"), "resources.gpu_type", "of type h100"),
    "licence": (_option("licenses", "matlap"), "resources.sbatch.licenses", "mean 'matlab'?"),
    "licences": (
        _option("licenses", "matlab:5"),
        "resources.sbatch.licenses",
        "this cluster has 4",
    ),
    "module": ({**SPEC, "entry": "lacking.py"}, "entry", "imports no_such_module, which"),
    "Python": (
        {**SPEC, "environment": {"python": "/usr/bin/pithon"}},
        "environment.python",
        "/usr/bin/pithon",
    ),
    "initial weights": (
        {**SPEC, "entry": "plain.py", "checkpoint": {"initialize_from": "nobody/0"}},
        "checkpoint.initialize_from",
        "nobody",
    ),
    "what Slurm alone knows": (
        _option("gres", "nvme:1"),
        "",
        "Slurm refuses the job: ",
    ),
}
RIGHT: dict[str, dict[str, Any]] = {
    "as it is": SPEC,
    "all nodes": _spec(nodes=4),
    "all of a node": _spec(ntasks_per_node=2, cpus_per_task=4, gpus_per_node=2, mem="0"),
    "an account": _spec(account="research"),
    "a QOS": _spec(qos="brief", nodes=2, time="10"),
    "two partitions": _spec(partition="short,main", time="20"),
    "features": _spec(nodes=2, constraint="fast&ssd"),
    "one of two features": _spec(nodes=4, constraint="fast|big"),
    "licences": _option("licenses", "matlab:4"),
    "my reservation": _spec(reservation="mine"),
    "an array": {**SPEC, "config": {"x": 0}, "sweep": {"grid": {"x": [1, 2, 3]}}},
    "more runs than an array has": {
        **SPEC,
        "config": {"x": 0},
        "sweep": {"grid": {"x": {"range": [60]}}},
    },
    "a program": {**SPEC, "entry": "plain.py"},
}


# They need the nodes that are reserved now.
WAITING = {"all nodes", "one of two features"}


class Site:
    """A bed with partitions, QOS, reservations, features and licences for each case."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.bench = Workbench(cluster, "checks")
        self.bench.write("plain.py", PROGRAM.format(module="json"))
        self.bench.write("lacking.py", PROGRAM.format(module="no_such_module"))
        for words in (
            "add account rich",
            "add qos brief set MaxWall=15 MaxTRES=node=2,gres/gpu=1",
            "add qos wide set MinTRES=node=2",
            "add qos vip",
            "add qos long",
            "modify user hpcrun-test set qos+=brief,wide",
        ):
            self._root("sacctmgr", "-i", *words.split())
        for words in (
            "users=root nodes=n4 reservation=course",
            "users=hpcrun-test nodes=n3 reservation=mine",
        ):
            self._root("scontrol", "create", *words.split(), "starttime=now", "duration=60")

    def _root(self, *words: str) -> None:
        self.cluster.run(list(words), user=False)

    def check(self, name: str, spec: dict[str, Any]) -> tuple[int, dict[str, Any], str]:
        """The exit code of `hpcrun check --json`, its report, and what it says."""
        self.bench.spec(name, spec)
        done = self.bench.hpcrun("check", f"{name}.yaml", "--json", check=False)
        assert done.stdout, done.stderr
        (report,) = json.loads(done.stdout)
        return done.returncode, report, done.stderr

    def jobs(self) -> str:
        return self.cluster.run(["squeue", "--noheader", "--states=all"], check=False).stdout


def test_a_cluster_that_enforces_its_limits(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(VERSIONS[1], extra=CONFIG, partitions=PARTITIONS, features=FEATURES)
    _check_all(Site(cluster))


@pytest.mark.usually
def test_an_older_cluster(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(VERSIONS[0], extra=CONFIG, partitions=PARTITIONS, features=FEATURES)
    _check_all(Site(cluster))


def _check_all(site: Site) -> None:
    _check_refusals(site)
    _check_what_is_right(site)
    _check_a_root_that_is_not_mine(site)
    _check_inside_submit(site)
    _check_without_accounting(site)


def _check_refusals(site: Site) -> None:
    assert len(WRONG) >= 30
    problems = []
    for number, (name, (spec, key, words)) in enumerate(WRONG.items()):
        code, report, _ = site.check(f"wrong{number}", spec)
        errors = [one for one in report["findings"] if one["severity"] == "error"]
        told = [f"{one['message']} {one['hint']}" for one in errors]
        keys = {one["key"] or "" for one in errors}
        if code not in (2, 3) or keys != {key} or not any(words in each for each in told):
            problems.append(f"{name}: {code}, {report['findings']}")
    assert not problems, "\n".join(problems)
    assert site.jobs() == ""


def _check_what_is_right(site: Site) -> None:
    assert len(RIGHT) >= 10
    problems = []
    for number, (name, spec) in enumerate(RIGHT.items()):
        code, report, _ = site.check(f"right{number}", spec)
        said = [one["message"] for one in report["findings"]]
        waits = name in WAITING and len(said) == 1 and "cannot tell when it would start" in said[0]
        starts = not said and report["expected_start"] is not None
        if code or report["skipped"] or not (waits if name in WAITING else starts):
            problems.append(f"{name}: {code}, {report}")
    assert not problems, "\n".join(problems)
    assert site.jobs() == ""


def _check_a_root_that_is_not_mine(site: Site) -> None:
    site.bench.spec("elsewhere", SPEC)
    done = site.bench.hpcrun("check", "elsewhere.yaml", "--root", "/etc/hpcrun", check=False)
    assert done.returncode == 2, done.stderr
    assert "error: root: /etc cannot be written by you" in done.stdout


def _check_inside_submit(site: Site) -> None:
    site.bench.spec("inside", _spec(partition="mian", qos="norml"))
    done = site.bench.hpcrun("submit", "inside.yaml", check=False)
    assert done.returncode == 3, done.stderr
    assert "resources.partition (inside.yaml:" in done.stderr
    assert "resources.qos (inside.yaml:" in done.stderr
    assert "--no-check" in done.stderr
    assert site.jobs() == ""
    assert not (site.bench.root / "inside").exists()
    done = site.bench.hpcrun("submit", "inside.yaml", "--no-check", check=False)
    assert done.returncode == 3, done.stderr
    assert "Slurm refused the job: " in done.stderr


def _check_without_accounting(site: Site) -> None:
    """slurmctld goes on without slurmdbd."""
    site.cluster.stop_database_daemon()
    code, report, _ = site.check("without", _spec(partition="mian", qos="norml"))
    assert code == 3
    assert [one["key"] for one in report["findings"]] == ["resources.partition"]
    assert any("accounts, QOS and their limits are not checked" in one for one in report["skipped"])
