"""Two networks in namespaces of the bed's own: eth0 (management) and ib0 (the fabric)."""

from __future__ import annotations

import subprocess
from pathlib import Path

BRIDGES = {"eth0": "br-eth", "ib0": "br-ib"}
_SUBNETS = {"eth0": "10.86.0.", "ib0": "10.87.0."}
_SUBNETS_6 = {"eth0": "fd86::", "ib0": "fd87::"}


def node_names(count: int) -> list[str]:
    """Return the names of the bed's compute nodes."""
    return [f"n{number}" for number in range(1, count + 1)]


def interfaces(machine: str) -> tuple[str, ...]:
    """Return the interfaces of a machine: a login node is not on the fabric."""
    return ("eth0", "ib0") if machine.startswith("n") else ("eth0",)


def address(machine: str, interface: str = "eth0", *, ipv6: bool = False) -> str:
    """Return the only address of a machine's interface, of IPv4 or IPv6."""
    host = 10 + int(machine[1:]) if machine.startswith("n") else 1
    return f"{(_SUBNETS_6 if ipv6 else _SUBNETS)[interface]}{host}"


def hosts_file(machines: list[str], *, ipv6: bool = False) -> str:
    """Return /etc/hosts for the bed: NAME is the management address, NAME-ib0 the fabric's."""
    lines = ["127.0.0.1 localhost", *(["::1 localhost"] if ipv6 else [])]
    for machine in machines:
        for interface in interfaces(machine):
            name = machine if interface == "eth0" else f"{machine}-{interface}"
            lines.append(f"{address(machine, interface, ipv6=ipv6)} {name}")
    return "\n".join(lines) + "\n"


def bridge_commands() -> list[str]:
    """Return the `ip` commands that make the two switches."""
    commands = ["link set lo up"]
    for bridge in BRIDGES.values():
        commands += [f"link add {bridge} type bridge", f"link set {bridge} up"]
    return commands


def plug_commands(machine: str, pid: int) -> list[str]:
    """Return the commands that cable a machine (by its process 1) to the switches."""
    commands = []
    for interface in interfaces(machine):
        port = f"{machine}-{interface}"
        commands += [
            f"link add {port} type veth peer name {interface} netns {pid}",
            f"link set {port} master {BRIDGES[interface]} up",
        ]
    return commands


def machine_commands(machine: str, *, ipv6: bool = False) -> list[str]:
    """Return the commands that a machine gives itself."""
    commands = ["link set lo up"]
    for interface in interfaces(machine):
        own = address(machine, interface, ipv6=ipv6) + ("/64" if ipv6 else "/24")
        commands += [
            f"addr add {own} dev {interface}" + (" nodad" if ipv6 else ""),
            f"link set {interface} up",
        ]
    return commands


def cable_commands(machine: str, interface: str, *, up: bool) -> list[str]:
    """Return the command that pulls or plugs the cable at the switch.

    The switch's end, so that the machine sees what a pulled cable shows: no carrier, and what
    it sends is dropped without an error.
    """
    return [f"link set {machine}-{interface} {'up' if up else 'down'}"]


def unplug_commands(machine: str) -> list[str]:
    """Return the commands that take a dead machine's cables away."""
    return [f"link del {machine}-{interface}" for interface in interfaces(machine)]


def quiet_ipv6() -> None:
    """Keep IPv6 from sending packets of its own, so that byte counters mean something."""
    for scope in ("all", "default"):
        switch = Path(f"/proc/sys/net/ipv6/conf/{scope}/disable_ipv6")
        if switch.exists():
            switch.write_text("1")


def apply(commands: list[str]) -> None:
    """Run `ip` commands in the network namespace of this process."""
    subprocess.run(["ip", "-batch", "-"], input="\n".join(commands), text=True, check=True)


def counters(pid: int) -> dict[str, tuple[int, int]]:
    """Return {interface: (bytes received, bytes sent)} of the machine with this process 1."""
    counts = {}
    for line in Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]:
        name, _, rest = line.partition(":")
        fields = rest.split()
        counts[name.strip()] = (int(fields[0]), int(fields[8]))
    counts.pop("lo", None)
    return counts
