"""The test bed holds what it promises: else the other cluster tests prove nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.waiting import until
from tests.testbed import Cluster, cgroups, layout
from tests.testbed.bed import remove_dead_beds

ALL_REDUCE = """
import os, torch, torch.distributed as dist
dist.init_process_group(
    "gloo", init_method="tcp://n1-ib0:29511", world_size=2, rank=int(os.environ["SLURM_PROCID"])
)
total = torch.ones(2_000_000)
dist.all_reduce(total)
print("sum", total.sum().item())
dist.destroy_process_group()
"""


TELL_TIME = """
import os, pathlib, time
made = pathlib.Path.home() / ("made-on-" + os.environ["SLURMD_NODENAME"])
made.touch()
print(time.time() - made.stat().st_mtime, time.monotonic(), flush=True)
"""


def submit(cluster: Cluster, *options: str) -> str:
    return cluster.run(["sbatch", "--parsable", *options]).stdout.strip()


def test_four_nodes_run_a_job_of_the_ordinary_user(slurm: Cluster) -> None:
    out = slurm.run(["srun", "-N4", "sh", "-c", "echo $(hostname) $(id -un) $(id -u)"]).stdout
    assert sorted(out.splitlines()) == [
        f"{node} {slurm.user} {slurm.uid}" for node in ("n1", "n2", "n3", "n4")
    ]


def test_the_version_is_the_one_asked_for(slurm: Cluster) -> None:
    assert slurm.version in slurm.run(["srun", "srun", "--version"]).stdout


def test_accounting_knows_the_job(slurm: Cluster) -> None:
    job = submit(slurm, "-N2", "-o", "/dev/null", "--wrap", "srun true")
    assert slurm.wait_job(job) == "COMPLETED"
    until(lambda: "COMPLETED" in [row["State"] for row in slurm.sacct(job)], "in sacct", 10)
    assert slurm.sacct(job)[0]["User"] == slurm.user


def test_memory_beyond_the_request_is_killed(slurm: Cluster) -> None:
    allocate = [slurm.python, "-c", "len(bytearray(300 << 20))"]
    enough = slurm.run(["srun", "--mem=500", *allocate], check=False)
    assert enough.returncode == 0
    job = submit(
        slurm, "--mem=100", "-o", "/dev/null", "--wrap", f"srun {allocate[0]} -c '{allocate[2]}'"
    )
    slurm.wait_job(job)

    def step_state() -> str:
        rows = [row for row in slurm.sacct(job) if row["JobID"] == f"{job}.0"]
        return rows[0]["State"] if rows else "absent"

    until(lambda: step_state() == "OUT_OF_MEMORY", "OUT_OF_MEMORY", 10)


def test_local_storage_is_the_nodes_own_and_the_shared_one_is_not(slurm: Cluster) -> None:
    write = "hostname >/tmp/mine; hostname >/dev/shm/mine; hostname >$HOME/$(hostname)"
    slurm.run(["srun", "-N4", "sh", "-c", write])
    for node in slurm.nodes:
        read = ["cat", "/tmp/mine", "/dev/shm/mine", slurm.layout.home / node]
        assert slurm.on(node, [str(path) for path in read]).stdout.split() == [node] * 3
    # Programs of other tests on this host may have left something there, and no node has.
    assert "mine" not in slurm.run(["ls", "/tmp"]).stdout.split()
    assert {path.name for path in slurm.layout.home.iterdir()} >= set(slurm.nodes)


def test_the_clock_of_a_node_is_wrong_and_not_the_storages(slurm24: Cluster) -> None:
    tell = ["srun", "-N2", "-w", "n1,n2", "--label", slurm24.python, "-c", TELL_TIME]
    told = dict(line.split(": ") for line in slurm24.run(tell).stdout.splitlines())
    (ahead, began), (right, same) = (map(float, told[rank].split()) for rank in "01")
    assert (ahead, right) == (pytest.approx(30, abs=2), pytest.approx(0, abs=2))
    assert abs(began - same) < 5
    out = slurm24.layout.home / "date.out"
    job = submit(slurm24, "-w", "n1", "-o", str(out), "--wrap", "date +%s")
    assert slurm24.wait_job(job) == "COMPLETED"
    until(out.exists, "what the batch script says", 10)
    assert int(out.read_text()) - out.stat().st_mtime == pytest.approx(30, abs=5)


def test_gpus_are_given_out(slurm: Cluster) -> None:
    show = ["srun", "-N2", "--gres=gpu:2", "printenv", "CUDA_VISIBLE_DEVICES"]
    assert slurm.run(show).stdout.split() == ["0,1", "0,1"]


def test_the_user_may_not_write_the_work_tree_nor_read_secrets(slurm: Cluster) -> None:
    attempts = {
        "work tree": ["touch", str(layout.REPOSITORY / "written-by-test")],
        "munge key": ["cat", str(slurm.layout.munge_key)],
        "database": ["ls", str(slurm.layout.database)],
    }
    for what, attempt in attempts.items():
        assert slurm.run(attempt, check=False).returncode != 0, what
    assert slurm.on("n1", attempts["work tree"], check=False).returncode != 0


def test_there_is_no_way_out(slurm: Cluster) -> None:
    assert slurm.run(["cat", "/proc/net/route"]).stdout.count("\n") == 2
    devices = slurm.on("n1", ["ls", "/sys/class/net"]).stdout.split()
    assert sorted(devices) == ["eth0", "ib0", "lo"]


@pytest.mark.usually("22.05")
def test_torch_reduces_over_the_fabric(slurm: Cluster) -> None:
    script = slurm.root / "all_reduce.py"
    script.write_text(ALL_REDUCE)
    before = slurm.interface_bytes("n2")
    run = ["srun", "-N2", "-w", "n1,n2", "--mem=2000", slurm.python, str(script)]
    out = slurm.run(run, env={"GLOO_SOCKET_IFNAME": "ib0"}).stdout
    after = slurm.interface_bytes("n2")
    assert out.splitlines() == ["sum 4000000.0"] * 2
    assert after["ib0"][1] - before["ib0"][1] > 4_000_000
    assert after["eth0"][1] - before["eth0"][1] < 1_000_000


def test_a_pulled_cable_is_silent_and_comes_back(slurm22: Cluster) -> None:
    ping = "import socket; socket.create_connection(('n2-ib0', 9), timeout=1.5)"

    def connect() -> str:
        return slurm22.on("n1", [slurm22.python, "-c", ping], check=False).stderr

    assert "ConnectionRefusedError" in connect()
    slurm22.link("n2", "ib0", up=False)
    assert slurm22.on("n2", ["cat", "/sys/class/net/ib0/carrier"]).stdout == "0\n"
    assert "TimeoutError" in connect()
    slurm22.link("n2", "ib0", up=True)
    until(lambda: "ConnectionRefusedError" in connect(), "cabled again", 10)


LISTEN = """
import socket
server = socket.create_server(("0.0.0.0", 4711))
print("listening", flush=True)
connection, _ = server.accept()
connection.recv(1)
"""
CONNECT = """
import socket, sys
connection = socket.create_connection(("n2-ib0", 4711))
print("connected", flush=True)
connection.settimeout(4)
connection.recv(1)
"""


def test_power_loss_is_silence_for_the_peers(slurm22: Cluster) -> None:
    peers = []
    for node, program in (("n2", LISTEN), ("n1", CONNECT)):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        argv = [slurm22.python, "-c", program]
        peers.append(slurm22.popen(argv, user=False, machine=node, **pipes))
        assert peers[-1].stdout.readline().split() != []
    slurm22.power_off("n2")
    assert "TimeoutError" in peers[1].communicate(timeout=20)[1]
    assert peers[0].communicate(timeout=20)[0] == ""
    assert peers[0].returncode == -signal.SIGKILL


@pytest.mark.usually("22.05")
def test_power_loss_requeues_the_job_and_the_node_comes_back(slurm: Cluster) -> None:
    job = submit(slurm, "-N2", "-w", "n3,n4", "--requeue", "-o", "/dev/null", "--wrap", "sleep 300")
    slurm.wait_job(job, "RUNNING")
    slurm.on("n4", ["touch", "/tmp/before"])
    slurm.power_off("n4")
    assert not slurm.is_on("n4")
    until(lambda: slurm.node_states()["n4"].startswith("down"), "down", 60, pause=0.5)
    until(
        lambda: "NODE_FAIL" in [row["State"] for row in slurm.sacct(job)], "NODE_FAIL", 30, pause=1
    )
    assert slurm.wait_job(job, {"PENDING", "RUNNING"}) == "PENDING"
    slurm.boot("n4")
    assert slurm.on("n4", ["ls", "/tmp"]).stdout == ""
    # cred_expire is short here; by default a requeued job waits for two minutes.
    slurm.wait_job(job, "RUNNING", timeout=30)


@pytest.mark.usually("24.11")
def test_a_job_of_higher_priority_preempts(slurm: Cluster) -> None:
    low = submit(slurm, "-N4", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 300")
    slurm.wait_job(low, "RUNNING")
    high = submit(slurm, "-p", "high", "-N4", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 9")
    slurm.wait_job(high, "RUNNING")
    assert slurm.wait_job(low, {"PENDING", "RUNNING"}) == "PENDING"
    shown = slurm.run(["scontrol", "-o", "show", "job", low]).stdout
    assert " Restarts=1 " in shown


def test_the_controllers_stop_and_start(slurm: Cluster) -> None:
    slurm.stop_database_daemon()
    assert slurm.run(["sacct"], check=False).returncode != 0
    assert slurm.run(["srun", "hostname"]).stdout.strip() in slurm.nodes
    slurm.start_database_daemon()
    slurm.stop_controller()
    assert slurm.run(["scontrol", "ping"], check=False).stdout.count("DOWN") == 1
    slurm.start_controller()
    assert slurm.run(["srun", "hostname"]).stdout.strip() in slurm.nodes


def test_signals_reach_the_command_itself(slurm22: Cluster) -> None:
    child = slurm22.popen(["sleep", "100"])
    child.send_signal(signal.SIGINT)
    assert child.wait(10) == -signal.SIGINT
    with pytest.raises(subprocess.TimeoutExpired):
        slurm22.run(["sleep", "100"], timeout=0.5)


def test_settings_reach_slurm(make_cluster: Callable[..., Cluster]) -> None:
    own = make_cluster("22.05", 1, max_array_size=11, extra={"KillWait": "7"})
    shown = own.run(["scontrol", "show", "config"]).stdout
    values = dict(line.replace(" ", "").split("=", 1) for line in shown.splitlines() if "=" in line)
    assert (values["MaxArraySize"], values["KillWait"]) == ("11", "7sec")


HOLD = """
from tests.testbed import Cluster
cluster = Cluster("22.05", 2)
cluster.up()
print(cluster.layout.base, flush=True)
input()
"""


@pytest.fixture
def held(slurm22: Cluster) -> Iterator[tuple[subprocess.Popen[str], layout.Layout]]:
    """A cluster that another process holds (on a machine that can: hence slurm22)."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD],
        cwd=layout.REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    yield holder, layout.Layout(Path(holder.stdout.readline().strip()))
    holder.kill()
    holder.communicate()


