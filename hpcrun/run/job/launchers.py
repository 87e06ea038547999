"""Launchers of agents and ranks: Slurm steps, or children on this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from hpcrun.container.rank_python import RankPython
from hpcrun.host import start_logged
from hpcrun.policy import frameworks
from hpcrun.run.job import agent_steps
from hpcrun.run.job.rank_places import RankEnd, Workers, of_shell, rank_ends, shared_gpus
from hpcrun.run.node import cgroup
from hpcrun.run.program import mpi_type
from hpcrun.run.protocol.batch_script import BatchScript
from hpcrun.run.rank import warm_up
from hpcrun.slurm import client, job, steps
from hpcrun.slurm.allocation import VARIABLES, Allocation
from hpcrun.slurm.clock import SlurmClock
from hpcrun.state.layout import AttemptPaths, slurm_path
from hpcrun.state.plan import RunPlan
from hpcrun.state.role_plan import RolePlan
from hpcrun.state.spec.executors import Executor
from hpcrun.text import signal_name

# Seconds within which srun notices that agents have killed its ranks.
_AGENTS_TURN = 2.0


class Launcher(ABC):
    """The allocation of one start of a job; ``nodes`` include the spares."""

    nodes: tuple[str, ...]
    job_id: str
    port_seed: int
    restart_count: int
    fabric: dict[str, Any]
    is_slurm: bool
    requeues: bool
    is_foreground: bool
    """`hpcrun run` started the supervisor: a signal to that interrupts the run."""
    python: RankPython
    """The ranks' Python, in a container or not."""
    is_frozen: bool
    """Their environment is frozen."""
    is_packed = False
    """Other runs have a part of the job too, which `hpcrun.run.packed_job` requeues."""
    whole_job: str | None = None
    """The raw id of the Slurm job that has these nodes and no others; None where there is none."""
    host: str
    """The node that this process is on."""
    _clock: SlurmClock | None = None
    """That of Slurm, where it ends the job."""

    @cached_property
    def places(self) -> dict[str, int]:
        """Each node -> its place in the allocation."""
        return {node: place for place, node in enumerate(self.nodes)}

    def worker(self, launch: Path, *more: str) -> list[str]:
        """Return the command line of a rank; ``more`` are arguments of a warm one."""
        program = ["-m", "hpcrun.run.worker"]
        if self.is_frozen:
            # Without the packages of this Python: those of the node's copy follow.
            program = ["-S", "-m", "hpcrun.run.frozen_python"]
        return self.python.command(*program, str(launch), *more)

    @property
    def is_one_machine(self) -> bool:
        """Return whether the run is only ever started on the one machine or node that this is."""
        return not self.is_slurm or (not self.requeues and len(self.nodes) == 1)

    @property
    def compiles_alike(self) -> bool:
        """Return whether what cannot be compiled on one node can be on none that the run has."""
        return self.is_one_machine or self.python.is_container

    def end_time(self, *, fresh: bool = False) -> float | None:
        """Return when the time limit ends the job (seconds since the epoch); None without one."""
        return None if self._clock is None else job.end_time(self.job_id, fresh=fresh)

    def now(self) -> float:
        """Return the time by the clock of whoever ends the job."""
        return time.time() if self._clock is None else self._clock.now()

    def is_unreachable(self) -> bool:
        """Check whether Slurm's controller is down, so that ranks cannot be started."""
        return False

    def agent_groups(self) -> list[tuple[str, ...]]:
        """Return the nodes in groups, the agents of each of which are started together."""
        return [(node,) for node in self.nodes]

    @abstractmethod
    def start_agents(
        self, nodes: Sequence[str], attempt: AttemptPaths, command: Sequence[str]
    ) -> subprocess.Popen[bytes]:
        """Start a group's agents, to each of which standard input takes the job's secret."""

    @abstractmethod
    def start_workers(self, run: RunPlan, attempt: AttemptPaths, nodes: Sequence[str]) -> Workers:
        """Start every rank on these nodes, which are in Slurm's order."""

    @abstractmethod
    def start_warm(
        self, run: RunPlan, attempt: AttemptPaths, spares: Mapping[str, Path], nodes: Sequence[str]
    ) -> list[tuple[Sequence[str], Workers]]:
        """Start ranks on these nodes that wait for the next attempt, and return them with theirs.

        ``spares`` are those of the nodes that have no rank of this ``attempt``, with its directory
        there. See `hpcrun.run.rank.warm_up`.
        """

    @abstractmethod
    def start_role(
        self, role: RolePlan, attempt: AttemptPaths, launch: Path, places: Mapping[int, str]
    ) -> Workers:
        """Start one rank of a role, of which ``launch`` is the file, or all of the main one's.

        ``places`` has the node of each, in Slurm's order.
        """

    def devices(self, node: str, run: RunPlan) -> str | None:
        """Return CUDA_VISIBLE_DEVICES of a node's ranks; None where Slurm sets it."""
        return None


