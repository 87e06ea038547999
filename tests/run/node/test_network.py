"""What a node's network looks like.

No machine of ours has InfiniBand: its ports are a mock here, a tree in the form of
``/sys/class/infiniband`` that follows the kernel's documentation. Sockets and addresses are real.
"""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any

import pytest

from hpcrun.errors import HpcrunError
from hpcrun.run.fabric import adapters, compute_ports
from hpcrun.run.node import network
from hpcrun.run.protocol.launch import Interface
from tests.support.sysfs_tree import SysfsTree, rails


class Sysfs:
    """A mock of ``/sys``."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def port(
        self,
        hca: str,
        number: int = 1,
        *,
        state: str = "4: ACTIVE",
        rate: str = "400 Gb/sec (4X NDR)",
        link_layer: str = "InfiniBand",
    ) -> None:
        directory = self.root / "class/infiniband" / hca / "ports" / str(number)
        directory.mkdir(parents=True)
        (directory / "state").write_text(state + "\n")
        (directory / "rate").write_text(rate + "\n")
        (directory / "link_layer").write_text(link_layer + "\n")

    def interface(self, name: str, index: int, kind: int = 1) -> None:
        directory = self.root / "class/net" / name
        directory.mkdir(parents=True)
        (directory / "ifindex").write_text(f"{index}\n")
        (directory / "type").write_text(f"{kind}\n")


@pytest.fixture
def sysfs(tmp_path: Path) -> Sysfs:
    return Sysfs(tmp_path)


@pytest.fixture
def addresses(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Interface -> address, in place of the kernel's."""
    found: dict[str, str] = {}
    monkeypatch.setattr(network, "address", found.get)
    return found


def test_this_machine_has_a_loopback() -> None:
    assert "lo" in network.interfaces()
    assert network.address("lo") == "127.0.0.1"
    assert network.address("nosuch0") is None


def test_the_default_interface_has_an_address() -> None:
    name = network.default_interface()
    assert name is None or network.address(name)
    chosen, address = network.management({})
    assert network.address(chosen) == address


def test_interfaces_come_in_the_order_of_their_index(sysfs: Sysfs) -> None:
    for name, index in (("ib0", 10), ("eth0", 2), ("lo", 1)):
        sysfs.interface(name, index)
    assert network.interfaces(sysfs.root) == ["lo", "eth0", "ib0"]
    assert network.interfaces(sysfs.root / "none") == []


def test_without_a_profile_gradients_go_over_infiniband(
    sysfs: Sysfs, addresses: dict[str, str]
) -> None:
    sysfs.interface("eth0", 2)
    for index in (3, 4):
        sysfs.interface(f"ib{index - 3}", index, kind=32)
    addresses.update(eth0="10.0.0.5", ib1="10.9.0.5")
    # ib0 is there but has no address.
    assert network.fast({}, sysfs.root) == ("ib1", "10.9.0.5")


def test_without_infiniband_they_go_over_the_management_interface(
    sysfs: Sysfs, addresses: dict[str, str]
) -> None:
    sysfs.interface("eth0", 2)
    sysfs.interface("eth1", 3)
    addresses.update(eth0="10.0.0.5", eth1="10.1.0.5")
    profile = {"management_interface": "eth1"}
    assert network.fast(profile, sysfs.root) == ("eth1", "10.1.0.5")


def test_the_profile_comes_first(sysfs: Sysfs, addresses: dict[str, str]) -> None:
    sysfs.interface("ib0", 3, kind=32)
    addresses.update(ib0="10.9.0.5", hsn0="10.7.0.5")
    assert network.fast({"fast_interface": "hsn0"}, sysfs.root) == ("hsn0", "10.7.0.5")


