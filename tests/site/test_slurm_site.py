"""The site, read from answers that two Slurms gave (``recorded``), and from made ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hpcrun.errors import ClusterUnreachable
from hpcrun.site import slurm_records, slurm_site
from hpcrun.site.slurm_site import SlurmNode
from hpcrun.slurm import client, site_queries

RECORDED = Path(__file__).parent / "recorded"


@pytest.fixture(params=["22.05", "24.11"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def _answering(monkeypatch: pytest.MonkeyPatch, answers: dict[str, str | Exception]) -> None:
    def command(argv: Sequence[str], **_options: Any) -> str:
        answer = answers[argv[0]]
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(client, "command", command)


def _recorded(version: str) -> dict[str, str | Exception]:
    return {
        program: (RECORDED / f"{what}-{version}.txt").read_text()
        for program, what in (("scontrol", "controller"), ("sacctmgr", "accounting"))
    }


def test_a_site_as_a_real_slurm_describes_it(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    _answering(monkeypatch, _recorded(version))
    site = slurm_site.read()
    assert (site.name, site.version.rpartition(".")[0]) == ("testbed", version)
    assert [*site.partitions] == ["main", "cancel", "abrupt", "abrupt-cancel", "high"]
    main = site.partitions["main"]
    assert site.default_partition() == main
    assert (main.state, main.max_time) == ("UP", 86400)
    assert (main.max_nodes, main.allow_accounts, main.allow_groups) == (None, (), ())
    assert [node.name for node in site.nodes_of(main)] == ["n1", "n2", "n3", "n4"]
    node = site.nodes["n1"]
    assert (node.cpus, node.memory, node.gpus) == (8, 16000, {"": 2})
    assert (node.state, node.is_out, node.gpus_of(None)) == ({"IDLE"}, False, 2)
    assert (site.reservations, site.licenses) == ({}, {})
    assert (site.number("MaxArraySize"), site.number("KillWait")) == (1001, 10)
    assert not site.enforces("associations")
    assert site.default_account == "research"
    assert site.associations is not None
    assert [(one.account, one.qos) for one in site.associations] == [("research", ("normal",))]
    assert site.qos is not None
    assert [*site.qos] == ["normal"]
    assert site.without_accounting == ""


def test_without_slurmdbd_the_rest_is_known(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    failed = client.CommandFailed("sacctmgr: error: Unable to connect")
    _answering(monkeypatch, {**_recorded(version), "sacctmgr": failed})
    site = slurm_site.read()
    assert site.associations is site.qos is None
    assert "Unable to connect" in site.without_accounting
    assert len(site.nodes) == 4


def test_a_line_of_slurm_conf_that_slurm_leaves_out_hides_nothing(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """Each command of Slurm says it, and answers."""
    answers = _recorded(version)
    told = "sacctmgr: error: DefMemPerCPU ignored, since it's mutually exclusive with DefMemPerNode"
    _answering(monkeypatch, {**answers, "sacctmgr": f"{answers['sacctmgr']}{told}\n"})
    site = slurm_site.read()
    assert site.without_accounting == ""
    assert site.default_account == "research"
    lost = "sacctmgr: error: Problem talking to the database: Connection refused"
    half = "\n".join([*["sacctmgr: show"] * 4, told, lost])
    _answering(monkeypatch, {**answers, "sacctmgr": half})
    assert slurm_site.read().without_accounting == lost.removeprefix("sacctmgr: ")


@pytest.mark.parametrize(
    "said",
    [
        "sacctmgr: show\nsacctmgr: show\nsacctmgr: show\n error: no slurmdbd\n",
        "You are not running with a database plugin",
        "",
    ],
)
def test_what_sacctmgr_says_in_place_of_an_answer(
    said: str, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    _answering(monkeypatch, {**_recorded(version), "sacctmgr": said})
    site = slurm_site.read()
    assert site.associations is None
    assert site.without_accounting != ""


@pytest.mark.parametrize("said", [client.CommandFailed("Unable to contact slurm controller"), ""])
def test_a_silent_controller_is_an_error(
    said: str | Exception, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    _answering(monkeypatch, {**_recorded(version), "scontrol": said})
    with pytest.raises(ClusterUnreachable, match="scontrol"):
        slurm_site.read()


def test_what_a_site_keeps_private_is_not_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """PrivateData=nodes; the real scontrol of both versions says this."""
    denied = client.CommandFailed("slurm_load_node error: Access/permission denied")
    _answering(monkeypatch, {**_recorded(version), "scontrol": denied})
    with pytest.raises(ClusterUnreachable, match="denied") as caught:
        slurm_site.read()
    assert "PrivateData" in str(caught.value.hint)


def test_a_user_whose_name_is_no_word_is_not_asked_for() -> None:
    with pytest.raises(client.CommandFailed, match="is not the name of a user"):
        site_queries.accounting("me; delete user name=you")


def test_limits_and_lists() -> None:
    told = {
        "config": [
            "AccountingStorageType = accounting_storage/slurmdbd",
            "AccountingStorageEnforce = associations,limits,safe",
        ],
        "partition": [
            "PartitionName=gpu AllowGroups=ml,ops AllowAccounts=ALL DenyAccounts=guest"
            " AllowQos=long AllocNodes=login[1-2] Default=NO MaxNodes=4 MaxTime=2-00:00:00"
            " MinNodes=2 Nodes=g[01-03]"
            " RootOnly=NO ReqResv=YES Hidden=YES State=DRAIN MaxCPUsPerNode=64"
            " MaxMemPerNode=256000 QoS=capped PreemptMode=OFF GraceTime=30",
        ],
        "node": [
            "NodeName=g01 CPUTot=64 CPUEfctv=62 RealMemory=515000 Gres=gpu:a100:4(S:0-1),nvme:1"
            " AvailableFeatures=a100,nvlink State=IDLE+DRAIN Reason=bad dimm [root@now]",
            "NodeName=g02 CPUTot=64 RealMemory=515000 Gres=gpu:4 State=MIXED*",
            "NodeName=g03 CPUTot=x RealMemory= Gres=(null) State=DOWN+NOT_RESPONDING",
            "nonsense",
        ],
        "reservation": [
            "ReservationName=course StartTime=1700000000 EndTime=2700000000 Nodes=g[01-02]"
            " PartitionName=gpu Flags=REPLACE,SPEC_NODES Users=ann,bob Accounts=(null)",
        ],
        "licenses": ["LicenseName=matlab Total=4 Used=0 Free=4 Remote=no"],
    }
    empty = dict.fromkeys(("MaxTRES", "MinTRES", "GrpTRES", "MaxWall"), "")
    own = {**empty, "Account": "lab", "Partition": "", "QOS": "long,normal", "DefaultQOS": "normal"}
    own |= {"MaxJobs": "5", "MaxSubmitJobs": "10", "MaxWall": "1-00:00:00"}
    qos = {**empty, "Name": "long", "MaxTRES": "cpu=128,gres/gpu=8", "GrpTRES": "gres/gpu=4,mem=1T"}
    qos |= {"MaxJobsPerUser": "", "MaxSubmitJobsPerUser": "3", "MinTRES": "gres/gpu=1"}
    rows = {"user": [{"DefaultAccount": "lab"}], "associations": [own], "qos": [qos]}
    site = slurm_site.make(told, rows, "", "ann", frozenset({"ml"}))
    gpu = site.partitions["gpu"]
    assert gpu.allow_groups == ("ml", "ops")
    assert (gpu.deny_accounts, gpu.allow_qos, gpu.alloc_nodes) == (
        ("guest",),
        ("long",),
        ("login1", "login2"),
    )
    assert (gpu.max_time, gpu.max_nodes, gpu.min_nodes, gpu.state) == (172800, 4, 2, "DRAIN")
    assert (gpu.needs_reservation, gpu.is_hidden, gpu.is_root_only) == (True, True, False)
    assert (gpu.max_cpus_per_node, gpu.max_memory_per_node, gpu.qos) == (64, 256000, "capped")
    first, second, third = (site.nodes[name] for name in ("g01", "g02", "g03"))
    assert (first.gpus, first.cpus, first.features) == ({"a100": 4}, 62, {"a100", "nvlink"})
    assert (first.is_out, first.reason) == (True, "bad dimm")
    # MIXED* does not answer.
    assert (second.gpus, second.is_out, second.gpus_of("a100")) == ({"": 4}, True, 0)
    assert (third.gpus, third.is_out, third.cpus) == ({}, True, 0)
    assert site.reservations["course"].users == ("ann", "bob")
    assert site.reservations["course"].nodes == ("g01", "g02")
    assert site.licenses == {"matlab": 4}
    assert site.default_partition() is None
    assert site.enforces("associations")
    assert site.enforces("limits")
    assert not site.enforces("qos")
    assert site.associations_of("lab", "gpu")[0].limits.max_wall == 86400
    assert site.associations_of("other") == []
    assert site.qos is not None
    assert site.qos["long"].most == {"cpu": 128, "gres/gpu": 4, "mem": 1024 * 1024}
    assert site.qos["long"].least == {"gres/gpu": 1}


@pytest.mark.parametrize(
    ("text", "state", "is_out"),
    [
        ("IDLE", {"IDLE"}, False),
        ("IDLE*", {"IDLE", "NOT_RESPONDING"}, True),
        ("IDLE*+CLOUD", {"IDLE", "NOT_RESPONDING", "CLOUD"}, True),
        ("IDLE+CLOUD+POWERED_DOWN", {"IDLE", "CLOUD", "POWERED_DOWN"}, False),
        ("IDLE~", {"IDLE", "POWERED_DOWN"}, False),
        ("MIXED$", {"MIXED", "MAINT"}, True),
        ("ALLOCATED*$", {"ALLOCATED", "NOT_RESPONDING", "MAINT"}, True),
    ],
)
def test_a_mark_on_a_state_is_a_flag(text: str, state: set[str], is_out: bool) -> None:
    node = SlurmNode("n1", 1, 1.0, {}, frozenset(), slurm_records.node_state(text), "", "")
    assert (node.state, node.is_out) == (state, is_out)
