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

PORT, LAPTOP, STUDY = 2222, "n1", "/tmp/laptop/study"
LINES = 80
SPEC = "{entry: train.py, resources: {time: 5}, config: {lr: 1, lines: 80}}"
STARTER = ["experiment.yaml", "spec.schema.json", "train.py"]
HOST = "/run/sshd"
KEYGEN = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f")
SSHD = """
Port {port}
HostKey /run/sshd/host_key
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
TRAIN = """
import argparse, time
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--lines", type=int)
given = parser.parse_args()
print("local change, lr", given.lr, flush=True)
for step in range(given.lines):
    print("line", step, flush=True)
    time.sleep(0.1)
"""


@dataclass
class Laptop:
    """The machine at which one types, and the ssh server that it reaches."""

    cluster: Cluster
    place: Path
    server: int = 0
    """The process of sshd that listens."""

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
            [*words], machine=LAPTOP, env=self.environment, cwd=STUDY, **options
        )

    def on(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Type ``hpcrun --on login …`` to its end."""
        return self.run("hpcrun", "--on", LOGIN, *words, check=check)

    def run(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.cluster.run(
            [*words],
            machine=LAPTOP,
            env=self.environment,
            cwd=STUDY,
            check=check,
            timeout=120,
        )

    def cut(self) -> None:
        """End every connection, as where a network goes; the server goes on."""
        for monitor in _below(self.server):
            for pid in (*_below(monitor), monitor):
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


def _listening(child: subprocess.Popen[bytes]) -> int:
    """Return the process of an sshd that is started through others."""
    left = [child.pid]
    while left:
        pid = left.pop()
        if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sshd: /usr/sbin/sshd"):
            return pid
        left += _below(pid)
    raise RuntimeError("sshd does not run")


@pytest.fixture
def laptop(slurm: Cluster) -> Iterator[Laptop]:
    place = slurm.layout.shared / "ssh"
    for command in (
        ["rm", "-rf", str(place), f"{slurm.layout.home}/.local"],
        ["mkdir", str(place)],
        [*KEYGEN, str(place / "key")],
        ["cp", str(place / "key.pub"), str(place / "authorized_keys")],
        ["tee", str(place / "sshd_config")],
        ["tee", str(place / "config")],
    ):
        texts = {"sshd_config": SSHD, "config": SSH}
        text = texts.get(Path(command[-1]).name, "").format(port=PORT, place=place, login=LOGIN)
        slurm.run(command, input=text or None)
    # Root is nobody on the shared storage.
    slurm.run(["sh", "-c", f"mkdir -p {HOST} && rm -f {HOST}/*"], user=False)
    slurm.run([*KEYGEN, f"{HOST}/host_key"], user=False)
    log = (slurm.layout.logs / "sshd.log").open("ab")
    server = slurm.popen(
        ["/usr/sbin/sshd", "-D", "-e", "-f", str(place / "sshd_config")],
        user=False,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
    )
    found = Laptop(slurm, place)
    for line in (
        "rm -rf /tmp/laptop && mkdir -p /tmp/laptop/bin /tmp/laptop/study && cd /tmp/laptop/study",
        "for name in sh bash env ssh git sed setsid; do ln -s /usr/bin/$name ../bin/; done",
        f"echo '{SPEC}' >far.yaml && echo 'print(1)' >train.py",
        # The distribution of one of the two has no git, on either end.
        "command -v git >/dev/null || exit 0; git init -q -b main . && git add . && "
        "git -c user.name=a -c user.email=a@example.org commit -qm first",
    ):
        prepared = "cd /tmp/laptop/study 2>/dev/null; " + line
        slurm.on(LAPTOP, ["bash", "-c", prepared], user=True, cwd="/tmp")
    slurm.on(LAPTOP, ["tee", f"{STUDY}/train.py"], user=True, cwd="/tmp", input=TRAIN)

    def answers() -> bool:
        done = found.run("sh", "-c", f"ssh -F {place}/config {LOGIN} true", check=False)
        print(done.stderr, (slurm.layout.logs / "sshd.log").read_text())
        return done.returncode == 0

    try:
        until(answers, "sshd", 20)
        found.server = _listening(server)
        yield found
    finally:
        if found.server:
            os.kill(found.server, signal.SIGTERM)
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


def test_a_study_from_a_laptop(laptop: Laptop, tmp_path: Path) -> None:
    made = laptop.on("init", "first")
    assert "brought back" in made.stderr
    assert "bringing hpcrun" in made.stderr
    assert laptop.run("sh", "-c", "cd first && echo *").stdout.split() == STARTER

    submitted = laptop.on("submit", "far.yaml", "--sweep", "config.lr=1,2")
    assert "runs 0-1" in submitted.stderr
    shown = json.loads(laptop.on("show", "far/0", "--code", "--json").stdout)
    if laptop.run("sh", "-c", "[ -e .git ]", check=False).returncode == 0:
        commit = laptop.run("git", "rev-parse", "HEAD").stdout.strip()
        assert shown["git"] == {"commit": commit, "branch": "main", "dirty": True}
    else:
        assert shown["git"] is None

    followed, said = tmp_path / "out", tmp_path / "err"
    with followed.open("wb") as out, said.open("wb") as err:
        words = ("hpcrun", "--on", LOGIN, "logs", "-f", "far")
        follower = laptop.popen(*words, stdout=out, stderr=err)
        for count in (20, 100):
            until(lambda count=count: followed.read_bytes().count(b"\n") > count, "lines", 60)
            laptop.cut()
        assert follower.wait(120) == 0
    assert said.read_text().count("trying again") >= 2
    lines = followed.read_text().splitlines(keepends=True)
    for run in (0, 1):
        own = [line for line in lines if re.match(rf"{run} \|", line)]
        assert own[0] == f"{run} | local change, lr {run + 1}.0\n"
        assert own[1:] == [f"{run} | line {number}\n" for number in range(LINES)]

    laptop.on("report", "far", "-o", "far.html")
    assert "<!DOCTYPE html>" in laptop.run("sh", "-c", "read line <far.html; echo $line").stdout


def test_screens_pages_and_ends_from_a_laptop(laptop: Laptop) -> None:
    laptop.on("submit", "far.yaml", "name=held", "config.lines=3000")

    process, screen = laptop.screen("top", "held")
    _read(screen, b"held/0")
    laptop.cut()
    _read(screen, b"trying again")
    _read(screen, b"held/0")
    os.write(screen, b"q")
    assert process.wait(20) == 0
    os.close(screen)

    words = ("hpcrun", "--on", LOGIN, "report", "held", "--serve")
    served = laptop.popen(*words, stdout=subprocess.PIPE)
    assert served.stdout is not None
    address = re.search(rb"http://127.0.0.1:\S+", served.stdout.readline())
    assert address is not None
    asked = f"import urllib.request as r; print(r.urlopen({address[0].decode()!r}).read(400))"
    assert "hpcrun report" in laptop.run("python", "-c", asked).stdout
    served.send_signal(signal.SIGINT)
    served.wait(20)

    assert "held/0: cancelled" in laptop.on("cancel", "held").stdout
    until_then = time.monotonic() + 60
    while laptop.on("delete", "held", "--dry-run", check=False).returncode:
        assert time.monotonic() < until_then, "it is not over"
    process, screen = laptop.screen("delete", "held")
    _read(screen, b"[y/N]")
    # Python loses a Ctrl-C that comes between a prompt and its read; whoever types is slower.
    time.sleep(1)
    os.write(screen, b"\x03")
    _read(screen, b"interrupted")
    assert process.wait(20) == 130
    os.close(screen)
    completed = laptop.run(
        "env", "_HPCRUN_COMPLETE=1", f"COMP_WORDS=hpcrun --on {LOGIN} status he", "hpcrun"
    )
    assert "held" in completed.stdout

    def nobody() -> bool:
        running = laptop.cluster.run(["ps", "-u", laptop.cluster.user, "-o", "args"]).stdout
        return "other_end" not in running and "hpcrun --on" not in running

    until(nobody, "nothing is left behind", 20)
