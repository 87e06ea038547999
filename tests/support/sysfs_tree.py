"""A made ``/sys`` of a node with adapters and GPUs.

Names and contents follow the kernel's documentation
(Documentation/ABI/stable/sysfs-class-infiniband) and what its drivers write. No machine of ours has
such an adapter.
"""

from __future__ import annotations

import os
from pathlib import Path

NDR, NDR_2X = "400 Gb/sec (4X NDR)", "200 Gb/sec (2X NDR)"
HDR, EDR, SDR = "200 Gb/sec (4X HDR)", "100 Gb/sec (4X EDR)", "2.5 Gb/sec (1X SDR)"
ACTIVE, INIT, ARMED, DOWN = "4: ACTIVE", "2: INIT", "3: ARMED", "1: DOWN"
_PHYS = {DOWN: "2: Polling"}
_COUNTERS = (
    *("link_downed", "link_error_recovery", "symbol_error", "port_rcv_errors"),
    *("port_rcv_data", "port_xmit_data"),
)


class SysfsTree:
    """Builds the tree; ``root`` stands for ``/sys``."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def _function(self, bus: int, place: str) -> Path:
        """Return a PCI function below a switch of its own bus: host bridge, root port, switch."""
        above = f"pci0000:{bus:02x}/0000:{bus:02x}:01.0/0000:{bus + 1:02x}:00.0"
        return self.root / "devices" / above / f"0000:{bus + 2:02x}:{place}"

    def gpu(self, bus: int) -> None:
        """Add an H100 below the switch of a bus."""
        directory = self._function(bus, "01.0")
        _write(directory, {"vendor": "0x10de", "device": "0x2330", "class": "0x030200"})
        _link(self.root / "bus/pci/devices" / directory.name, directory)

    def hca(
        self,
        name: str,
        bus: int = 0x10,
        *,
        function: int = 0,
        ports: int = 1,
        board: str = "MT_0000000838",
        interfaces: tuple[str, ...] = (),
    ) -> Path:
        """Add an adapter, each of whose interfaces is on the port of its place."""
        pci = self._function(bus, f"00.{function}")
        own = pci / "infiniband" / name
        _write(own, {"board_id": board, "node_type": "1: CA", "fw_ver": "28.39.1002"})
        _link(own / "device", pci)
        _link(self.root / "class/infiniband" / name, own)
        _link(self.root / "bus/pci/devices" / pci.name, pci)
        _write(pci, {"vendor": "0x15b3", "class": "0x020700"})
        for place, interface in enumerate(interfaces):
            _write(pci / "net" / interface, {"dev_port": str(place)})
        for number in range(1, ports + 1):
            self.port(name, number)
        return own

    def port(
        self,
        hca: str,
        number: int = 1,
        *,
        state: str = ACTIVE,
        rate: str = NDR,
        phys_state: str | None = None,
    ) -> Path:
        """Set an InfiniBand port; return its directory."""
        own = self.root / "class/infiniband" / hca / "ports" / str(number)
        phys = phys_state or _PHYS.get(state, "5: LinkUp")
        _write(own, {"state": state, "phys_state": phys, "rate": rate, "link_layer": "InfiniBand"})
        _write(own / "counters", dict.fromkeys(_COUNTERS, "0"))
        _write(own / "gid_attrs/types", {"0": "IB/RoCE v1"})
        return own

    def roce(self, hca: str, interface: str, *, rate: str = NDR, v2: bool = True) -> Path:
        """Make an adapter's first port one of Ethernet."""
        own = self.port(hca, rate=rate)
        _write(own, {"link_layer": "Ethernet"})
        _write(own / "gid_attrs/types", {"0": "IB/RoCE v1", "1": "RoCE v2" if v2 else ""})
        _write(own / "gid_attrs/ndevs", {"0": interface, "1": interface})
        return own

    def interface(self, name: str, index: int, kind: int = 1) -> None:
        """Add a network interface; 32 is the kind of InfiniBand."""
        _write(self.root / "class/net" / name, {"ifindex": str(index), "type": str(kind)})


def rails(root: Path, count: int = 8, *, rate: str = NDR) -> SysfsTree:
    """Return a node with so many GPUs, each below a switch with an adapter of its own."""
    tree = SysfsTree(root)
    for rail in range(count):
        tree.gpu(0x10 * rail)
        tree.hca(f"mlx5_{rail}", 0x10 * rail, interfaces=(f"ib{rail}",))
        tree.port(f"mlx5_{rail}", rate=rate)
    return tree


def _write(directory: Path, contents: dict[str, str]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in contents.items():
        (directory / name).write_text(text + "\n")


def _link(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(os.path.relpath(target, path.parent))
