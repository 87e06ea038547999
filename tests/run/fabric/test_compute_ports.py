"""What a node gives NCCL, and what it says of its links, for made trees of ``/sys``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hpcrun.run.fabric import adapters, compute_ports, link_check
from tests.support import sysfs_tree
from tests.support.sysfs_tree import SysfsTree, rails

EIGHT = "=" + ",".join(f"mlx5_{rail}:1" for rail in range(8))
SEVEN = EIGHT.replace("mlx5_3:1,", "")


class Case(NamedTuple):
    """A tree, NCCL_IB_HCA, the interfaces on its ports, and what is said: kind and words."""

    make: Callable[[Path], object]
    hca: str | None
    interfaces: list[str]
    said: list[tuple[str, str]] = []  # noqa: RUF012


def _storage(root: Path) -> None:
    """Two more adapters at the root ports of processors: as fast, InfiniBand too."""
    tree = rails(root)
    for number in (8, 9):
        tree.hca(f"mlx5_{number}", 0x10 * number, interfaces=(f"ib{number}",))


def _slow_storage(root: Path) -> None:
    """Without a GPU in sight."""
    tree = SysfsTree(root)
    for number in (0, 1):
        tree.hca(f"mlx5_{number}", 0x10 * number)
    tree.hca("mlx5_2", 0x20, board="MT_0000000223")
    tree.port("mlx5_2", rate=sysfs_tree.HDR)


def _fast_storage(root: Path) -> None:
    tree = rails(root, 4, rate=sysfs_tree.HDR)
    tree.hca("mlx5_4", 0x50)


def _roce(root: Path) -> None:
    tree = SysfsTree(root)
    for number, name in enumerate(("ens1np0", "ens2np0")):
        tree.hca(f"mlx5_{number}", 0x10 * number)
        tree.roce(f"mlx5_{number}", name)
    tree.hca("mlx5_2", 0x20, board="MT_0000000080")
    tree.roce("mlx5_2", "eno1", rate="25 Gb/sec (1X EDR)")


def _roce_v1(root: Path) -> None:
    SysfsTree(root).hca("mlx5_0")
    SysfsTree(root).roce("mlx5_0", "eno1", v2=False)


def _down(root: Path) -> None:
    rails(root).port("mlx5_3", state=sysfs_tree.DOWN, rate=sysfs_tree.SDR)


def _two_lanes(root: Path) -> None:
    rails(root).port("mlx5_3", rate=sysfs_tree.NDR_2X)


def _init(root: Path) -> None:
    rails(root).port("mlx5_3", state=sysfs_tree.INIT)


def _armed_alone(root: Path) -> None:
    SysfsTree(root).hca("mlx5_0")
    SysfsTree(root).port("mlx5_0", state=sysfs_tree.ARMED)


def _dual(root: Path) -> None:
    """Ports 1 and 2 of one function, on an interface each; the second has no cable."""
    tree = SysfsTree(root)
    for number in (0, 1):
        names = (f"ib{2 * number}", f"ib{2 * number + 1}")
        tree.hca(f"mlx4_{number}", 0x10 * number, ports=2, interfaces=names)
        tree.port(f"mlx4_{number}", 1, rate=sysfs_tree.EDR)
        tree.port(f"mlx4_{number}", 2, rate=sysfs_tree.SDR, state=sysfs_tree.DOWN)


def _dual_functions(root: Path) -> None:
    """As mlx5 has them: a function each; the only adapter's second port has no cable."""
    tree = SysfsTree(root)
    for function in (0, 1):
        tree.hca(f"mlx5_{function}", function=function)
    tree.port("mlx5_1", state=sysfs_tree.DOWN)


def _names(root: Path) -> None:
    tree = SysfsTree(root)
    for number in (10, 1, 2):
        tree.hca(f"mlx5_{number}", number)
    tree.port("mlx5_10", rate=sysfs_tree.HDR)


def _bond(root: Path) -> None:
    SysfsTree(root).hca("mlx5_bond_0", interfaces=("ens1f0np0", "ens1f1np1"))
    SysfsTree(root).roce("mlx5_bond_0", "bond0", rate=sysfs_tree.HDR)


def _unreadable(root: Path) -> None:
    rails(root)
    path = root / "class/infiniband/mlx5_3/ports/1"
    (path / "state").unlink()
    (path / "state").mkdir()
    (path / "rate").unlink()


def _garbage(root: Path) -> None:
    rails(root)
    path = root / "class/infiniband/mlx5_3/ports/1"
    for name in ("state", "phys_state", "rate", "link_layer", "gid_attrs/types/0"):
        (path / name).write_bytes(b"\xff\x00\x1b[2J 99999999999: {}\n" * 1000)
    (path.parent / "nan").mkdir()
    (path.parent / "²").mkdir()
    (root / "class/infiniband/-,x").mkdir()
    (root / "class/infiniband/loop").symlink_to("loop")


