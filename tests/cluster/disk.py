"""A file system of 24 MiB that all machines of a bed share: it can be full, or read-only."""

from __future__ import annotations

import contextlib
import copy
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.cluster.ward import Ward
from tests.testbed import Cluster
from tests.testbed.layout import LOGIN


class Disk:
    """The file system, where it is mounted.

    Parameters
    ----------
    ward
        A desk whose experiments are to lie there.
    """

    def __init__(self, ward: Ward, there: Path) -> None:
        self._cluster: Cluster = ward.cluster
        self._there = there
        self._machines = [LOGIN, *ward.cluster.nodes]
        self.ward = copy.copy(ward)
        self.ward.root = there

    def fill(self) -> None:
        """Leave no block free."""
        for size in ("64k", "1k"):
            command = ["dd", "if=/dev/zero", f"of={self._filler}", f"bs={size}"]
            self._cluster.run([*command, "oflag=append", "conv=notrunc"], check=False)

    def free(self) -> None:
        """Take back what `fill` took."""
        self._cluster.run(["rm", "-f", str(self._filler)])

    @property
    def _filler(self) -> Path:
        return self._there / "filler"

    def forbid(self) -> None:
        """Nothing can be created or opened for writing; what is open already can be written to."""
        for machine in self._machines:
            script = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1"'
            self._as_root(machine, ["sh", "-c", script, "sh", str(self._there)])

    def allow(self) -> None:
        """Take back what `forbid` did."""
        for machine in self._machines:
            self._as_root(machine, ["umount", "-l", str(self._there)])

    def _as_root(self, machine: str, command: list[str]) -> None:
        self._cluster.run(command, user=False, machine=machine)


@contextlib.contextmanager
def small_disk(ward: Ward) -> Iterator[Disk]:
    """Mount a new one on all machines and here, for a while."""
    cluster, there = ward.cluster, Path(ward.cluster.root) / "home" / "small"
    machines = [LOGIN, *cluster.nodes]
    with tempfile.TemporaryDirectory() as directory:
        image = Path(directory) / "image"
        with image.open("wb") as stream:
            stream.truncate(24 << 20)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", image], check=True)
        attach = ["losetup", "--find", "--show", str(image)]
        device = subprocess.run(attach, check=True, capture_output=True, text=True).stdout.strip()
        try:
            cluster.run(["mkdir", "-p", str(there)])
            subprocess.run(["mount", device, there], check=True)
            for machine in machines:
                cluster.run(["mount", device, str(there)], user=False, machine=machine)
            cluster.run(["chown", cluster.user, str(there)], user=False)
            # The compiler of DeepSpeed's operator needs more memory and room than the runs.
            cluster.run(["ln", "-s", str(ward.root / ".hpcrun"), str(there)])
            yield Disk(ward, there)
        finally:
            for machine in machines:
                cluster.run(["umount", "-l", str(there)], user=False, machine=machine, check=False)
            subprocess.run(["umount", "-l", there], check=False)
            subprocess.run(["losetup", "--detach", device], check=True)
