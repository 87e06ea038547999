"""How the compute side starts and ends Slurm steps inside its own allocation.

The flags follow what was seen on Slurm 22.05 and 24.11: ``--overlap`` lets steps share the
allocation, ``--cpus-per-task`` is not inherited by srun before 23.11, and a step of several nodes
is killed everywhere when Slurm loses one of them, so each agent is a step of its own.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcrun.errors import HpcrunError
from hpcrun.state.layout import slurm_path

_TASK_ENDED = re.compile(
    r"srun: error: (?P<node>\S+): tasks? (?P<tasks>[\d,-]+): (?P<what>Exited with exit code "
    r"(?P<code>\d+)|(?P<signal>[A-Z][^:()]+?))(?: \(core dumped\))?\s*$"
)


WORKERS = "hpcrun-workers-"
_NOT_CREATED = re.compile(r"srun: error: (Unable to (?:create step|confirm|contact|resolve).*)")


@dataclass(frozen=True)
class TaskEnd:
    """What srun says of tasks that ended badly.

    Attributes
    ----------
    node
        The node's name.
    ranks
        The tasks that the line names, the lowest first.
    what
        Slurm's words, such as ``Killed`` or ``Exited with exit code 1``.
    exit_code
        The exit code; None when a signal ended the task.
    """

    node: str
    ranks: tuple[int, ...]
    what: str
    exit_code: int | None


@dataclass(frozen=True)
class Allocation:
    """The job that this process runs in, from the variables that Slurm sets in it."""

    job_id: str
    name: str
    nodes: tuple[str, ...]
    restart_count: int

    @classmethod
    def current(cls) -> Allocation:
        """Read the allocation from the environment.

        Raises
        ------
        HpcrunError
            This process is not inside a Slurm job, or Slurm does not expand its node list.
        """
        job_id = os.environ.get("SLURM_JOB_ID")
        nodelist = os.environ.get("SLURM_JOB_NODELIST")
        if not job_id or not nodelist:
            raise HpcrunError(
                "SLURM_JOB_ID and SLURM_JOB_NODELIST are not set: this is not inside a Slurm job",
                hint="submit with `hpcrun submit`, or run inside `salloc` with `hpcrun run`",
            )
        array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
        return cls(
            job_id=job_id,
            name=f"{array}_{task}" if array and task else job_id,
            nodes=expand(nodelist),
            restart_count=int(os.environ.get("SLURM_RESTART_COUNT") or 0),
        )


def expand(nodelist: str) -> tuple[str, ...]:
    """``n[1-3],m7`` -> the names, in Slurm's order.

    Raises
    ------
    HpcrunError
        The list is malformed.
    """
    names: list[str] = []
    for part in re.findall(r"[^,\[]+(?:\[[^\]]*\][^,\[]*)?", nodelist):
        match = re.fullmatch(r"([^\[]*)\[([^\]]*)\](.*)", part)
        if not match:
            names.append(part)
            continue
        prefix, ranges, suffix = match.groups()
        for piece in ranges.split(","):
            first, _, last = piece.partition("-")
            if not first.isdigit() or (last and not last.isdigit()):
                raise HpcrunError(f"the node list {nodelist!r} is not understood")
            for number in range(int(first), int(last or first) + 1):
                names.append(f"{prefix}{number:0{len(first)}d}{suffix}")
    return tuple(names)


def agent_argv(node: str, log: Path, gpus: str | None, command: Sequence[str]) -> list[str]:
    """``srun`` of one node's agent, which shares the node's CPUs and GPUs with its ranks.

    Parameters
    ----------
    gpus
        ``--gpus-per-node`` of the job; None where it has none. An agent sees the GPUs because it
        compiles for them.
    """
    argv = [
        *("srun", "--overlap", "--export=ALL", "--nodes=1", "--ntasks=1", "--ntasks-per-node=1"),
        *("--cpus-per-task=1", f"--nodelist={node}", "--mem=0", "--input=none"),
        *("--job-name=hpcrun-agent", "--open-mode=append", f"--output={slurm_path(log)}"),
    ]
    return [*argv, *_gpu_flags(gpus), *command]


def workers_argv(
    nodes: Sequence[str],
    *,
    ranks_per_node: int,
    cpus_per_task: int,
    gpus: str | None,
    log_pattern: str,
    name: str,
    command: Sequence[str],
) -> list[str]:
    """``srun`` of all ranks, block-distributed, each with a log of its own.

    Parameters
    ----------
    nodes
        Names of the nodes; rank 0 runs on the first in Slurm's order.
    log_pattern
        ``--output`` with ``%t`` for the rank.
    name
        The step's name, by which `step_id` finds it.
    """
    argv = [
        *("srun", "--overlap", "--export=ALL", f"--nodes={len(nodes)}"),
        f"--ntasks={len(nodes) * ranks_per_node}",
        f"--ntasks-per-node={ranks_per_node}",
        f"--cpus-per-task={cpus_per_task}",
        *(f"--nodelist={','.join(nodes)}", "--distribution=block", "--mem=0"),
        *("--kill-on-bad-exit=0", "--wait=0", "--input=none", "--unbuffered"),
        *(f"--job-name={name}", "--open-mode=append", f"--output={log_pattern}"),
    ]
    return [*argv, *_gpu_flags(gpus), *command]


def workers_name(attempt: int) -> str:
    """The name of an attempt's step of ranks."""
    return f"{WORKERS}{attempt}"


def warm_name(attempt: int) -> str:
    """The name of the step of warm ranks that an attempt started, for the next."""
    return f"{workers_name(attempt + 1)}-warm"


def _gpu_flags(gpus: str | None) -> list[str]:
    return [f"--gpus-per-node={gpus}"] if gpus else []


def parse_task_end(line: str) -> TaskEnd | None:
    """Read a line of srun's stderr; None when it does not tell of a task's end."""
    match = _TASK_ENDED.match(line.strip())
    if not match:
        return None
    ranks: list[int] = []
    for part in match["tasks"].split(","):
        first, _, last = part.partition("-")
        ranks += range(int(first), int(last or first) + 1)
    code = int(match["code"]) if match["code"] else None
    return TaskEnd(match["node"], tuple(sorted(ranks)), match["what"], code)


def parse_refusal(line: str) -> str | None:
    """Why srun created no step; None for a line that does not say so."""
    match = _NOT_CREATED.match(line.strip())
    return match[1] if match else None


def step_id(job_id: str, name: str) -> str | None:
    """``123.4``: the running step of that name; None when there is none or Slurm does not say."""
    try:
        answer = subprocess.run(
            ["squeue", "--noheader", "--steps", f"--jobs={job_id}", "--format=%i|%j"],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    for line in answer.stdout.splitlines():
        step, _, found = line.strip().partition("|")
        if found == name:
            return step
    return None


def kill_step(step: str) -> bool:
    """Kill every task of a step at once; False when Slurm could not be asked."""
    try:
        answer = subprocess.run(
            ["scancel", "--signal=KILL", step], capture_output=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 0