def _efa(root: Path) -> None:
    own = SysfsTree(root).hca("rdmap16s27", board="")
    (own / "ports/1/link_layer").write_text("Unspecified\n")


IB = [f"ib{rail}" for rail in range(8)]
WITHOUT = [name for name in IB if name != "ib3"]
NOTHING = ("no_port", "no InfiniBand port is active, and none has a RoCE v2 address")
CASES = {
    "eight rails of NDR": Case(rails, EIGHT, IB),
    "storage as fast as they, far from the GPUs": Case(_storage, EIGHT, IB),
    "slower storage of another model": Case(_slow_storage, "=mlx5_0:1,mlx5_1:1", []),
    "storage faster than the rails": Case(
        _fast_storage, "=mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1", IB[:4]
    ),
    "RoCE v2": Case(_roce, "=mlx5_0:1,mlx5_1:1", ["ens1np0", "ens2np0"]),
    "Ethernet without RoCE v2": Case(_roce_v1, None, [], [NOTHING]),
    "one port is down": Case(_down, SEVEN, WITHOUT, [("down", "mlx5_3:1 is DOWN (Polling)")]),
    "two lanes": Case(
        _two_lanes,
        SEVEN,
        WITHOUT,
        [("slow", "mlx5_3:1 has 200 Gb/sec (2X NDR), its peers 400 Gb/sec (4X NDR)")],
    ),
    "INIT": Case(
        *(_init, SEVEN, WITHOUT), [("no_subnet_manager", "mlx5_3:1 is in INIT: its link is up")]
    ),
    "ARMED, and the only port": Case(
        *(_armed_alone, None, []), [("no_subnet_manager", "mlx5_0:1 is in ARMED")]
    ),
    "dual-port adapters": Case(_dual, "=mlx4_0:1,mlx4_1:1", ["ib0", "ib2"]),
    "a function for each port": Case(_dual_functions, "=mlx5_0:1", []),
    "no InfiniBand": Case(lambda root: None, None, []),
    "mlx5_1 beside mlx5_10": Case(_names, "=mlx5_1:1,mlx5_2:1", [], [("slow", "mlx5_10:1 has 2")]),
    "bonded": Case(_bond, "=mlx5_bond_0:1", ["bond0"]),
    "unreadable": Case(
        *(_unreadable, SEVEN, WITHOUT), [("unreadable", "the state of mlx5_3:1 cannot be read")]
    ),
    "garbage": Case(
        *(_garbage, SEVEN, WITHOUT), [("unreadable", "the state of mlx5_3:1 cannot be read")]
    ),
    "another kind of fabric": Case(_efa, None, [], [NOTHING]),
}


@pytest.mark.parametrize("name", CASES)
def test_the_choice_and_the_verdict(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NCCL_IB_HCA", raising=False)
    case = CASES[name]
    case.make(tmp_path)
    reading = adapters.read(tmp_path, patience=60)
    assert compute_ports.hca_filter({}, reading) == case.hca
    assert list(compute_ports.interfaces(reading)) == case.interfaces
    report = link_check.report({}, reading)
    assert (report is None) == (name == "no InfiniBand")
    found = report["findings"] if report else []
    assert [one["kind"] for one in found] == [kind for kind, _ in case.said]
    for one, (_, words) in zip(found, case.said, strict=True):
        assert one["message"].startswith(words)


def test_the_profile_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCL_IB_HCA", raising=False)
    _down(tmp_path)
    reading = adapters.read(tmp_path, patience=60)
    names = ["mlx5_7", "mlx5_3:1"]
    assert compute_ports.hca_filter({"hca": names}, reading) == "=mlx5_7,mlx5_3:1"
    report = link_check.report({"hca": names}, reading)
    assert report is not None
    assert (report["source"], report["ports"]) == (
        "profile",
        [["mlx5_7:1", "InfiniBand", sysfs_tree.NDR]],
    )
    # Only of the ports that it names.
    assert [one["port"] for one in report["findings"]] == ["mlx5_3:1"]
    assert link_check.report({"hca": ["mlx5_7"]}, reading) == {**report, "findings": []}


def test_mlx5_1_is_not_mlx5_10(tmp_path: Path) -> None:
    _names(tmp_path)
    ports = adapters.read(tmp_path, patience=60).ports
    assert [port.name for port in ports] == ["mlx5_1:1", "mlx5_2:1", "mlx5_10:1"]
    assert [port.name for port in compute_ports.ports_of(["mlx5_1"], ports)] == ["mlx5_1:1"]


def test_what_the_job_sets_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rails(tmp_path, 2)
    monkeypatch.setenv("NCCL_IB_HCA", "=mlx5_9")
    report: Any = link_check.report({}, adapters.read(tmp_path, patience=60))
    told = link_check.choices({"n1": report}, {"n1": "=mlx5_0:1"})
    assert told == ["n1: NCCL_IB_HCA is what the job's environment says"]
