"""Shared storage as NFS has it: a client on each machine (nfs_client.c) over one directory."""

from __future__ import annotations

import json
import mmap
import struct
import subprocess
from pathlib import Path

from .layout import Layout

_SOURCE = Path(__file__).with_name("nfs_client.c")

# The times of nfs(5) and of the kernel's writeback, and a tenth of them, which most tests use.
REAL = "acregmin=3,acregmax=60,acdirmin=30,acdirmax=60,writeback=30"
TENTH = "acregmin=0.3,acregmax=6,acdirmin=3,acdirmax=6,writeback=3"
# As a local disk: no client at all.
LOCAL = ""

CALLS = ("lookup", "getattr", "open", "read", "write", "readdir", "change")


def build(program: Path) -> None:
    """Compile the client."""
    command = ["gcc", "-O2", "-I/usr/include/fuse3", "-o", program, _SOURCE, "-lfuse3", "-lpthread"]
    subprocess.run(list(map(str, command)), check=True)


def mount(layout: Layout, machine: str) -> None:
    """Mount the shared file system on a machine, before it leaves for its own root directory."""
    options = json.loads(layout.state.read_text())["settings"]["storage"]
    if not options:
        return
    inside = f"{layout.rootfs}{layout.shared}"
    command = [
        layout.storage_client,
        layout.shared,
        inside,
        layout.storage_control(machine),
        options,
    ]
    subprocess.run(list(map(str, command)), check=True)


class Client:
    """What can be set and read of a mounted client, by its control file."""

    def __init__(self, control: Path) -> None:
        with control.open("r+b") as file:
            self._words = mmap.mmap(file.fileno(), (2 + len(CALLS)) * 8)

    def _set(self, word: int, value: int) -> None:
        self._words[word * 8 : word * 8 + 8] = struct.pack("q", value)

    def silence(self, silent: bool) -> None:
        """Have the server answer no call, as one that is down, or answer again."""
        self._set(0, int(silent))

    def delay(self, seconds: float) -> None:
        """Let each call to the server take so long."""
        self._set(1, round(seconds * 1e6))

    def calls(self) -> dict[str, int]:
        """Return how often the server was called so far, by kind."""
        return dict(zip(CALLS, struct.unpack(f"{len(CALLS)}q", self._words[16:]), strict=True))
