"""``hpcrun --on`` from another machine, through a real sshd, with a real Slurm behind it.

The laptop is a compute node that takes part in nothing else: it has a disk of its own, and reaches
the login node by its network. What is brought to the login node finds there a system's Python, the
users' shell and Slurm's commands, and no hpcrun.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import until
from tests.testbed import Cluster
from tests.testbed.layout import LOGIN

pytestmark = pytest.mark.timeout(300)

PORT, LAPTOP = 2222, "n1"
LINES = 80
SSHD = """
Port {port}
HostKey {place}/host_key
AuthorizedKeysFile {place}/authorized_keys
PidFile none
UsePAM no
StrictModes no
"""
SSH = """
Host {login}
  Port {port}
  IdentityFile {place}/key
  UserKnownHostsFile {place}/known_hosts
  StrictHostKeyChecking accept-new
"""
TRAIN = f"""
import argparse, time
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
print("local change, lr", parser.parse_args().lr, flush=True)
for step in range({LINES}):
    print("line", step, flush=True)
    time.sleep(0.1)
"""


@dataclass
class Laptop:
    """The machine at which one types, and the ssh server that it reaches."""

    cluster: Cluster
    server: subprocess.Popen[bytes]
    place: Path

    @property
    def environment(self) -> dict[str, str]:
        return {
            "HOME": "/tmp/laptop",
            "HPCRUN_SSH": f"ssh -F {self.place}/config",
            "TERM": "xterm-256color",
            # Slurm's commands are not here.
            "PATH": f"{Path(self.cluster.python).parent}:/tmp/laptop/bin",
        }

    def popen(self, *words: str, **options: Any) -> subprocess.Popen[Any]:
        return self.cluster.popen(
            [*words], machine=LAPTOP, env=self.environment, cwd="/tmp/laptop/study", **options
        )

    def on(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Type ``hpcrun --on login …`` to its end."""
        return self.run("hpcrun", "--on", LOGIN, *words, check=check)

    def run(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.cluster.run(
            [*words],
            machine=LAPTOP,
            env=self.environment,
            cwd="/tmp/laptop/study",
            check=check,
            timeout=120,
        )

    def cut(self) -> None:
        """End every connection, as where a network goes; the server goes on."""
        for pid in _below(self.server.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def screen(self, *words: str) -> tuple[subprocess.Popen[Any], int]:
        """Type a command at a terminal; return it and the terminal's other end."""
        master, slave = pty.openpty()
        ends: dict[str, Any] = {"stdin": slave, "stdout": slave, "stderr": slave}
        process = self.popen("setsid", "--ctty", "--wait", "hpcrun", "--on", LOGIN, *words, **ends)
        os.close(slave)
        return process, master


def _below(pid: int) -> list[int]:
    """The processes of sshd's connections: its children, but not what a shell of theirs left."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == pid:
                found.append(int(entry.name))
    return found


def _server(child: subprocess.Popen[bytes]) -> int:
    """The process of the listening sshd, which is started through others."""
    seen, left = [], [child.pid]
    while left:
        pid = left.pop()
        seen.append(pid)
        left += _below(pid)
    for pid in seen:
        with contextlib.suppress(OSError):
            if b"sshd" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]:
                return pid
    return child.pid


@pytest.fixture
def laptop(slurm: Cluster) -> Iterator[Laptop]:
    place = slurm.layout.shared / "ssh"
    for command in (
        ["rm", "-rf", str(place), f"{slurm.layout.home}/.local"],
        ["mkdir", str(place)],
        *(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(place / name)]
            for name in ("host_key", "key")
        ),
        ["cp", str(place / "key.pub"), str(place / "authorized_keys")],
        ["tee", str(place / "sshd_config")],
        ["tee", str(place / "config")],
    ):
        texts = {"sshd_config": SSHD, "config": SSH}
        text = texts.get(Path(command[-1]).name, "").format(port=PORT, place=place, login=LOGIN)
        slurm.run(command, input=text or None)
    slurm.run(["mkdir", "-p", "/run/sshd"], user=False)
    log = (slurm.layout.logs / "sshd.log").open("ab")
    server = slurm.popen(
        ["/usr/sbin/sshd", "-D", "-e", "-f", str(place / "sshd_config")],
        user=False,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
    )
    found = Laptop(slurm, server, place)
    for line in (
        "rm -rf /tmp/laptop && mkdir -p /tmp/laptop/bin /tmp/laptop/study && cd /tmp/laptop/study",
        "for name in sh bash env ssh git sed setsid; do ln -s $(command -v $name) ../bin/; done",
        "git init -q -b main . && echo 'print(1)' > train.py && git add .",
        "git -c user.name=a -c user.email=a@example.org commit -qm first",
    ):
        prepared = "cd /tmp/laptop/study 2>/dev/null; " + line
        slurm.on(LAPTOP, ["bash", "-c", prepared], user=True, cwd="/tmp")
    slurm.on(LAPTOP, ["tee", "/tmp/laptop/study/train.py"], user=True, cwd="/tmp", input=TRAIN)

    def answers() -> bool:
        done = found.run("sh", "-c", f"ssh -F {place}/config {LOGIN} true", check=False)
        return done.returncode == 0

    try:
        until(answers, "sshd", 20)
        yield found
    finally:
        os.kill(_server(server), signal.SIGTERM)
        server.wait(10)
        log.close()
        shutil.rmtree(place, ignore_errors=True)


def _read(master: int, wanted: bytes, seconds: float = 30) -> bytes:
    """Read a terminal until it shows something."""
    shown = b""
    until_then = time.monotonic() + seconds
    while wanted not in shown and time.monotonic() < until_then:
        ready, _, _ = select.select([master], [], [], 0.5)
        if ready:
            try:
                shown += os.read(master, 1 << 16)
            except OSError:
                break
    assert wanted in shown, shown[-2000:]
    return shown


@pytest.mark.thorough
def test_a_study_from_a_laptop(laptop: Laptop) -> None:
    made = laptop.on("init")
    assert "brought back" in made.stderr
    assert "bringing hpcrun" in made.stderr
    written = laptop.run("sh", "-c", "cat experiment.yaml").stdout
    assert "entry: train.py" in written

    words = ("experiment.yaml", "name=far", "resources.time=00:05:00", "environment.python=null")
    submitted = laptop.on("submit", *words, "--sweep", "config.lr=1,2")
    assert "2 runs" in submitted.stdout
    shown = json.loads(laptop.on("show", "far/0", "--code", "--json").stdout)
    commit = laptop.run("git", "rev-parse", "HEAD").stdout.strip()
    has_git = laptop.cluster.run(["sh", "-c", "command -v git"], check=False).returncode == 0
    if has_git:
        assert shown["git"] == {"commit": commit, "branch": "main", "dirty": True}
    else:
        assert "has no git" in submitted.stderr
        assert shown["git"] is None

    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    follower = laptop.popen("hpcrun", "--on", LOGIN, "logs", "-f", "far", **pipes)
    assert follower.stdout is not None
    first = [follower.stdout.readline() for _ in range(20)]
    laptop.server = _Server(_server(laptop.server))
    laptop.cut()
    rest, errors = follower.communicate(timeout=120)
    assert "trying again" in errors
    assert follower.returncode == 0, errors
    lines = [*first, *rest.splitlines(keepends=True)]
    for run in (0, 1):
        own = [line for line in lines if re.match(rf"{run} \|", line)]
        assert own[0] == f"{run} | local change, lr {run + 1}.0\n"
        assert own[1:] == [f"{run} | line {number}\n" for number in range(LINES)]

    laptop.on("report", "far", "-o", "far.html")
    assert "<!DOCTYPE html>" in laptop.run("sh", "-c", "read line <far.html; echo $line").stdout


def _Server(pid: int) -> Any:  # noqa: N802
    return type("Server", (), {"pid": pid, "wait": lambda self, timeout: None})()


def test_screens_pages_and_ends_from_a_laptop(laptop: Laptop) -> None:
    submitted = laptop.on("submit", "--help")
    assert "Usage: hpcrun submit" in submitted.stdout
