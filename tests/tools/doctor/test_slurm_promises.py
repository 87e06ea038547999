"""Each promise, judged from the answers of two Slurms, as they are and with a setting changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hpcrun.site.slurm_site import SlurmSite, make
from hpcrun.slurm import site_queries
from hpcrun.tools.doctor import slurm_promises
from hpcrun.tools.doctor.promise import ADMINS, FAILS, LESS, UNKNOWN, WORKS, YOU, Judgement

RECORDED = Path(__file__).parents[2] / "site" / "recorded"
PROFILE: dict[str, Any] = {"resources": {"partition": None}, "limits": {"max_array_size": 1001}}


def site(version: str = "24.11", *, accounting: bool = True, **settings: str) -> SlurmSite:
    """The recorded site, with some settings of slurm.conf changed."""
    text = (RECORDED / f"controller-{version}.txt").read_text()
    told = site_queries._answers(text, site_queries._CONTROLLER)
    rows: dict[str, list[dict[str, str]]] = {"user": [], "associations": [], "qos": []}
    missing = "" if accounting else "sacctmgr: no answer"
    found = make(told, rows if accounting else None, missing, "ann", frozenset())
    return dataclasses.replace(found, settings={**found.settings, **settings})


def judged(name: str, there: SlurmSite, profile: Mapping[str, Any] = PROFILE) -> Judgement:
    every = {one.name: one.judgement for one in slurm_promises.judge(there, profile)}
    return every[name]


@pytest.mark.parametrize("version", ["22.05", "24.11"])
def test_the_recorded_sites(version: str) -> None:
    """All but what these beds really lack holds: their GPUs have no type, their grace is short."""
    every = slurm_promises.judge(site(version), PROFILE)
    assert len({one.name for one in every}) == len(every) == len([*slurm_promises.SLURM_PROMISES])
    others = {one.name: one.judgement.verdict for one in every if one.judgement.verdict != WORKS}
    assert others == {"grace": LESS, "GPUs": LESS}
    for one in every:
        assert one.promise
        assert one.judgement.found
        if one.judgement.verdict in (LESS, FAILS):
            assert one.judgement.change
            assert one.judgement.by in (YOU, ADMINS)


# Promise, settings that differ, verdict, words of what is found, words of what to change.
CASES: list[tuple[str, dict[str, str], str, str, str]] = [
    ("Slurm", {"SLURM_VERSION": "19.05.2"}, FAILS, "--overlap", "22.05"),
    ("Slurm", {"SLURM_VERSION": "21.08.8"}, LESS, "tested with 22.05", "22.05"),
    ("Slurm", {"SLURM_VERSION": "25.05.1"}, WORKS, "25.05.1, and nodes with 24.11.5", ""),
    ("Slurm", {"SLURM_VERSION": ""}, UNKNOWN, "does not tell its version", ""),
    ("requeue", {"JobRequeue": "0"}, WORKS, "ask for it (--requeue)", ""),
    ("requeue", {"JobRequeue": ""}, UNKNOWN, "does not tell", ""),
    ("exit codes", {"RequeueExit": "1-5,200"}, WORKS, "RequeueExit=1-5,200: ", ""),
    ("exit codes", {"RequeueExitHold": "75"}, WORKS, "end with another code", ""),
    (
        "exit codes",
        {"RequeueExit": "1-200", "RequeueExitHold": "201-255"},
        FAILS,
        "for ever",
        "out",
    ),
    ("exit codes", {"RequeueExit": "any"}, UNKNOWN, "not a list", ""),
    ("requeue delay", {"AuthInfo": "(null)"}, WORKS, "waits 2 min at least", "cred_expire=30"),
    ("requeue delay", {"AuthInfo": "cred_expire=600"}, LESS, "waits 10 min", "cred_expire=30"),
    ("preemption", {"PreemptType": "preempt/none"}, WORKS, "nobody is preempted", ""),
    ("grace", {"PreemptType": "preempt/none"}, WORKS, "nobody is preempted", ""),
    ("warning", {"PreemptParameters": "send_user_signal"}, WORKS, "TERM alone", ""),
    ("kill wait", {"KillWait": "2 sec"}, LESS, "KillWait=2 s", "KillWait=30"),
    ("kill wait", {"KillWait": ""}, UNKNOWN, "does not tell", ""),
    ("dead node", {"SlurmdTimeout": "300 sec"}, WORKS, "SlurmdTimeout=300 s", ""),
    ("dead node", {"SlurmdTimeout": ""}, UNKNOWN, "does not tell", ""),
    ("processes", {"ProctrackType": "proctrack/pgid"}, LESS, "outlive", "proctrack/cgroup"),
    ("memory", {"ConstrainRAMSpace": "no"}, LESS, "can end others", "ConstrainRAMSpace=yes"),
    (
        "memory",
        {"ConstrainRAMSpace": "no", "SelectTypeParameters": "CR_CORE"},
        LESS,
        "no resource here",
        "ConstrainRAMSpace=yes",
    ),
    ("arrays", {"MaxArraySize": "101"}, WORKS, "up to 101 runs", ""),
    (
        "arrays",
        {"MaxArraySize": "20001", "SchedulerParameters": "bf_continue,max_array_tasks=12000"},
        WORKS,
        "up to 12000 runs (MaxArraySize, max_array_tasks): submit makes several",
        "",
    ),
    ("arrays", {"MaxArraySize": ""}, UNKNOWN, "does not tell", ""),
    ("queue", {"MaxJobCount": ""}, UNKNOWN, "no limit", ""),
    ("plugins", {"JobSubmitPlugins": "lua"}, UNKNOWN, "JobSubmitPlugins=lua", "hpcrun check"),
    ("topology", {"TopologyPlugin": "topology/tree"}, WORKS, "topology/tree", ""),
]


@pytest.mark.parametrize(("name", "settings", "verdict", "found", "change"), CASES)
def test_a_setting(
    name: str, settings: dict[str, str], verdict: str, found: str, change: str
) -> None:
    judgement = judged(name, site(**settings))
    assert judgement.verdict == verdict, judgement
    assert found in judgement.found
    assert change in judgement.change


def test_a_dead_node_costs_more_before_24_11() -> None:
    judgement = judged("dead node", site("22.05", SlurmdTimeout="300 sec"))
    assert judgement.verdict == LESS
    assert "spare_nodes: 1" in judgement.change


def test_without_slurmdbd() -> None:
    judgement = judged("accounting", site(accounting=False))
    assert judgement.verdict == LESS
    assert judgement.found.startswith("sacctmgr: no answer: how jobs ended is known from")
    judgement = judged("accounting", site(accounting=False, MinJobAge="5 sec"))
    assert "forgets jobs after 5 s (MinJobAge)" in judgement.found


def _in(partition: str) -> dict[str, Any]:
    return {**PROFILE, "resources": {"partition": partition}}


def test_preemption_is_that_of_the_profiles_partition() -> None:
    judgement = judged("preemption", site(), _in("cancel"))
    assert judgement.verdict == WORKS
    assert "CANCEL in cancel: hpcrun puts a cancelled job back itself" in judgement.found
    judgement = judged("grace", site(), _in("abrupt"))
    assert judgement.verdict == LESS
    assert "no time to save" in judgement.found
    suspended = dataclasses.replace(site().partitions["main"], preempt_mode="GANG,SUSPEND")
    there = dataclasses.replace(site(), partitions={"main": suspended})
    assert judged("preemption", there).verdict == LESS
    long = dataclasses.replace(site().partitions["main"], grace_seconds=120)
    there = dataclasses.replace(site(), partitions={"main": long})
    assert judged("grace", there).verdict == WORKS


def test_nodes_that_are_out() -> None:
    there = site()
    down = dataclasses.replace(there.nodes["n2"], state=frozenset({"DOWN"}), reason="dimm")
    judgement = judged("nodes", dataclasses.replace(there, nodes={**there.nodes, "n2": down}))
    assert judgement.verdict == LESS
    assert judgement.found == "1 of 4 nodes is out of service: n2 (n2: dimm)"
    assert judged("nodes", dataclasses.replace(there, nodes={})).verdict == FAILS


def test_gpus_and_their_types() -> None:
    there = site()
    typed = {
        name: dataclasses.replace(node, gpus={"a100": 4}) for name, node in there.nodes.items()
    }
    assert judged("GPUs", dataclasses.replace(there, nodes=typed)) == Judgement(WORKS, "16 a100")
    none = {name: dataclasses.replace(node, gpus={}) for name, node in there.nodes.items()}
    without = dataclasses.replace(there, nodes=none)
    assert "knows no GPUs" in judged("GPUs", without).found
    profile = {**PROFILE, "resources": {"gpu_request": "none", "node_has_gpus": 8}}
    whole = judged("GPUs", without, profile)
    assert whole.verdict == WORKS
    assert whole.found.startswith("8 on each node, by the profile")
    assert judged("GPUs", there, profile).verdict == LESS


def test_a_large_cluster_without_switches() -> None:
    there = site()
    one = there.nodes["n1"]
    many = {f"n{n}": dataclasses.replace(one, name=f"n{n}") for n in range(1, 65)}
    judgement = judged("topology", dataclasses.replace(there, nodes=many))
    assert judgement.verdict == LESS
    assert "topology/tree" in judgement.change
