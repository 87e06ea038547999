"""How attempts end on a real Slurm, and what they leave behind: nothing but their record."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from hpcrun.slurm import steps
from tests.cluster.workbench import Workbench
from tests.support.waiting import until
from tests.testbed import Cluster

RANK = """
import json, os, sys, time
names = [
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR",
    "MASTER_PORT", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "PATH", "HPCRUN_SCRATCH",
    "CUDA_VISIBLE_DEVICES",
]
print(json.dumps({name: os.environ.get(name) for name in names}), flush=True)
time.sleep(float(sys.argv[1]))
"""
# Fails on some nodes as if an environment were not installed there.
MISSING = """
import os
if os.environ["SLURMD_NODENAME"] in os.environ["BAD_NODES"].split(","):
    import wandbb
"""
TWO_BY_TWO = {"nodes": 2, "ntasks_per_node": 2, "time": "00:05:00", "mem": 500}


@pytest.fixture
def bench(slurm: Cluster) -> Workbench:
    bench = Workbench(slurm, "ends")
    bench.write("rank.py", RANK)
    return bench


def start(bench: Workbench, name: str, seconds: float, **more: Any) -> None:
    """Submit ranks that say who they are and then wait."""
    entry = ["python", "rank.py", str(seconds)]
    once = {"requeue": False}
    spec = {"cluster": "bed", "entry": entry, "resources": TWO_BY_TWO, "recovery": once, **more}
    bench.hpcrun("submit", bench.spec(name, spec), "--new")


def said(bench: Workbench, name: str, run: int = 0) -> dict[int, dict[str, str]]:
    """What each rank printed, once all four have."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        lines = bench.hpcrun("logs", f"{name}/{run}", "--json", check=False).stdout.splitlines()
        told = [json.loads(line) for line in lines]
        found = {
            line["rank"]: json.loads(line["line"])
            for line in told
            if line["rank"] is not None and line["line"].startswith("{")
        }
        if len(found) == 4:
            return found
        time.sleep(0.3)
    pytest.fail(f"not all ranks spoke: {bench.explain(name)}")