class SlurmLauncher(Launcher):
    """Starts steps with srun in the job that this process runs in.

    It uses ``only`` these nodes of the job, if they are given. A user's own allocation, in which
    `hpcrun run` was typed, is not requeued: the foreground process starts the run again.
    """

    is_slurm = True

    def __init__(
        self, run: RunPlan, fabric: dict[str, Any], python: RankPython, only: Collection[str] = ()
    ) -> None:
        self.python, self.is_frozen = python, run.environment.is_frozen
        self._run = run
        allocation = Allocation.current()
        nodes = allocation.nodes[: run.all_nodes]
        self.nodes = tuple(node for node in nodes if not only or node in only)
        if len(self.nodes) == len(allocation.nodes):
            self.whole_job = allocation.job_id
        self.host = os.environ.get("SLURMD_NODENAME", self.nodes[0])
        self.job_id, self._clock = allocation.name, SlurmClock()
        self._raw_ids = allocation.part_ids or (allocation.job_id,)
        self._parts = allocation.parts
        self.port_seed = int(allocation.job_id)
        self.restart_count = allocation.restart_count
        self.is_foreground = "HPCRUN_JOB_ID" in os.environ
        self.requeues = not self.is_foreground
        self.fabric = fabric
        self._gpus = {
            node: run.resources_of(index).gpus_option for index, node in enumerate(self.nodes)
        }

    @cached_property
    def _mpi(self) -> str | None:
        return mpi_type.of(self._run, self.python)

    def is_unreachable(self) -> bool:
        return job.is_unreachable(self.job_id)

    def devices(self, node: str, run: RunPlan) -> str | None:
        wanted = run.resources_of(self.places[node])
        return shared_gpus([wanted.gpus_per_node], 0) if wanted.has_whole_nodes else None

    def agent_groups(self) -> list[tuple[str, ...]]:
        alike = {node: (self._parts.get(node, 0), self._gpus.get(node)) for node in self.nodes}
        return agent_steps.groups(self.nodes, alike)

    def start_agents(
        self, nodes: Sequence[str], attempt: AttemptPaths, command: Sequence[str]
    ) -> subprocess.Popen[bytes]:
        part, gpus = self._parts.get(nodes[0], 0), self._gpus.get(nodes[0])
        alone = slurm_path(attempt.agent_log(nodes[0]))
        log = alone if len(nodes) == 1 else attempt.agent_log_pattern
        name = self._step_name(steps.AGENTS)
        argv = steps.agent_argv(nodes, log, gpus, command, name=name, part=part)
        return subprocess.Popen(argv, stdin=subprocess.PIPE, start_new_session=True)

    def start_workers(self, run: RunPlan, attempt: AttemptPaths, nodes: Sequence[str]) -> Workers:
        if frameworks.of(run.entry.framework).one_per_run:
            return _LocalWorkers(attempt, self.worker(attempt.launch), {0: nodes[0]}, self.python)
        name, log = steps.workers_name(attempt.number), attempt.rank_log_pattern
        shape = nodes, run.ranks_per_node, run.resources.cpus_per_task or 1
        around, command = BatchScript.of(run.spec, attempt), self.worker(attempt.launch)
        return self._start(attempt, name, *shape, log, command, mpi=self._mpi, around=around)

    def start_warm(
        self, run: RunPlan, attempt: AttemptPaths, spares: Mapping[str, Path], nodes: Sequence[str]
    ) -> list[tuple[Sequence[str], Workers]]:
        found: list[tuple[Sequence[str], Workers]] = []
        log, wanted = slurm_path(attempt.warm_log), {*nodes}
        for number, every in enumerate(self.agent_groups()):
            if not (group := [node for node in every if node in wanted]):
                continue
            name = steps.warm_name(attempt.number, number)
            command = self.worker(attempt.launch, *warm_up.arguments(group, spares))
            shape = group, run.ranks_per_node, run.resources.cpus_per_task or 1
            found.append((group, self._start(attempt, name, *shape, log, command, outlives=True)))
        return found

    def start_role(
        self, role: RolePlan, attempt: AttemptPaths, launch: Path, places: Mapping[int, str]
    ) -> Workers:
        name, command = steps.workers_name(attempt.number), self.worker(launch)
        nodes, cpus = [*dict.fromkeys(places.values())], role.cpus_per_task
        if len(places) > 1:
            shape = nodes, role.ranks_per_node, cpus
            log = attempt.rank_log_pattern
            return self._start(attempt, name, *shape, log, command, mpi=self._mpi)
        (rank,) = places
        log, command = slurm_path(attempt.rank_log(rank)), [*command, "--rank", str(rank)]
        return self._start(attempt, steps.rank_name(name, rank), nodes, 1, cpus, log, command, rank)

    def _start(
        self,
        attempt: AttemptPaths,
        name: str,
        nodes: Sequence[str],
        per_node: int,
        cpus: int,
        log: str,
        command: list[str],
        first: int = 0,
        mpi: str | None = None,
        around: BatchScript | None = None,
        *,
        outlives: bool = False,
    ) -> Workers:
        name = self._step_name(name)
        gpus, part = self._gpus.get(nodes[0]), self._parts.get(nodes[0], 0)
        shape: Any = {"ranks_per_node": per_node, "cpus_per_task": cpus, "gpus": gpus}
        shape |= {"log_pattern": log, "name": name, "mpi": mpi, "part": part, "outlives": outlives}
        shape["options"] = self.python.srun
        argv = steps.workers_argv(nodes, **shape, command=command)
        return _SlurmWorkers(argv, self._raw_ids[part], name, attempt, self.python, first, around)

    def _step_name(self, name: str) -> str:
        """Return the name by which Slurm knows a step of the run among those of the job."""
        return name


