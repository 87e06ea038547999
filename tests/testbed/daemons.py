"""How the daemons are started and how one knows that they are there."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from .config import Settings, cgroup_conf, gres_conf, slurm_conf, slurmdbd_conf
from .layout import LOGIN, Layout


def munged(layout: Layout) -> list[str]:
    """Return the command of a machine's munge daemon."""
    return [
        "munged",
        f"--key-file={layout.munge_key}",
        "--log-file=/run/munge/munged.log",
        "--pid-file=/run/munge/munged.pid",
        "--seed-file=/run/munge/munged.seed",
        "--num-threads=2",
    ]


def at_boot(layout: Layout, machine: str) -> list[list[str]]:
    """Return what a machine starts by itself; each command goes to the background."""
    return [munged(layout)] if machine == LOGIN else [munged(layout), ["slurmd"]]


def write_files(layout: Layout, settings: Settings) -> None:
    """Write configuration, key, device nodes and state directories of a new bed."""
    layout.munge_key.write_bytes(secrets.token_bytes(64))
    layout.munge_key.chmod(0o400)
    files = {
        "slurm.conf": slurm_conf(settings, layout),
        "slurmdbd.conf": slurmdbd_conf(settings, layout),
        "cgroup.conf": cgroup_conf(),
        "gres.conf": gres_conf(settings, layout),
        **settings.files,
    }
    for name, text in files.items():
        (layout.etc / name).write_text(text)
        (layout.etc / name).chmod(0o600 if name == "slurmdbd.conf" else 0o644)
    for index in range(settings.gpus):
        device = layout.devices / f"gpu{index}"
        os.mknod(device, 0o666 | 0o020000, os.makedev(195, index))
        device.chmod(0o666)


def listening(pid: int, port: int) -> bool:
    """Say whether something listens on a TCP port in the network namespace of `pid`."""
    wanted = f":{port:04X}"
    for table in ("tcp", "tcp6"):
        path = Path(f"/proc/{pid}/net/{table}")
        for line in path.read_text().splitlines()[1:] if path.exists() else ():
            fields = line.split()
            if fields[1].endswith(wanted) and fields[3] == "0A":
                return True
    return False
