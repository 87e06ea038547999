"""Boots one machine of the bed: ``python -m tests.testbed.node BASE MACHINE``, run in the bed.

Process 1 of the machine is a fork of this program, which ends once the machine is up.
"""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from pathlib import Path

from . import cgroups, clock, daemons, kernel, network, rootfs, storage
from .enter import script_environment
from .layout import LOGIN, Layout, is_ipv6, is_light, visible_paths


def main() -> None:
    """Boot the machine sys.argv[2] of the bed at sys.argv[1]."""
    layout, machine = Layout(Path(sys.argv[1])), sys.argv[2]
    cgroup = f"{layout.name}/{machine}"
    cgroups.create(cgroup)
    up, inner_up = os.pipe()
    inner_plugged, plugged = os.pipe()
    kernel.unshare(kernel.CLONE_NEWPID)
    pid = os.fork()
    if pid == 0:
        os.close(up)
        os.close(plugged)
        _be_the_machine(layout, machine, cgroup, inner_up, inner_plugged)
    os.close(inner_up)
    with open("/proc/self/ns/pid") as own:
        kernel.setns(own.fileno(), kernel.CLONE_NEWPID)
    if os.read(up, 1):
        network.apply(network.plug_commands(machine, pid))
        os.write(plugged, b"1")
    if not os.read(up, 1):
        sys.exit(f"{machine} did not boot: see {layout.logs}/{machine}.log")


def _be_the_machine(layout: Layout, machine: str, cgroup: str, up: int, plugged: int) -> None:
    try:
        os.setsid()
        log = os.open(layout.logs / f"{machine}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        _boot(layout, machine, cgroup, up, plugged)
        os.write(up, b"2")
        os.close(up)
        kernel.reap_for_ever()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _boot(layout: Layout, machine: str, cgroup: str, up: int, plugged: int) -> None:
    outer_pid = kernel.pid_in_mounted_proc()
    cgroups.join(cgroup)
    kernel.unshare(
        kernel.CLONE_NEWNS
        | kernel.CLONE_NEWUTS
        | kernel.CLONE_NEWIPC
        | kernel.CLONE_NEWNET
        | kernel.CLONE_NEWCGROUP
    )
    os.write(up, b"1")
    if not os.read(plugged, 1):
        raise RuntimeError("no cables")
    kernel.set_hostname(machine)
    ipv6 = is_ipv6(layout)
    if not ipv6:
        network.quiet_ipv6()
    network.apply(network.machine_commands(machine, ipv6=ipv6))
    root = str(layout.rootfs)
    rootfs.make_private(root, visible_paths(layout), is_light(layout))
    kernel.mount("tmpfs", f"{root}/sys/fs/cgroup", "tmpfs", 0, "mode=755,size=1m")
    cgroups.mount_all(Path(root, "sys/fs/cgroup"))
    Path(root, "run/munge").mkdir()
    if machine == LOGIN:
        Path(root, "run/mysqld").mkdir()
        kernel.bind(str(layout.database), f"{root}/run/mysqld", deep=False)
    layout.spool(machine).mkdir(parents=True, exist_ok=True)
    storage.mount(layout, machine)
    clock.set_ahead(layout, machine)
    # Not by chroot, in which the kernel lets nobody make a user namespace, as containers need.
    pivot = 'cd "$1" && pivot_root . . && umount -l .'
    subprocess.run(["sh", "-c", pivot, "sh", root], env=script_environment(), check=True)
    os.chdir("/")
    for command in daemons.at_boot(layout, machine):
        subprocess.run(command, env=script_environment(), check=True)
    layout.pid_file(machine).write_text(str(outer_pid))


if __name__ == "__main__":
    main()
