"""A Slurm cluster on this machine: nodes that can lose power, networks that can lose a cable."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection
from dataclasses import asdict
from types import TracebackType
from typing import Any

from tests.support.waiting import until

from . import clock, daemons, jobs, network, storage
from .bed import Bed, note, remove_dead_beds
from .config import CONTROLLER_PORT, DATABASE_PORT, Settings
from .layout import LOGIN, Layout, create
from .prerequisites import Unavailable, lower_root, missing

_CONTROLLERS = {"slurmdbd": DATABASE_PORT, "slurmctld": CONTROLLER_PORT}


class Cluster(Bed):
    """A cluster; use as a context manager, or call `up` and `down`.

    Parameters
    ----------
    version
        "22.05" or "24.11".
    nodes
        How many compute nodes, named n1, n2, ...
    options
        Fields of `Settings`: `cred_expire`, `max_array_size`, `extra` (lines of slurm.conf), ...

    Attributes
    ----------
    root : Path
        The "shared file system", the ordinary user's, at the same path on every node and here.
    user : str
        The ordinary user, who exists only in the bed; `uid` is the numeric id.
    python : str
        The interpreter to use on every node.
    """

    def __init__(self, version: str = "22.05", nodes: int = 4, **options: Any) -> None:
        super().__init__()
        self.settings = Settings(version=version, nodes=nodes, **options)
        self.version = version
        self.nodes = network.node_names(nodes)
        self.start_seconds = 0.0

    @classmethod
    def attach(cls, place: Layout) -> Cluster:
        """Return the cluster of a bed that is up already (made by hand)."""
        state = json.loads(place.state.read_text())
        settings = Settings(**state["settings"])
        cluster = cls(settings.version, settings.nodes)
        cluster.settings, cluster._layout = settings, place
        return cluster

    def __enter__(self) -> Cluster:
        self.up()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.down()

    def up(self, *, by_hand: str = "") -> None:
        """Bring the cluster up and wait until every node is idle.

        Parameters
        ----------
        by_hand
            A name: leave it up, to be found by it, when this process ends. Otherwise the cluster
            goes down with this process, even if that is killed by SIGKILL.
        """
        reason = missing(self.version)
        if reason:
            raise Unavailable(reason)
        began = time.monotonic()
        remove_dead_beds()
        self._layout = place = create()
        try:
            self._prepare(place, by_hand)
            self._start_guardian(place, by_hand=bool(by_hand))
            self._start_daemons()
        except BaseException as error:
            note(error, self.log_tails())
            self.down()
            raise
        self.start_seconds = time.monotonic() - began

    def _prepare(self, place: Layout, by_hand: str) -> None:
        for path in (place.shared, place.home):
            path.mkdir()
            os.chown(path, self.uid, self.uid)
        daemons.write_files(place, self.settings)
        if self.settings.storage:
            storage.build(place.storage_client)
        for ahead in set(self.settings.ahead.values()):
            clock.build(place.clock(ahead), ahead)
        state = {
            "settings": asdict(self.settings) | {"extra": dict(self.settings.extra)},
            "nodes": len(self.nodes),
            "user": self.user,
            "uid": self.uid,
            "lower": lower_root(self.version),
            "by_hand": by_hand,
        }
        place.state.write_text(json.dumps(state))

    def _start_daemons(self) -> None:
        login = self.begin_boot(LOGIN)
        nodes = [self.begin_boot(node) for node in self.nodes]
        self.end_boot(login)
        socket = self.layout.database / "mysqld.sock"
        until(socket.exists, "a database", 60)
        self.start_database_daemon()
        for entry in (
            ["cluster", "testbed"],
            ["account", "research"],
            ["user", self.user, "account=research"],
        ):
            self.run(["sacctmgr", "-i", "add", *entry], user=False)
        self.start_controller()
        for boot in nodes:
            self.end_boot(boot)
        self._wait_for_nodes(self.nodes)

    # Nodes

    def _wait_for_nodes(self, names: Collection[str], timeout: float = 60) -> None:
        def usable() -> bool:
            states = jobs.node_states(self)
            return all(states[name] in ("idle", "mixed", "allocated") for name in names)

        until(usable, f"{', '.join(names)} usable", timeout)

    def boot(self, node: str, *, wait: bool = True) -> None:
        """Give a node power again; by default wait until Slurm can use it."""
        self.end_boot(self.begin_boot(node))
        if wait:
            self._wait_for_nodes([node])

    # Shared storage

    def storage_client(self, machine: str) -> storage.Client:
        """Return what counts a machine's calls to the shared file system."""
        return storage.Client(self.layout.storage_control(machine))

    def storage_clients(self) -> list[storage.Client]:
        """Return the clients of all machines; none on a local disk."""
        machines = [LOGIN, *self.nodes] if self.settings.storage else []
        return list(map(self.storage_client, machines))

    def silence_storage(self, silent: bool) -> None:
        """Have the server of the shared file system answer nobody, or everybody again."""
        for client in self.storage_clients():
            client.silence(silent)

    # Daemons of the login node

    def start_controller(self) -> None:
        """Start slurmctld and wait until it listens."""
        self._start("slurmctld")

    def stop_controller(self) -> None:
        """Stop slurmctld; what runs on the nodes goes on."""
        self._stop("slurmctld")

    def start_database_daemon(self) -> None:
        """Start slurmdbd and wait until it listens."""
        self._start("slurmdbd")

    def stop_database_daemon(self) -> None:
        """Stop slurmdbd: no accounting, while slurmctld schedules on."""
        self._stop("slurmdbd")

    def freeze(self, *names: str) -> None:
        """Stop daemons of the login node by SIGSTOP: they take connections and answer nothing."""
        self._signal("STOP", names)

    def thaw(self, *names: str) -> None:
        """Let frozen daemons go on."""
        self._signal("CONT", names)

    def _signal(self, signal: str, names: Collection[str]) -> None:
        for pid in filter(None, map(self._pid_of, names)):
            self.run(["sh", "-c", f"kill -{signal} {pid}"], user=False, check=False)

    def _pid_of(self, daemon: str) -> str:
        return self.run(["cat", f"/run/{daemon}.pid"], user=False, check=False).stdout.strip()

    def _start(self, daemon: str) -> None:
        pid = self._machine(LOGIN).pid
        if not daemons.listening(pid, _CONTROLLERS[daemon]):
            self.run([daemon], user=False)
        until(lambda: daemons.listening(pid, _CONTROLLERS[daemon]), f"{daemon} up", 30)

    def _stop(self, daemon: str) -> None:
        pid = self._pid_of(daemon)
        alive = ["test", "-d", f"/proc/{pid}"]
        self.run(["sh", "-c", f"kill {pid}"], user=False)
        until(
            lambda: self.run(alive, user=False, check=False).returncode != 0,
            f"{daemon} stopped",
            30,
        )

    # Jobs

    def wait_job(
        self,
        job_id: str | int,
        states: str | Collection[str] = jobs.FINISHED,
        timeout: float = 60,
    ) -> str:
        """Wait until a job is in one of `states` (default: finished) and return which."""
        return jobs.wait(self, job_id, states, timeout)

    def sacct(self, job_id: str | int, duplicates: bool = True) -> list[dict[str, str]]:
        """Return accounting's records of a job and its steps, earlier attempts included."""
        return jobs.sacct(self, job_id, duplicates=duplicates)

    def node_states(self) -> dict[str, str]:
        """Return {node: state} as sinfo prints it."""
        return jobs.node_states(self)

    def reset(self) -> None:
        """Undo what a test did: no jobs, daemons up, nodes on, cabled and usable."""
        for client in self.storage_clients():
            client.silence(False)
            client.delay(0)
        self.thaw(*_CONTROLLERS)
        for daemon in _CONTROLLERS:
            self._start(daemon)
        booted = [node for node in self.nodes if not self.is_on(node)]
        for node in booted:
            self.boot(node, wait=False)
        self.plug_everything(self.nodes)
        self.kill_user_processes(LOGIN)
        jobs.cancel_all(self)
        states = jobs.node_states(self)
        for node in self.nodes:
            if states[node] not in ("idle", "mixed", "allocated"):
                update = ["scontrol", "update", f"nodename={node}", "state=resume"]
                self.run(update, user=False, check=False)
        self._wait_for_nodes(self.nodes)
        # Slurm 24.11 may refuse a booted node's first step: "Job credential expired".
        for node in booted:
            step = ["srun", "--nodes=1", f"--nodelist={node}", "--mem=10", "true"]
            until(lambda step=step: self.run(step, check=False).returncode == 0, f"steps on {node}")