def wait_until_over(bench: Workbench, name: str, seconds: float = 60) -> dict[str, Any]:
    """The run's status once it is neither queued nor running."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        run = bench.status(name)[-1]
        if run["state"] not in ("pending", "running"):
            return run
        time.sleep(0.3)
    pytest.fail(f"{name} does not end: {bench.explain(name)}")


def leftovers(cluster: Cluster) -> list[str]:
    """The user's processes and hpcrun's directories on the nodes."""
    script = (
        f"find /proc -maxdepth 1 -regex '/proc/[0-9]+' -uid {cluster.uid} -printf 'process %f\\n';"
        "ls -d /tmp/hpcrun-* 2>/dev/null; true"
    )
    return [
        f"{node}: {line}"
        for node in filter(cluster.is_on, cluster.nodes)
        for line in cluster.on(node, ["sh", "-c", script]).stdout.splitlines()
    ]


def wait_until_clean(cluster: Cluster, seconds: float = 30) -> None:
    """Wait until no node has anything left of a job."""
    deadline = time.monotonic() + seconds
    while (found := leftovers(cluster)) and time.monotonic() < deadline:
        time.sleep(0.3)
    assert found == []


def kill_rank(cluster: Cluster, node: str, rank: int) -> None:
    """SIGKILL the worker of a rank and what it started."""
    script = (
        "for p in /proc/[0-9]*; do "
        f"tr '\\0' '\\n' <$p/environ 2>/dev/null | grep -qx 'SLURM_PROCID={rank}' && "
        "tr '\\0' ' ' <$p/cmdline | grep -q -e '[h]pcrun.run.worker' && kill -9 ${p#/proc/}; "
        "done; true"
    )
    cluster.on(node, ["sh", "-c", script])


def test_ranks_know_their_place_and_meet_on_the_fast_network(bench: Workbench) -> None:
    start(bench, "place", 1)
    ranks = said(bench, "place")
    done = wait_until_over(bench, "place")
    assert done["state"] == "completed"
    assert [ranks[rank]["NODE_RANK"] for rank in range(4)] == ["0", "0", "1", "1"]
    assert [ranks[rank]["LOCAL_RANK"] for rank in range(4)] == ["0", "1", "0", "1"]
    assert {ranks[rank]["WORLD_SIZE"] for rank in range(4)} == {"4"}
    assert {ranks[rank]["LOCAL_WORLD_SIZE"] for rank in range(4)} == {"2"}
    assert {ranks[rank]["GLOO_SOCKET_IFNAME"] for rank in range(4)} == {"ib0"}
    assert {ranks[rank]["NCCL_SOCKET_IFNAME"] for rank in range(4)} == {"ib0"}
    fabric = bench.cluster.on(done["nodes"][0], ["ip", "-4", "-o", "addr", "show", "ib0"]).stdout
    assert f" {ranks[0]['MASTER_ADDR']}/" in fabric
    assert len({ranks[rank]["MASTER_ADDR"] for rank in range(4)}) == 1
    low = int(
        bench.cluster.on(
            done["nodes"][0], ["cat", "/proc/sys/net/ipv4/ip_local_port_range"]
        ).stdout.split()[0]
    )
    assert 1024 < int(ranks[0]["MASTER_PORT"]) < low
    assert ranks[0]["PATH"].startswith(str(Path(bench.cluster.python).parent))
    wait_until_clean(bench.cluster)


def _submit_missing(bench: Workbench, name: str, bad: str) -> None:
    bench.write("missing.py", MISSING)
    variables = {"variables": {"BAD_NODES": bad}}
    resources = {**TWO_BY_TWO, "ntasks_per_node": 1}
    start(
        *(bench, name, 0),
        **{"entry": "missing.py", "resources": resources, "environment": variables},
        recovery={},
    )


@pytest.mark.usually("22.05")
def test_an_error_that_all_nodes_have_is_not_tried_again(bench: Workbench) -> None:
    _submit_missing(bench, "missing", "n1,n2,n3,n4")
    run = wait_until_over(bench, "missing")
    assert (run["state"], run["attempt"]) == ("failed", 1)
    assert sorted(run["cause"]["seen_on"]) == sorted(run["nodes"])
    assert "stopped: not tried again, because a module is missing" in run["reason"]
    wait_until_clean(bench.cluster)


@pytest.mark.usually
def test_an_error_that_one_node_has_is_tried_on_others(bench: Workbench) -> None:
    _submit_missing(bench, "missing-there", "n1")
    until(lambda: bench.status("missing-there")[-1]["over"], "the end", 300)
    run = bench.status("missing-there")[-1]
    assert (run["state"], run["attempt"]) == ("completed", 2)
    assert "n1" not in run["nodes"]
    told = bench.hpcrun("why", "missing-there").stdout
    assert "hpcrun requeued it, excluding n1" in told


@pytest.mark.usually("22.05")
def test_one_rank_for_each_gpu_and_each_sees_all_of_its_node(bench: Workbench) -> None:
    """The GPUs are device nodes without a GPU behind them; Slurm counts them as real ones."""
    gpus = {"nodes": 2, "gpus_per_node": 2, "time": "00:05:00", "mem": 500}
    start(bench, "gpus", 1, resources=gpus)
    ranks = said(bench, "gpus")
    assert wait_until_over(bench, "gpus")["state"] == "completed"
    assert {ranks[rank]["CUDA_VISIBLE_DEVICES"] for rank in range(4)} == {"0,1"}
    assert [ranks[rank]["LOCAL_RANK"] for rank in range(4)] == ["0", "1", "0", "1"]


@pytest.mark.usually("24.11")
def test_jobs_that_share_their_nodes_have_ports_of_their_own(bench: Workbench) -> None:
    pair = {"resources": {**TWO_BY_TWO, "sbatch": {"nodelist": "n1,n2"}}}
    grid = {"sweep": {"grid": {"environment.variables.WHICH": ["one", "two"]}}}
    start(bench, "ports", 40, environment={"variables": {"WHICH": "none"}}, **pair, **grid)
    first, second = said(bench, "ports", 0), said(bench, "ports", 1)
    states = bench.status("ports")
    assert [run["state"] for run in states] == ["running", "running"]
    assert states[0]["nodes"] == states[1]["nodes"] == ["n1", "n2"]
    assert first[0]["MASTER_PORT"] != second[0]["MASTER_PORT"]
    assert first[0]["HPCRUN_SCRATCH"] != second[0]["HPCRUN_SCRATCH"]


def test_a_killed_rank_ends_the_run_at_once_and_is_named(bench: Workbench) -> None:
    start(bench, "killed", 300)
    said(bench, "killed")
    nodes = bench.status("killed")[-1]["nodes"]
    began = time.monotonic()
    kill_rank(bench.cluster, nodes[1], 3)
    done = wait_until_over(bench, "killed")
    assert time.monotonic() - began < 20
    assert done["state"] == "failed"
    assert (done["cause"]["rank"], done["cause"]["node"]) == (3, nodes[1])
    assert done["cause"]["signal"] == "SIGKILL"
    wait_until_clean(bench.cluster)


@pytest.mark.usually("24.11")
def test_scancel_ends_the_attempt_on_record_and_leaves_nothing(bench: Workbench) -> None:
    start(bench, "scancelled", 300)
    said(bench, "scancelled")
    bench.cluster.run(["scancel", str(bench.status("scancelled")[-1]["job_id"])])
    done = wait_until_over(bench, "scancelled")
    assert done["state"] == "cancelled"
    ledger = bench.root / "scancelled" / "runs" / "0" / "ledger.jsonl"

    def events() -> list[str]:
        found = [json.loads(line)["event"] for line in ledger.read_text().splitlines()]
        # That of a node whose clock is wrong says so.
        return [event for event in found if event != "health"]

    until(lambda: events()[-1] == "decided", "the end on record", 20)
    assert events() == ["attempt_started", "workers_started", "attempt_ended", "decided"]
    wait_until_clean(bench.cluster)


def test_cancel_by_hpcrun_stays_cancelled(bench: Workbench) -> None:
    start(bench, "cancelled", 300)
    said(bench, "cancelled")
    bench.hpcrun("cancel", "cancelled", "--yes")
    assert wait_until_over(bench, "cancelled")["state"] == "cancelled"
    wait_until_clean(bench.cluster)
    assert bench.status("cancelled")[-1]["state"] == "cancelled"


def test_a_secret_is_in_the_rank_and_nowhere_else(bench: Workbench) -> None:
    secret = bench.write("secrets", "MY_TOKEN='correct horse'\n")
    secret.chmod(0o600)
    bench.write("tell.py", "import os; print(len(os.environ['MY_TOKEN']))\n")
    spec = {
        "cluster": "bed",
        "entry": ["python", "tell.py"],
        "environment": {"secrets_file": "secrets"},
        "resources": {"nodes": 1, "time": "00:02:00", "mem": 500},
    }
    done = bench.hpcrun("submit", bench.spec("secret", spec), "--wait", check=False)
    assert done.returncode == 0, bench.explain("secret")
    assert "13" in bench.hpcrun("logs", "secret").stdout.split()
    found = bench.cluster.run(
        ["grep", "-rl", "correct horse", str(bench.root / "secret")], check=False
    )
    assert found.stdout == ""


def test_srun_tells_of_a_killed_task_in_words_that_we_read(slurm: Cluster) -> None:
    done = slurm.run(
        ["srun", "-N1", "-n2", "--mem=100", "sh", "-c", "test $SLURM_PROCID = 0 || kill -9 $$"],
        check=False,
    )
    ends = [end for line in done.stderr.splitlines() if (end := steps.parse_task_end(line))]
    assert [(end.ranks, end.what, end.exit_code) for end in ends] == [((1,), "Killed", None)]


STOPPING = """
trap 'echo saved; exit 0' USR1
echo ready
while true; do sleep 0.1; done
"""


@pytest.mark.usually("22.05", "24.11")
def test_a_signal_by_hand_has_scripts_save_by_their_own(bench: Workbench) -> None:
    bench.write("stopping.sh", STOPPING)
    spec = {
        "cluster": "bed",
        "entry": ["bash", "stopping.sh"],
        "resources": TWO_BY_TWO,
        "recovery": {"stop_signal": "SIGUSR1"},
    }
    bench.hpcrun("submit", bench.spec("stopping", spec), "--new")

    def lines(word: str) -> int:
        told = bench.hpcrun("logs", "stopping", "--json", check=False).stdout.splitlines()
        return [json.loads(line)["line"] for line in told].count(word)

    until(lambda: lines("ready") == 4, "four ranks at work", 90, 0.5)
    job = bench.status("stopping")[-1]["job_id"]
    bench.cluster.run(["scancel", "--signal=USR2", job])
    until(lambda: bench.status("stopping")[-1]["state"] == "requeued", "a requeue", 60, 0.5)
    assert lines("saved") == 4, bench.explain("stopping")
    (attempt,) = json.loads(bench.hpcrun("why", "stopping", "--json").stdout)[-1]["attempts"]
    assert attempt["cause"]["message"] == "asked to stop by SIGUSR2"
    bench.hpcrun("cancel", "stopping", "--yes")