class PackedNodesLauncher(SlurmLauncher):
    """Starts steps on ``only`` the nodes that a run has of a job that several share."""

    is_packed = True

    def __init__(
        self, run: RunPlan, fabric: dict[str, Any], python: RankPython, only: Collection[str] = ()
    ) -> None:
        host = os.environ.get("SLURMD_NODENAME")
        _show_only(run, [*only])
        super().__init__(run, fabric, python)
        self.host, self.whole_job = host or self.nodes[0], None

    def _step_name(self, name: str) -> str:
        return steps.name_in_pack(self._run.number, name)


class _SlurmWorkers(Workers):
    def __init__(
        self,
        argv: list[str],
        job_id: str,
        name: str,
        attempt: AttemptPaths,
        python: RankPython,
        first: int = 0,
        around: BatchScript | None = None,
    ) -> None:
        super().__init__(attempt)
        self._is_contained, self._around = python.is_container, around
        self._job_id, self._name, self._first = job_id, name, first
        self._refusal: str | None = None
        self._is_aborted = False
        self._completed: set[int] = set()
        self._is_verbose = "--verbose" in argv
        self._process = subprocess.Popen(
            around.around(argv) if around else argv,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._completed.update(steps.parse_completed(line))
            if self._is_verbose and steps.is_chatter(line):
                continue
            with contextlib.suppress(OSError):
                os.write(2, line.encode(errors="backslashreplace"))
            self._refusal = self._refusal or steps.parse_refusal(line)
            self._is_aborted |= steps.is_abort(line)
            if end := steps.parse_task_end(line):
                for found in rank_ends(end, self._first, self._is_contained, self._is_aborted):
                    self.ends.setdefault(found.rank, found)

    def failure(self) -> RankEnd | None:
        return min([*self.ends.values()], key=lambda end: end.by_slurm, default=None)

    def has_ended(self, rank: int) -> bool:
        return rank in self._completed or super().has_ended(rank)

    def exit_code(self) -> int | None:
        code = self._process.poll()
        if code is not None:
            self._reader.join(timeout=5)
        return self._around.exit_code(code) if self._around else code

    def abandon(self) -> None:
        # srun has Slurm end the step.
        self._send(signal.SIGTERM)

    def _send(self, number: signal.Signals) -> None:
        """Signal srun, and with it the shell file around the ranks and what that has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def refusal(self) -> str | None:
        return None if self._attempt.rank_logs() else self._refusal

    def kill(self, *, nodes_are_lost: bool = False) -> None:
        if nodes_are_lost:
            self._send(signal.SIGKILL)
            self._has_ended(2)
            return
        if self._has_ended(_AGENTS_TURN):
            return
        step = client.step_ids(self._job_id).get(self._name)
        if step is None or not client.signal_step(step, "KILL") or not self._has_ended(10):
            for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
                if not self._has_ended(0):
                    self._send(number)
                    self._has_ended(2)

    def _has_ended(self, timeout: float) -> bool:
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        # Its last lines about its tasks may not have been read yet.
        self._reader.join(timeout=5)
        return True


class LocalLauncher(Launcher):
    """Starts children of this process; each of the spec's nodes is a group of them."""

    is_slurm = False
    requeues = False

    def __init__(
        self, run: RunPlan, fabric: dict[str, Any], python: RankPython, _only: Collection[str] = ()
    ) -> None:
        self.python, self.is_frozen = python, run.environment.is_frozen
        self.nodes = tuple(f"local{index}" for index in range(run.all_nodes))
        self.host = self.nodes[0]
        self.job_id = os.environ.get("HPCRUN_JOB_ID", f"local:{os.getpid()}")
        self.is_foreground = "HPCRUN_FOREGROUND" in os.environ
        self.port_seed = os.getpid()
        self.restart_count = 0
        named = {key: value for key, value in fabric.items() if value}
        self.fabric = {"management_interface": "lo", "fast_interface": "lo", **named}

    def start_agents(
        self, nodes: Sequence[str], attempt: AttemptPaths, command: Sequence[str]
    ) -> subprocess.Popen[bytes]:
        return start_logged(command, attempt.agent_log(nodes[0]), stdin=subprocess.PIPE)

    def start_workers(self, run: RunPlan, attempt: AttemptPaths, nodes: Sequence[str]) -> Workers:
        places = {rank: nodes[rank // run.ranks_per_node] for rank in range(run.world_size)}
        around = BatchScript.of(run.spec, attempt, ranks=len(places))
        command = self.worker(attempt.launch)
        return _LocalWorkers(attempt, command, places, self.python, around=around)

    def start_warm(
        self, run: RunPlan, attempt: AttemptPaths, spares: Mapping[str, Path], nodes: Sequence[str]
    ) -> list[tuple[Sequence[str], Workers]]:
        places = dict(enumerate(node for node in nodes for _ in range(run.ranks_per_node)))
        command = self.worker(attempt.launch, *warm_up.arguments(nodes, spares))
        return [(nodes, _LocalWorkers(attempt, command, places, self.python, attempt.warm_log))]

    def start_role(
        self, role: RolePlan, attempt: AttemptPaths, launch: Path, places: Mapping[int, str]
    ) -> Workers:
        return _LocalWorkers(attempt, self.worker(launch), places, self.python)

    def devices(self, node: str, run: RunPlan) -> str | None:
        counts = [run.resources_of(index).gpus_per_node for index in range(len(self.nodes))]
        return shared_gpus(counts, self.places[node])


class PackedLauncher(LocalLauncher):
    """Starts children of this process in the step of one run of a job that several share."""

    is_slurm = True
    requeues = True
    is_packed = True

    def __init__(
        self, run: RunPlan, fabric: dict[str, Any], python: RankPython, only: Collection[str] = ()
    ) -> None:
        super().__init__(run, fabric, python, only)
        allocation = Allocation.current()
        self.host = os.environ.get("SLURMD_NODENAME", allocation.nodes[0])
        self.nodes = (self.host,)
        self.job_id, self.restart_count = allocation.name, allocation.restart_count
        _show_only(run, self.nodes)
        # Asks in a thread, with the variables as they are by now.
        self._clock = SlurmClock()

    def devices(self, node: str, run: RunPlan) -> str | None:
        return None


def _show_only(run: RunPlan, nodes: Sequence[str]) -> None:
    """Have the variables of Slurm show the part of the job that a run has, and no step.

    Programs would take the step's one task for a rank, and the job's other nodes for theirs.
    """
    for name in [name for name in os.environ if name.startswith(("SLURM_", "PMI"))]:
        if name not in VARIABLES:
            del os.environ[name]
    cpus, count = run.ranks_per_node * (run.resources.cpus_per_task or 1), len(nodes)
    own = {
        **dict.fromkeys(("NODELIST", "JOB_NODELIST"), ",".join(nodes)),
        **dict.fromkeys(("NNODES", "JOB_NUM_NODES"), str(count)),
        "JOB_CPUS_PER_NODE": str(cpus) if count == 1 else f"{cpus}(x{count})",
    }
    os.environ.update({f"SLURM_{name}": value for name, value in own.items()})


class _LocalWorkers(Workers):
    def __init__(
        self,
        attempt: AttemptPaths,
        command: Sequence[str],
        places: Mapping[int, str],
        python: RankPython,
        log: Path | None = None,
        around: BatchScript | None = None,
    ) -> None:
        super().__init__(attempt)
        self._is_contained, self._around = python.is_container, around
        self._processes: list[subprocess.Popen[bytes]] = []
        self._failure: RankEnd | None = None
        self._places = places
        try:
            for rank in places:
                own, argv = log or attempt.rank_log(rank), [*command, "--rank", str(rank)]
                argv = around.around(argv) if around else argv
                self._processes.append(start_logged(argv, own))
        except BaseException:
            self.abandon()
            raise

    def has_ended(self, rank: int) -> bool:
        places = zip(self._places, self._processes, strict=True)
        return any(one == rank and process.poll() is not None for one, process in places)

    def failure(self) -> RankEnd | None:
        if self._failure is None:
            # Ranks whose peer was killed fail soon after it, with an exit code.
            ends = self.ends.values()
            self._failure = min(ends, key=lambda end: end.signal is None, default=None)
        return self._failure

    def exit_code(self) -> int | None:
        codes = [process.poll() for process in self._processes]
        for (rank, node), code in zip(self._places.items(), codes, strict=True):
            if code and rank not in self.ends:
                shells = of_shell(code) if self._is_contained else (code, None)
                how = (None, signal_name(-code)) if code < 0 else shells
                self.ends[rank] = RankEnd(rank, node, *how)
        if any(code is None for code in codes):
            return None
        if self._around:
            return self._around.exit_code(codes[0])
        return max((abs(code) for code in codes if code is not None), default=0)

    def abandon(self) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def kill(self, *, nodes_are_lost: bool = False) -> None:
        self.abandon()
        for process in self._processes:
            process.wait()


def launcher_class(
    executor: Executor, *, has_part: bool
) -> type[SlurmLauncher] | type[LocalLauncher]:
    """Return the class that starts the ranks of an executor's runs.

    ``has_part``: of a job that several share, the run has some of the nodes.
    """
    if has_part:
        return PackedNodesLauncher
    if cgroup.HAS_STEP in os.environ:
        return PackedLauncher
    return SlurmLauncher if executor.queues else LocalLauncher
