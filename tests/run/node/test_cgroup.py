"""What is left of memory, from files as kernels write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcrun.run.node import cgroup as node_cgroup

MIB = 1 << 20


def node(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    """A tree of files with 900 MiB available on the node."""
    named = {"proc/meminfo": f"MemTotal: 9 kB\nMemAvailable:  {900 * 1024} kB\n"}
    for name, text in {**named, "proc/self/cgroup": cgroup, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


STEP = "sys/fs/cgroup/slurm/job_7/step_1"


def test_the_tightest_cgroup_tells(tmp_path: Path) -> None:
    job = STEP.rpartition("/")[0]
    files = {
        f"{STEP}/memory.max": "max\n",
        f"{STEP}/memory.current": "5\n",
        f"{job}/memory.max": f"{500 * MIB}\n",
        f"{job}/memory.current": f"{400 * MIB}\n",
        f"{job}/memory.stat": f"anon {1 * MIB}\ninactive_file {30 * MIB}\nactive_file {20 * MIB}\n",
    }
    assert node_cgroup.memory_left(node(tmp_path, "0::/slurm/job_7/step_1\n", files)) == 150 * MIB


def test_the_older_cgroups(tmp_path: Path) -> None:
    place = "sys/fs/cgroup/memory/slurm/job_7"
    files = {
        f"{place}/memory.limit_in_bytes": f"{300 * MIB}\n",
        f"{place}/memory.usage_in_bytes": f"{100 * MIB}\n",
        f"{place}/memory.stat": f"total_inactive_file {10 * MIB}\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "9\n",
        "sys/fs/cgroup/memory/memory.stat": "",
    }
    found = node_cgroup.memory_left(
        node(tmp_path, "9:cpu,cpuacct:/\n4:memory:/slurm/job_7\n", files)
    )
    assert found == 210 * MIB


@pytest.mark.parametrize("cgroup", ["0::/\n", "0::/of/another/namespace\n", ""])
def test_without_limits_the_node_tells(tmp_path: Path, cgroup: str) -> None:
    assert node_cgroup.memory_left(node(tmp_path, cgroup, {})) == 900 * MIB


def test_nothing_tells(tmp_path: Path) -> None:
    assert node_cgroup.memory_left(tmp_path) is None


def test_on_this_machine() -> None:
    found = node_cgroup.memory_left()
    assert found is not None
    assert found > MIB


@pytest.mark.parametrize(
    ("cgroup", "only"),
    [
        ("7:freezer:/slurm/uid_9/job_7/step_1\n3:memory:/\n0::/\n", True),
        ("0::/system.slice/slurmstepd.scope/job_7/step_1/user/task_0\n", True),
        # Memory is limited by cgroups, and processes are followed otherwise.
        ("7:freezer:/\n3:memory:/slurm/uid_9/job_7/step_1/task_0\n0::/\n", False),
        ("0::/user.slice\n", False),
    ],
    ids=["v1", "v2", "v1, other plug-in", "no step"],
)
def test_whose_signals_reach_tasks_alone(tmp_path: Path, cgroup: str, only: bool) -> None:
    assert node_cgroup.signals_only_tasks(node(tmp_path, cgroup, {})) == only
