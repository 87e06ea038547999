"""Runs of several roles on a real Slurm: ranks are killed, a node is lost, and the run goes on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hpcrun.state import ledger
from hpcrun.state.layout import ExperimentPaths
from tests.cluster.test_ends import wait_until_clean
from tests.cluster.workbench import Workbench
from tests.support.doc_blocks import blocks
from tests.support.waiting import until
from tests.testbed import Cluster

pytestmark = pytest.mark.timeout(400)

RESOURCES = {"time": "00:10:00", "mem": 500, "sbatch": {"exclusive": True}}


def _events(bench: Workbench, name: str, attempt: int = 1) -> list[dict[str, Any]]:
    paths = ExperimentPaths(bench.root / name).run(0)
    found = ledger.read(paths) if paths.ledger.exists() else []
    return next((one.roles for one in found if one.number == attempt), [])


def _told(events: list[dict[str, Any]]) -> list[tuple[str, str, list[int]]]:
    return [(one["role"], one["what"], one["ranks"]) for one in events]


def _wait(bench: Workbench, name: str, what: str, holds: Any, seconds: float = 120) -> None:
    try:
        until(holds, what, seconds, pause=0.5)
    except TimeoutError as error:
        raise AssertionError(bench.explain(name)) from error


def _kill(cluster: Cluster, node: str, rank: int) -> None:
    """SIGKILL the worker of a rank that has a step of its own; its program lives on for a while."""
    script = (
        "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline 2>/dev/null | "
        f"grep -q -e '[h]pcrun.run.worker .* --rank {rank} ' && kill -9 ${{p#/proc/}}; done; true"
    )
    cluster.on(node, ["sh", "-c", script])


def _step(bench: Workbench, name: str, attempt: int = 1) -> int:
    lines = bench.metrics(name, 0, attempt)
    return int(lines[-1]["step"]) if lines else 0


@pytest.mark.usually("24.11")
def test_a_parameter_server_loses_a_worker_a_server_and_a_node(slurm: Cluster) -> None:
    bench = Workbench(slurm, "parameters")
    bench.copy_job("parameter_server.py")
    spec = {
        "cluster": "bed",
        "entry": "parameter_server.py",
        "config": {"size": 16, "steps": 1500, "pause": 0.1},
        "roles": {
            "worker": {"args": ["worker"], "nodes": 2, "ntasks_per_node": 2, "restart": "rank"},
            "server": {
                **{"args": ["server"], "ntasks": 2, "nodes": 1, "first_node": 2},
                "restart": "rank",
            },
        },
        "resources": RESOURCES,
    }
    name = "parameters"
    bench.hpcrun("submit", bench.spec(name, spec))
    _wait(bench, name, "the first steps", lambda: _step(bench, name) > 50)
    (status,) = bench.status(name)
    nodes = status["nodes"]
    assert len(nodes) == 3
    _kill(slurm, nodes[1], 3)
    _wait(bench, name, "the worker", lambda: len(_events(bench, name)) == 1)
    _kill(slurm, nodes[2], 5)
    _wait(bench, name, "the server", lambda: len(_events(bench, name)) == 2)
    reached = _step(bench, name)
    _wait(bench, name, "more steps", lambda: _step(bench, name) > reached + 50)
    slurm.power_off(nodes[2])
    _wait(bench, name, "the move", lambda: len(_events(bench, name)) == 3)
    events = _events(bench, name)
    assert _told(events) == [
        ("worker", "restarted", [3]),
        ("server", "restarted", [5]),
        ("server", "moved", [4, 5]),
    ]
    assert events[2]["node"] in nodes[:2]
    (status,) = bench.status(name)
    assert status["roles"]["server"] == {"ranks": "4-5", "restarted": 1, "moved": 1, "ignored": 0}
    reached = _step(bench, name)
    _wait(bench, name, "steps without it", lambda: _step(bench, name) > reached + 50)
    _wait(bench, name, "the end", lambda: bench.status(name)[0]["state"] == "completed", 200)
    paths = ExperimentPaths(bench.root / name).run(0)
    (attempt,) = ledger.read(paths)
    assert attempt.outcome == "completed"
    assert bench.metrics(name, 0)[-1]["loss"] < 0.01

    logs = bench.hpcrun("logs", name, "--role", "server", "--no-fold").stdout
    served = [line for line in logs.splitlines() if "updates so far" in line]
    # The first of them was started twice, the other one three times.
    assert len(served) == 5, logs
    second = bench.hpcrun("logs", name, "--role", "server", "--rank", "1", "--raw").stdout
    assert second.count("server 1:") == 3
    assert "step " in bench.hpcrun("logs", name, "--role", "worker").stdout
    refused = bench.hpcrun("logs", name, "--role", "judge", check=False)
    assert (refused.returncode, "parameters/0 has worker, server" in refused.stderr) == (2, True)
    why = bench.hpcrun("why", name).stdout
    assert "Role server: server 1 ended by SIGKILL; rank 5 started anew on" in why
    assert f"Role server: node {nodes[2]} was lost; ranks 4-5 moved to" in why
    cost = json.loads(bench.hpcrun("status", name, "--cost", "--json").stdout)
    (total,) = cost["experiments"]
    assert total["roles"]["worker"] == pytest.approx(2 * total["roles"]["server"], rel=0.05)
    shown = bench.hpcrun("show", f"{name}/0").stdout
    assert "server: ranks 4-5 on node 2; restart: rank; at_end: stop" in shown
    slurm.boot(nodes[2])
    wait_until_clean(slurm)


@pytest.mark.usually
def test_an_evaluator_follows_and_everything_is_preempted(slurm24: Cluster) -> None:
    """The programs of docs/roles.md: killed alone, requeued together, and all steps judged once."""
    bench = Workbench(slurm24, "followed")
    programs = {one.file: one.text for one in blocks("docs/roles.md") if one.file}
    for name in ("train.py", "evaluate.py"):
        slow = "optimizer.step(); __import__('time').sleep(0.1)"
        bench.write(name, programs[name].replace("optimizer.step()", slow))
    spec = {
        "cluster": "bed",
        "roles": {
            "trainer": {"entry": "train.py", "config": {"steps": 400, "every": 20}},
            "evaluator": {
                **{"entry": "evaluate.py", "ntasks": 1, "first_node": 1},
                **{"restart": "rank", "at_end": "finish"},
            },
        },
        "progress": {"pattern": r"step (?P<step>\d+) loss (?P<loss>\S+)"},
        "resources": {**RESOURCES, "mem": 1500},
    }
    name = "followed"
    bench.hpcrun("submit", bench.spec(name, spec))
    results = bench.root / name / "runs" / "0" / "work" / "evaluated.jsonl"
    _wait(bench, name, "a step judged", lambda: results.exists() and results.read_text())
    (status,) = bench.status(name)
    _kill(slurm24, status["nodes"][1], 1)
    _wait(bench, name, "the evaluator", lambda: _events(bench, name))
    slurm24.run(["scontrol", "requeue", str(status["job_id"])])
    _wait(bench, name, "the end", lambda: bench.status(name)[0]["state"] == "completed", 240)
    judged = [json.loads(line)["step"] for line in results.read_text().splitlines()]
    assert judged == list(range(20, 401, 20))
    assert _told(_events(bench, name)) == [("evaluator", "restarted", [1])]
    attempts = ledger.read(ExperimentPaths(bench.root / name).run(0))
    assert [one.outcome for one in attempts] == ["stopped", "completed"]
    wait_until_clean(slurm24)


@pytest.mark.usually("24.11")
def test_servers_with_nodes_of_another_partition(slurm: Cluster) -> None:
    """A heterogeneous job: a killed server, a command beside one, a requeue, a lost part."""
    bench = Workbench(slurm, "divided")
    bench.copy_job("parameter_server.py")
    spec = {
        "cluster": "bed",
        "entry": "parameter_server.py",
        "config": {"size": 16, "steps": 1500, "pause": 0.1},
        "roles": {
            "worker": {"args": ["worker"], "nodes": 2, "restart": "rank"},
            "server": {
                **{"args": ["server"], "ntasks": 2, "restart": "rank"},
                "resources": {"partition": "abrupt", "mem": 400},
            },
        },
        "resources": {**RESOURCES, "partition": "main"},
    }
    name = "divided"
    path = bench.spec(name, spec)
    (checked,) = json.loads(bench.hpcrun("check", path, "--json").stdout)
    assert checked["findings"] == []
    bench.hpcrun("submit", path)
    _wait(bench, name, "the first steps", lambda: _step(bench, name) > 50)
    (status,) = bench.status(name)
    nodes, job = status["nodes"], str(status["job_id"])
    parts = slurm.run(["squeue", "--noheader", f"--jobs={job}", "--format=%i %P"]).stdout
    assert {*parts.split("\n")} == {f"{job}+0 main", f"{job}+1 abrupt", ""}
    assert len({*nodes}) == 3

    beside = bench.hpcrun("exec", f"{name}/0", "--rank", "3", "--", "printenv", "SLURMD_NODENAME")
    assert beside.stdout.strip() == nodes[2]
    _kill(slurm, nodes[2], 2)
    _wait(bench, name, "the server", lambda: len(_events(bench, name)) == 1)
    assert _told(_events(bench, name)) == [("server", "restarted", [2])]
    reached = _step(bench, name)
    _wait(bench, name, "more steps", lambda: _step(bench, name) > reached + 50)

    slurm.run(["scontrol", "requeue", job])
    paths = ExperimentPaths(bench.root / name).run(0)
    _wait(bench, name, "another start", lambda: len(ledger.read(paths)) == 2)
    _wait(bench, name, "its steps", lambda: _step(bench, name, 2) > reached + 50)
    lost = bench.status(name)[0]["nodes"][2]
    slurm.power_off(lost)
    _wait(bench, name, "a start on another node", lambda: len(ledger.read(paths)) == 3, 200)
    _wait(bench, name, "the end", lambda: bench.status(name)[0]["state"] == "completed", 240)
    attempts = ledger.read(paths)
    assert [one.outcome for one in attempts] == ["stopped", "stopped", "completed"]
    assert attempts[1].kind == "node_failure", attempts[1].ended
    assert attempts[2].nodes[2] != lost
    assert {one.job_id for one in attempts} == {job}
    assert bench.metrics(name, 0, 3)[-1]["loss"] < 0.01
    cost = json.loads(bench.hpcrun("status", name, "--cost", "--json").stdout)
    (total,) = cost["experiments"]
    # Two workers and two servers, with a processor each.
    assert total["roles"]["worker"] == pytest.approx(total["roles"]["server"], rel=0.02)
    slurm.boot(lost)
    wait_until_clean(slurm)
