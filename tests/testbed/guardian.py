"""The process that outlives the tests: it holds a bed up and takes it down, whatever happens.

``python -m tests.testbed.guardian BASE`` makes the bed's namespaces, says "ready" and waits for
the end of its standard input (or SIGTERM). The bed is a process namespace below it, so killing
one process ends all of them, and with them go their mounts and networks.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import sys
import traceback
from pathlib import Path

from . import cgroups, database, kernel, network, rootfs
from .layout import Layout, is_light, visible_paths

BED = "bed"


def main() -> None:
    """Hold up the bed at sys.argv[1] ("--hand": until SIGTERM, standard input is ignored)."""
    layout = Layout(Path(sys.argv[1]))
    by_hand = "--hand" in sys.argv
    lock = layout.lock.open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    lock.write(str(os.getpid()))
    lock.flush()
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    cgroups.create(f"{layout.name}/{BED}")
    ready, announce = os.pipe()
    kernel.unshare(kernel.CLONE_NEWPID)
    bed = os.fork()
    if bed == 0:
        os.close(ready)
        _be_the_bed(layout, announce)
    os.close(announce)
    try:
        if os.read(ready, 1):
            print("ready", flush=True)
            _wait_for_the_end(by_hand)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.kill(bed, signal.SIGKILL)
        os.waitpid(bed, 0)
        remove(layout)


def _wait_for_the_end(by_hand: bool) -> None:
    while by_hand:
        signal.pause()
    while select.select([0], [], [])[0] and os.read(0, 4096):
        pass


def remove(layout: Layout) -> None:
    """Delete what a dead bed leaves: nothing of it runs or is mounted any more."""
    cgroups.remove(layout.name)
    shutil.rmtree(layout.base, ignore_errors=True)


def _be_the_bed(layout: Layout, announce: int) -> None:
    try:
        kernel.die_with_parent()
        # Entered as the bed by processes that must not stop it from the terminal.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _set_up(layout)
        os.write(announce, b"1")
        os.close(announce)
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1):
            os.dup2(null, fd)
        kernel.reap_for_ever()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _set_up(layout: Layout) -> None:
    state = json.loads(layout.state.read_text())
    cgroups.join(f"{layout.name}/{BED}")
    kernel.unshare(
        kernel.CLONE_NEWNS | kernel.CLONE_NEWUTS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWNET
    )
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    database.start(layout)
    network.quiet_ipv6()
    network.apply(network.bridge_commands())
    nodes = network.node_names(state["nodes"])
    user = (state["user"], state["uid"])
    rootfs.build(layout, state["lower"], user, nodes, visible_paths(layout), is_light(layout))
    layout.pid_file(BED).parent.mkdir(parents=True)
    layout.pid_file(BED).write_text(str(kernel.pid_in_mounted_proc()))


if __name__ == "__main__":
    main()
