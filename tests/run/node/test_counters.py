"""What a node does, from files as kernels write them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from hpcrun.run.node import counters as gauges
from hpcrun.run.node.counters import Counters

KIB, MIB = 1 << 10, 1 << 20
NET, PORTS = "sys/class/net", "sys/class/infiniband"


class Node:
    """A tree of files in place of ``/``, and a clock."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now = 1000.0
        self.write({"proc/meminfo": "MemTotal: 4096 kB\nMemAvailable: 1024 kB\n"})
        self.write({"proc/stat": "cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 1 1 1 1\n"})

    def write(self, files: Mapping[str, object]) -> None:
        for name, text in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")

    def interface(self, name: str, received: int, sent: int, kind: int = 1) -> None:
        counters = {"statistics/rx_bytes": received, "statistics/tx_bytes": sent}
        self.write(
            {f"{NET}/{name}/{file}": text for file, text in {**counters, "type": kind}.items()}
        )

    def port(self, hca: str, received: int, sent: int, number: int = 1) -> None:
        place = f"{PORTS}/{hca}/ports/{number}"
        counters = {"port_rcv_data": received, "port_xmit_data": sent}
        self.write({f"{place}/state": "4: ACTIVE", f"{place}/rate": "400 Gb/sec (4X NDR)"})
        self.write({f"{place}/counters/{name}": value for name, value in counters.items()})

    def gauges(self, interface: str | None = None, hca: str | None = None) -> Counters:
        return Counters(interface, hca, self.root)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    made = Node(tmp_path)
    monkeypatch.setattr(gauges.time, "monotonic", lambda: made.now)
    return made


def test_the_whole_node(node: Node) -> None:
    found = node.gauges()
    node.write({"proc/stat": "cpu  130 5 110 840 5 5 5 0 70 0\n"})
    node.now += 10
    # 55 of 100 ticks; waiting for a disk is no work, guests are in their host's time already.
    assert found.read() == {"cpu": 55.0, "memory": 3072 * KIB, "memory_total": 4096 * KIB}


def test_the_jobs_own_share_of_a_shared_node(node: Node) -> None:
    job = "sys/fs/cgroup/system.slice/slurmstepd.scope/job_7"
    text = "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0"
    node.write({"proc/self/cgroup": text, f"{job}/cpuset.cpus.effective": "0-1,8"})
    node.write({f"{job}/cpu.stat": "usage_usec 1000000\nuser_usec 5"})
    node.write({f"{job}/memory.current": 900 * KIB, f"{job}/memory.max": 2048 * KIB})
    node.write({f"{job}/memory.stat": f"anon 5\ninactive_file {100 * KIB}"})
    found = node.gauges()
    node.write({f"{job}/cpu.stat": "usage_usec 16000000\nuser_usec 5"})
    node.now += 10
    assert found.read() == {"cpu": 50.0, "memory": 800 * KIB, "memory_total": 2048 * KIB}


def test_the_older_cgroups(node: Node) -> None:
    base, job = "sys/fs/cgroup", "slurm/uid_0/job_7"
    lines = [
        f"{number}:{name}:/{job}/step_0" for number, name in enumerate(["cpu,cpuacct", "memory"])
    ]
    node.write({"proc/self/cgroup": "\n".join([*lines, f"0::/{job}"])})
    node.write({f"{base}/cpuacct/{job}/cpuacct.usage": 10**9})
    node.write({f"{base}/memory/{job}/memory.usage_in_bytes": 900 * KIB})
    node.write({f"{base}/memory/{job}/memory.limit_in_bytes": 9223372036854771712})
    node.write({f"{base}/memory/{job}/memory.stat": f"total_inactive_file {100 * KIB}"})
    found = node.gauges()
    node.write({f"{base}/cpuacct/{job}/cpuacct.usage": 6 * 10**9})
    node.now += 10
    share = round(50 / (os.cpu_count() or 1), 1)
    assert found.read() == {"cpu": share, "memory": 800 * KIB, "memory_total": 4096 * KIB}


def test_a_fabric_beside_the_network(node: Node) -> None:
    for name, kind in (("lo", 772), ("eth0", 1), ("ib0", 32)):
        node.interface(name, 0, 0, kind)
    for hca in ("mlx5_0", "mlx5_1", "mlx5_9"):
        node.port(hca, 0, 0)
    found = node.gauges("ib0", "=mlx5_0:1,mlx5_1")
    node.interface("lo", 10**9, 10**9, 772)
    node.interface("eth0", 1000, 2000)
    node.interface("ib0", 10**6, 10**6, 32)
    node.port("mlx5_0", 100, 200)
    node.port("mlx5_1", 150, 300)
    node.port("mlx5_9", 10**6, 10**6)
    node.now += 10
    read = found.read()
    # Ports count words of four bytes.
    assert (read["network"], read["fabric"]) == ([100, 200], [100, 200])


def test_errors_that_ports_have_counted(node: Node) -> None:
    node.port("mlx5_0", 0, 0)
    counters = f"{PORTS}/mlx5_0/ports/1/counters"
    node.write({f"{counters}/symbol_error": 7, f"{counters}/link_downed": 1})
    node.write({f"{counters}/port_rcv_errors": "garbage"})
    found = node.gauges(None, "=mlx5_0:1")
    assert "fabric_errors" not in found.read()
    node.write({f"{counters}/symbol_error": 12, f"{counters}/port_rcv_errors": 3})
    assert found.read()["fabric_errors"] == {"mlx5_0:1": {"symbol_error": 5}}
    # Reset, and then one more.
    node.write({f"{counters}/symbol_error": 0})
    assert "fabric_errors" not in found.read()
    node.write({f"{counters}/symbol_error": 1})
    assert found.read()["fabric_errors"] == {"mlx5_0:1": {"symbol_error": 1}}


def test_a_fast_interface_without_adapters(node: Node) -> None:
    for name in ("eth0", "eth1"):
        node.interface(name, 0, 0)
    found = node.gauges("eth1")
    node.interface("eth0", 10, 20)
    node.interface("eth1", 1000, 2000)
    node.now += 10
    read = found.read()
    assert (read["network"], read["fabric"]) == ([1, 2], [100, 200])


def test_each_byte_is_counted_once(node: Node) -> None:
    names = ("eth0", "eth1", "bond0", "bond0.7")
    for name in names:
        node.interface(name, 0, 0)
    for name in ("eth0", "eth1"):
        (node.root / NET / name / "master").symlink_to("../bond0")
        (node.root / NET / "bond0" / f"lower_{name}").symlink_to(f"../{name}")
    (node.root / NET / "bond0.7" / "lower_bond0").symlink_to("../bond0")
    found = node.gauges()
    for name in names:
        node.interface(name, 1000, 1000)
    node.now += 10
    assert found.read()["network"] == [100, 100]


def test_counters_that_begin_anew_give_no_rate(node: Node) -> None:
    node.interface("eth0", 1000, 1000)
    found = node.gauges()
    node.interface("eth0", 10, 2000)
    node.now += 10
    assert "network" not in found.read()
    node.interface("eth0", 110, 2000)
    node.now += 10
    assert found.read()["network"] == [10, 0]


def test_what_cannot_be_read_is_absent(tmp_path: Path) -> None:
    assert Counters("ib0", "=mlx5_0", tmp_path).read() == {}


def test_this_machine() -> None:
    found = Counters(None, None)
    sum(range(2_000_000))
    read = found.read()
    assert 0 < read["cpu"] <= 100
    assert 0 < read["memory"] < read["memory_total"]