def test_a_name_of_infiniband_comes_before_the_default_route(
    sysfs: Sysfs, addresses: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of another type: an Ethernet one on our test bed, or under a driver of its own."""
    monkeypatch.setattr(network, "default_interface", lambda: "eth1")
    for index, name in enumerate(("lo", "docker0", "eth0", "eth1", "ibp65s0", "ibex0")):
        sysfs.interface(name, index + 1)
        addresses[name] = f"10.{index}.0.5"
    assert network.fast({}, sysfs.root) == ("ibp65s0", "10.4.0.5")
    found = [one.name for one in network.candidates(sysfs.root)]
    assert found == ["ibp65s0", "eth1", "eth0", "ibex0"]
    sysfs.interface("ib7", 9, kind=32)
    addresses["ib7"] = "10.7.0.5"
    assert network.fast({}, sysfs.root) == ("ib7", "10.7.0.5")


def test_interfaces_on_the_adapters_of_nccl_come_first(
    tmp_path: Path, addresses: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Storage has an interface of type InfiniBand as well, or RoCE has none in its name."""
    monkeypatch.setattr(network, "default_interface", lambda: "eno1")
    tree = rails(tmp_path / "storage", 1)
    tree.hca("mlx5_9", 0x90, interfaces=("ib9",))
    for index, name in enumerate(("eno1", "ib9", "ib0")):
        tree.interface(name, index + 1, kind=1 if name == "eno1" else 32)
        addresses[name] = f"10.{index}.0.5"
    found = network.candidates(tmp_path / "storage")
    assert [one.name for one in found] == ["ib0", "ib9", "eno1"]
    tree = SysfsTree(tmp_path / "roce")
    tree.hca("mlx5_0")
    tree.roce("mlx5_0", "ens1np0")
    for index, name in enumerate(("eno1", "ens1np0")):
        tree.interface(name, index + 1)
        addresses[name] = f"10.{index}.0.5"
    found = network.candidates(tmp_path / "roce")
    assert [(one.name, one.sign) for one in found] == [("ens1np0", "roce"), ("eno1", "")]


def _node(*names: str, sign: str = "name") -> list[Interface]:
    is_fast = re.compile("ib").match
    return [Interface(name, "10.0.0.1", sign if is_fast(name) else "") for name in names]


TYPED = _node("ib0", "eth0", sign="type")
# name: (fabric, first node, second node) -> their interfaces, and the words of the notice
AGREEMENTS: dict[str, tuple[dict[str, Any], Any, Any, dict[str, str], str]] = {
    "InfiniBand on both": ({}, TYPED, TYPED, {"n1": "ib0", "n2": "ib0"}, ""),
    "the profile decides": ({"fast_interface": "eth0"}, TYPED, _node("eth0"), {}, ""),
    "one way only": ({}, _node("eth0"), _node("eth0"), {}, ""),
    "by its name": (
        {},
        _node("ib0", "eth0"),
        _node("ib0", "eth0"),
        {"n1": "ib0", "n2": "ib0"},
        "ranks talk over ib0, for its name",
    ),
    "RoCE adapters on both": (
        {},
        _node("ib0", "eth0", sign="roce"),
        _node("ib0", "eth0", sign="roce"),
        {"n1": "ib0", "n2": "ib0"},
        "ranks talk over ib0, for its RoCE adapter",
    ),
    "the one that both have": (
        {},
        _node("ib0", "ib1", "eth0", sign="type"),
        _node("ib1", "eth0", sign="type"),
        {"n1": "ib1", "n2": "ib1"},
        "",
    ),
    "none that both have": (
        {},
        _node("ib0", "eth0", sign="type"),
        _node("ibs1", "eth0", sign="type"),
        {"n1": "ib0", "n2": "ibs1"},
        "ranks talk over ib0 (n1), ibs1 (n2), which differ in name",
    ),
    "one node has no address on it": (
        {},
        TYPED,
        _node("eth0"),
        {"n1": "eth0", "n2": "eth0"},
        "ranks talk over eth0: n2 has no ib0",
    ),
    "the profile names the other one": (
        {"management_interface": "eno1"},
        _node("ib0", "eth0", "eno1"),
        _node("eth0", "eno1"),
        {"n1": "eno1", "n2": "eno1"},
        "ranks talk over eno1: n2 has no ib0",
    ),
    "two of Ethernet": (
        {},
        _node("eth0", "eth1"),
        _node("eth0"),
        {},
        "ranks talk over eth0, the way to the other nodes; there is eth1 too",
    ),
    "nothing is known": ({}, TYPED, [], {}, ""),
}


@pytest.mark.parametrize("name", AGREEMENTS)
def test_all_nodes_take_the_same_interface(name: str) -> None:
    fabric, first, second, expected, words = AGREEMENTS[name]
    choice, notice = network.agree(fabric, {"n1": first, "n2": second})
    assert choice == expected
    assert (notice or "").startswith(words)
    assert bool(notice) == bool(words)
    assert not words or "fabric.fast_interface in the cluster profile decides" in str(notice)


def test_a_node_alone_needs_no_agreement() -> None:
    assert network.agree({}, {"n1": TYPED}) == ({}, None)


@pytest.mark.parametrize("key", ["fast_interface", "management_interface"])
def test_an_interface_that_is_not_there_is_named_with_those_that_are(key: str) -> None:
    look = network.fast if key == "fast_interface" else network.management
    with pytest.raises(HpcrunError) as caught:
        look({key: "ib77"})
    text = str(caught.value)
    assert f"fabric.{key}: this node ({socket.gethostname()}) has no interface 'ib77'" in text
    assert "it has lo" in text
    assert "hint: correct the cluster profile's fabric block" in text


def _hca(sysfs: Sysfs) -> str | None:
    return compute_ports.hca_filter({}, adapters.read(sysfs.root, patience=60))


def test_nccl_is_given_exact_names(sysfs: Sysfs) -> None:
    """Without the ``=``, mlx5_1 would match mlx5_10 as well."""
    for name in ("mlx5_1", "mlx5_10"):
        sysfs.port(name)
    assert _hca(sysfs) == "=mlx5_1:1,mlx5_10:1"


@pytest.mark.parametrize("state", ["1: DOWN", "2: INIT", "3: ARMED", "5: ACTIVE_DEFER"])
def test_ports_that_are_not_active_are_left_out(sysfs: Sysfs, state: str) -> None:
    sysfs.port("mlx5_0")
    sysfs.port("mlx5_1", state=state)
    assert _hca(sysfs) == "=mlx5_0:1"


def test_degraded_storage_and_ethernet_ports_are_left_out(sysfs: Sysfs) -> None:
    sysfs.port("mlx5_0")
    sysfs.port("mlx5_1", rate="100 Gb/sec (1X NDR)")
    sysfs.port("mlx5_2", rate="200 Gb/sec (4X HDR)")
    sysfs.port("mlx5_3", link_layer="Ethernet")
    sysfs.port("mlx5_4", 2)
    assert _hca(sysfs) == "=mlx5_0:1,mlx5_4:2"


def test_a_node_without_an_active_port_says_nothing_to_nccl(sysfs: Sysfs) -> None:
    assert _hca(sysfs) is None
    sysfs.port("mlx5_0", state="1: DOWN")
    assert _hca(sysfs) is None


@pytest.mark.parametrize("hca", ["=mlx5_0:1,mlx5_4:2", "=mlx5_0,mlx5_4"])
def test_an_adapter_that_has_lost_its_link(sysfs: Sysfs, hca: str) -> None:
    sysfs.port("mlx5_0")
    sysfs.port("mlx5_4", 2)
    assert network.trouble("lo", hca, sysfs.root) is None
    state = sysfs.root / "class/infiniband/mlx5_4/ports/2/state"
    state.write_text("1: DOWN\n")
    found = network.trouble("lo", hca, sysfs.root)
    assert found == f"{hca.split(',')[1]} is not active"


def test_a_named_adapter_that_was_never_active_is_not_missed(sysfs: Sysfs) -> None:
    """NCCL passes over it as well."""
    sysfs.port("mlx5_0")
    sysfs.port("mlx5_3", state="1: DOWN")
    assert network.usable("=mlx5_0,mlx5_3:1", sysfs.root) == "=mlx5_0"
    assert network.usable("=mlx5_3", sysfs.root) == "=mlx5_3"
    assert network.trouble("lo", "=mlx5_3", sysfs.root) == "mlx5_3 is not active"
    assert network.usable(None, sysfs.root) is None


def test_an_interface_without_a_carrier() -> None:
    """The cluster tests pull the cable of one that is there."""
    assert network.trouble("lo", None) is None
    assert network.trouble("nothing0", None) == "nothing0 has no carrier"


IPV6 = """\
00000000000000000000000000000001 01 80 10 80       lo
fe800000000000000216c7fffe3b0001 02 40 20 80     eth0
fd860000000000000000000000000099 02 40 00 01     eth0
fd860000000000000000000000000098 02 40 00 20     eth0
fd860000000000000000000000000011 02 40 00 80     eth0
"""
ANY, GATEWAY = "0" * 32, "fd86" + "0" * 27 + "1"
ROUTES = f"""\
{ANY} 00 {ANY} 00 {ANY} ffffffff 00000001 00000000 00200200       lo
fd870000000000000000000000000000 40 {ANY} 00 {ANY} 00000100 00000001 00000000 00000001      ib0
{ANY} 00 {ANY} 00 {GATEWAY} 00000400 00000001 00000000 00000003     eth0
"""


def test_an_interface_without_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    """No address of the link alone, none that passes, and no way through the kernel's own route."""
    tables = {"if_inet6": IPV6, "ipv6_route": ROUTES, "route": ""}
    monkeypatch.setattr(network, "_ask", lambda question, interface: None)
    monkeypatch.setattr(
        network, "_table", lambda name, _: [row.split() for row in tables[name].splitlines()]
    )
    assert network.address("eth0") == "fd86::11"
    assert network.address("lo") is None
    assert network.default_interface() == "eth0"
    assert network.management({}) == ("eth0", "fd86::11")