def namespaces(pids: list[int] | None = None) -> set[str]:
    """Return the namespaces of some processes, or of all."""
    found: set[str] = set()
    for process in pids or [int(path.name) for path in Path("/proc").glob("[0-9]*")]:
        for kind in ("mnt", "net", "pid", "uts"):
            try:
                found.add(str(Path(f"/proc/{process}/ns/{kind}").readlink()))
            except OSError:
                continue
    return found


def leftovers(place: layout.Layout, pids: list[int], spaces: set[str]) -> list[str]:
    groups = [top / place.name for top in cgroups.hierarchies().values()]
    found = [f"process {pid}" for pid in pids if Path(f"/proc/{pid}/exe").exists()]
    found += [f"namespace {name}" for name in spaces & namespaces()]
    found += [f"cgroup {group}" for group in groups if group.exists()]
    found += [line for line in Path("/proc/mounts").read_text().splitlines() if place.name in line]
    return found


@pytest.mark.parametrize("guardian_too", [False, True], ids=["holder", "holder and guardian"])
def test_nothing_is_left_when_the_holder_is_killed(
    held: tuple[subprocess.Popen[str], layout.Layout], guardian_too: bool
) -> None:
    holder, place = held
    pids = cgroups.processes(place.name)
    spaces = namespaces(pids) - namespaces([os.getpid()])
    # Two nodes and the login node, each in four namespaces, and the bed itself.
    assert len(pids) > 8
    assert len(spaces) == 4 * 4
    if guardian_too:
        os.kill(int(place.lock.read_text()), signal.SIGKILL)
    os.kill(holder.pid, signal.SIGKILL)
    if guardian_too:
        until(lambda: not cgroups.processes(place.name), "dead with the guardian", 15)
        remove_dead_beds()
    until(lambda: not place.base.exists(), "removed", 15)
    deadline = time.monotonic() + 5
    while leftovers(place, pids, spaces) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert leftovers(place, pids, spaces) == []
