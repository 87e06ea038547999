"""Machines whose clocks are wrong: a library (clock.c) that all their programs load."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from . import kernel
from .layout import Layout

_SOURCE = Path(__file__).with_name("clock.c")
# Below the root directory: what the dynamic linker loads into every program.
PRELOADED = "etc/ld.so.preload"


def build(library: Path, ahead: int) -> None:
    """Compile the library of a clock that is so many seconds ahead."""
    command = ["gcc", "-O2", "-shared", "-fPIC", f"-DAHEAD={ahead}", "-o", library, _SOURCE]
    subprocess.run(list(map(str, command)), check=True)


def set_ahead(layout: Layout, machine: str) -> None:
    """Set a machine's clock, before it leaves for its own root directory."""
    ahead = json.loads(layout.state.read_text())["settings"]["ahead"].get(machine, 0)
    if ahead:
        preloaded = layout.spool(machine).with_name("ld.so.preload")
        preloaded.write_text(f"{layout.clock(ahead)}\n")
        kernel.bind(str(preloaded), f"{layout.rootfs}/{PRELOADED}", deep=False)
