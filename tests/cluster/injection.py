"""What can be done to a run from outside, and undone: to a node, the storage, Slurm's daemons."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tests.cluster.disk import Disk
from tests.testbed import Cluster

_BROKEN = """#!/bin/sh
echo 'scontrol: error: slurm_receive_msg: Zero Bytes were transmitted or received' >&2
exit 1
"""


class Injection:
    """Faults that are there for as long as their context.

    Parameters
    ----------
    cluster
        The test bed.
    node
        Which node is meant.
    disk
        Where the run's files lie.
    """

    def __init__(self, cluster: Cluster, node: str, disk: Disk | None) -> None:
        self._cluster, self._node, self._disk = cluster, node, disk

    @contextlib.contextmanager
    def power(self) -> Iterator[None]:
        """The node loses its power; Slurm may use it again soon after it is back."""
        self._cluster.power_off(self._node)
        yield
        self._cluster.boot(self._node, wait=False)

    @contextlib.contextmanager
    def links(self) -> Iterator[None]:
        """The node loses all its links."""
        with self._without("eth0", "ib0"):
            yield

    @contextlib.contextmanager
    def fabric(self) -> Iterator[None]:
        """The node loses its link to the fabric."""
        with self._without("ib0"):
            yield

    @contextlib.contextmanager
    def _without(self, *interfaces: str) -> Iterator[None]:
        for interface in interfaces:
            self._cluster.link(self._node, interface, up=False)
        yield
        for interface in interfaces:
            self._cluster.link(self._node, interface, up=True)

    @contextlib.contextmanager
    def full_disk(self) -> Iterator[None]:
        """No block is free."""
        assert self._disk is not None
        self._disk.fill()
        yield
        self._disk.free()

    @contextlib.contextmanager
    def read_only_disk(self) -> Iterator[None]:
        """No file can be opened for writing."""
        assert self._disk is not None
        self._disk.forbid()
        yield
        self._disk.allow()

    @contextlib.contextmanager
    def controller(self) -> Iterator[None]:
        """There is no slurmctld."""
        self._cluster.stop_controller()
        yield
        self._cluster.start_controller()

    @contextlib.contextmanager
    def database_daemon(self) -> Iterator[None]:
        """There is no slurmdbd."""
        self._cluster.stop_database_daemon()
        yield
        self._cluster.start_database_daemon()

    @contextlib.contextmanager
    def scontrol(self) -> Iterator[None]:
        """On every node scontrol fails."""
        broken = Path(self._cluster.root) / "scontrol"
        broken.write_text(_BROKEN)
        broken.chmod(0o755)
        for node in self._cluster.nodes:
            script = 'mount --bind "$1" "$(command -v scontrol)"'
            self._cluster.on(node, ["sh", "-c", script, "sh", str(broken)])
        yield
        for node in self._cluster.nodes:
            self._cluster.on(node, ["sh", "-c", 'umount "$(command -v scontrol)"'])
