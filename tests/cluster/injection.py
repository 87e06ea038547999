"""What can be done to a run from outside, and undone: to a node, the storage, Slurm's daemons."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

from tests.cluster.disk import Disk
from tests.testbed import Cluster

Context: TypeAlias = contextlib.AbstractContextManager[None]

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

    def power(self) -> Context:
        """The node loses its power; Slurm may use it again soon after it is back."""
        return _for_a_while(
            lambda: self._cluster.power_off(self._node),
            lambda: self._cluster.boot(self._node, wait=False),
        )

    def links(self) -> Context:
        """The node loses all its links."""
        return self._without("eth0", "ib0")

    def fabric(self) -> Context:
        """The node loses its link to the fabric."""
        return self._without("ib0")

    def _without(self, *interfaces: str) -> Context:
        def switch(*, up: bool) -> None:
            for interface in interfaces:
                self._cluster.link(self._node, interface, up=up)

        return _for_a_while(lambda: switch(up=False), lambda: switch(up=True))

    def full_disk(self) -> Context:
        """No block is free."""
        assert self._disk is not None
        return _for_a_while(self._disk.fill, self._disk.free)

    def read_only_disk(self) -> Context:
        """No file can be opened for writing."""
        assert self._disk is not None
        return _for_a_while(self._disk.forbid, self._disk.allow)

    def controller(self) -> Context:
        """There is no slurmctld."""
        return _for_a_while(self._cluster.stop_controller, self._cluster.start_controller)

    def database_daemon(self) -> Context:
        """There is no slurmdbd."""
        return _for_a_while(self._cluster.stop_database_daemon, self._cluster.start_database_daemon)

    def scontrol(self) -> Context:
        """On every node scontrol fails."""
        broken = Path(self._cluster.root) / "scontrol"
        broken.write_text(_BROKEN)
        broken.chmod(0o755)

        def on_all(script: str) -> None:
            for node in self._cluster.nodes:
                self._cluster.on(node, ["sh", "-c", script, "sh", str(broken)])

        return _for_a_while(
            lambda: on_all('mount --bind "$1" "$(command -v scontrol)"'),
            lambda: on_all('umount "$(command -v scontrol)"'),
        )


@contextlib.contextmanager
def _for_a_while(do: Callable[[], object], undo: Callable[[], object]) -> Iterator[None]:
    do()
    try:
        yield
    finally:
        undo()
