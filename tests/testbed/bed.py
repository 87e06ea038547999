"""Machines, networks and commands: all of the test bed that is not Slurm."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.waiting import until

from . import cgroups, guardian, network
from .enter import Machine, popen, script_environment
from .layout import LOGIN, REPOSITORY, Layout, existing

USER = "hpcrun-test"
_FIRST_FREE_UID = 61500


class Bed:
    """Machines in namespaces of their own, and a guardian that takes them down."""

    def __init__(self) -> None:
        self.user, self.uid = USER, _uid()
        self.python = sys.executable
        self._layout: Layout | None = None
        self._guardian: subprocess.Popen[bytes] | None = None
        self._children: list[subprocess.Popen[Any]] = []

    @property
    def layout(self) -> Layout:
        """Where the files of this bed lie."""
        if self._layout is None:
            raise RuntimeError("the cluster is not up")
        return self._layout

    @property
    def root(self) -> Path:
        """The directory that stands for the shared file system."""
        return self.layout.shared

    def _start_guardian(self, place: Layout, *, by_hand: bool) -> None:
        command = [self.python, "-m", "tests.testbed.guardian", str(place.base)]
        with (place.logs / "bed.log").open("ab") as log:
            self._guardian = subprocess.Popen(
                command + ["--hand"] * by_hand,
                stdin=subprocess.DEVNULL if by_hand else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=REPOSITORY,
                env=script_environment(),
                start_new_session=True,
            )
        assert self._guardian.stdout is not None
        if self._guardian.stdout.readline() != b"ready\n":
            raise RuntimeError("the bed's namespaces could not be made")
        self._guardian.stdout.close()

    def down(self) -> None:
        """Take everything down and delete it."""
        place, self._layout = self._layout, None
        if place is None:
            return
        if self._guardian is None:
            if place.alive():
                os.kill(int(place.lock.read_text()), signal.SIGTERM)
        else:
            if self._guardian.stdin:
                self._guardian.stdin.close()
            # A process that a test forked and left may have the other end of that, too.
            self._guardian.terminate()

        def gone() -> bool:
            # The bed's process 1 cannot end before its last child, which may be one of ours.
            for child in self._children:
                child.poll()
            over = self._guardian is None or self._guardian.poll() is not None
            return over and not place.alive()

        until(gone, "down", 120)
        guardian.remove(place)
        self._guardian = None

    def environment(self, *, user: bool = True) -> dict[str, str]:
        """Return the environment variables of commands."""
        clean = {
            "PATH": f"{Path(self.python).parent}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.layout.home) if user else "/",
            "LANG": "C.UTF-8",
            "SHELL": "/bin/bash",
            "SLURM_CONF": "/etc/slurm/slurm.conf",
            "USER": self.user if user else "root",
            "LOGNAME": self.user if user else "root",
        }
        if not user:
            clean["PATH"] += ":/usr/sbin:/sbin"
        return clean

    def popen(
        self,
        argv: Sequence[str],
        *,
        user: bool = True,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        machine: str = LOGIN,
        **options: Any,
    ) -> subprocess.Popen[Any]:
        """Start a command on the login node, as the ordinary user (see `run`)."""
        clean = self.environment(user=user)
        child = popen(
            self._machine(machine),
            argv,
            uid=self.uid if user else 0,
            env=clean | dict(env or {}),
            cwd=str(cwd or clean["HOME"]),
            **options,
        )
        self._children = [old for old in self._children if old.poll() is None] + [child]
        return child

    def run(
        self,
        argv: Sequence[str],
        *,
        user: bool = True,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        timeout: float = 120,
        check: bool = True,
        input: str | None = None,
        machine: str = LOGIN,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the login node and return its output as text.

        Parameters
        ----------
        user
            As the ordinary user; False: as root.
        env
            What to add to a clean environment.
        cwd
            Default: the user's home.
        """
        child = self.popen(
            argv,
            user=user,
            env=env,
            cwd=cwd,
            machine=machine,
            stdin=subprocess.DEVNULL if input is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            out, err = child.communicate(input, timeout=timeout)
        except BaseException as error:
            child.kill()
            out, err = child.communicate()
            if isinstance(error, subprocess.TimeoutExpired):
                note(error, f"stdout: {out}\nstderr: {err}")
            raise
        done = subprocess.CompletedProcess(list(argv), child.returncode, out, err)
        return checked(done) if check else done

    def on(
        self, node: str, argv: Sequence[str], *, user: bool = False, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a node, as root unless `user`; otherwise as `run`."""
        return self.run(argv, user=user, machine=node, **options)

    def _machine(self, name: str) -> Machine:
        try:
            pid = int(self.layout.pid_file(name).read_text())
        except FileNotFoundError:
            raise RuntimeError(f"{name} is off") from None
        return Machine(pid, f"{self.layout.name}/{name}")

    def _in_bed(self, argv: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        child = popen(
            self._machine(guardian.BED),
            argv,
            uid=0,
            env=script_environment(),
            cwd=str(REPOSITORY),
            text=True,
            **options,
        )
        self._children.append(child)
        return child

    def _ip(self, commands: list[str], *, check: bool = True) -> None:
        pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE}
        child = self._in_bed(["ip", "-force", "-batch", "-"], **pipes)
        _, errors = child.communicate("\n".join(commands))
        if check and child.returncode:
            raise RuntimeError(f"ip failed on {commands}: {errors}")

    def begin_boot(self, machine: str) -> subprocess.Popen[str]:
        """Start a machine; `end_boot` waits for it, so that several can start at once."""
        base = str(self.layout.base)
        return self._in_bed(
            [self.python, "-m", "tests.testbed.node", base, machine], stderr=subprocess.PIPE
        )

    def end_boot(self, boot: subprocess.Popen[str]) -> None:
        """Wait until a machine's daemons are started."""
        _, errors = boot.communicate(timeout=60)
        if boot.returncode:
            raise RuntimeError(f"boot failed: {errors}")

    def is_on(self, node: str) -> bool:
        """Say whether a node has power."""
        return self.layout.pid_file(node).exists()

    def power_off(self, node: str) -> None:
        """Cut a node's power: it falls silent, sends no last packet, and all on it is gone."""
        machine = self._machine(node)
        for interface in network.interfaces(node):
            self.link(node, interface, up=False)
        os.kill(machine.pid, signal.SIGKILL)
        self.layout.pid_file(node).unlink()
        until(lambda: not cgroups.processes(machine.cgroup), f"{node} dead", 10)
        # The kernel takes them away too, some time after the last process: either is fine.
        self._ip(network.unplug_commands(node), check=False)
        cgroups.remove(machine.cgroup)

    def link(self, node: str, interface: str, *, up: bool) -> None:
        """Pull (or plug) the cable of "eth0" or "ib0": no carrier, packets vanish silently."""
        self._ip(network.cable_commands(node, interface, up=up))

    def plug_everything(self, nodes: Sequence[str]) -> None:
        """Plug every cable of some nodes."""
        commands: list[str] = []
        for node in nodes:
            for interface in network.interfaces(node):
                commands += network.cable_commands(node, interface, up=True)
        self._ip(commands)

    def kill_user_processes(self, machine: str) -> None:
        """Kill what the ordinary user left running on a machine."""
        for pid in cgroups.processes(self._machine(machine).cgroup):
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                if Path(f"/proc/{pid}").stat().st_uid == self.uid:
                    os.kill(pid, signal.SIGKILL)

    def interface_bytes(self, node: str) -> dict[str, tuple[int, int]]:
        """Return {"eth0": (received, sent), "ib0": ...} in bytes since the node's boot."""
        return network.counters(self._machine(node).pid)

    def log_tails(self, lines: int = 12) -> str:
        """Return the last lines of every log of the bed, for a failure's report."""
        parts = []
        for log in sorted(self.layout.logs.glob("*.log")):
            tail = log.read_text(errors="replace").splitlines()[-lines:]
            if tail:
                parts.append(f"--- {log.name}\n" + "\n".join(tail))
        return "\n".join(parts)


def remove_dead_beds() -> None:
    """Delete what beds left whose guardian was killed; their processes died with it."""
    for place in existing():
        # Without a lock it may be another bed that is only just being made.
        settled = place.lock.exists() or time.time() - place.base.stat().st_mtime > 600
        if settled and not place.alive():
            guardian.remove(place)


def checked(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    """Return a command that has ended; raise CalledProcessError, with its output, if it failed."""
    if done.returncode:
        failure = subprocess.CalledProcessError(
            done.returncode, done.args, done.stdout, done.stderr
        )
        note(failure, f"stdout: {done.stdout}\nstderr: {done.stderr}")
        raise failure
    return done


def note(error: BaseException, text: str) -> None:
    """Add to what an exception says (from Python 3.11 on)."""
    if hasattr(error, "add_note"):
        error.add_note(text)


def _uid() -> int:
    try:
        return pwd.getpwnam(USER).pw_uid
    except KeyError:
        taken = {entry.pw_uid for entry in pwd.getpwall()}
        return next(uid for uid in range(_FIRST_FREE_UID, 65000) if uid not in taken)
