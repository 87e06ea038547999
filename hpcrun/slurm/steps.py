"""Command lines of srun, and its reports of how tasks ended.

The flags follow what was seen on Slurm 22.05 and 24.11: ``--overlap`` lets steps share the
allocation, ``--cpus-per-task`` is not inherited by srun before 23.11, and a step of several nodes
is killed everywhere when Slurm loses one of them, but for srun's ``--no-kill``.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from hpcrun.shared_dataclass import dataclass
from hpcrun.slurm.hostlist import parse_ranges, write_out

_TASK_ENDED = re.compile(
    r"srun: error: (?P<node>\S+): tasks? (?P<tasks>[0-9,-]+): (?P<what>Exited with exit code "
    r"(?P<code>[0-9]{1,9})|(?P<signal>[A-Z][^:()]+?))(?: \(core dumped\))?\s*$"
)


WORKERS = "hpcrun-workers-"
AGENTS = "hpcrun-agent"
# The step of one run of a job that several share, and what those of any job begin with.
PACKED, _OWN = "hpcrun-run-", "hpcrun-"
# Of the processes that look after such a job on other nodes than its first.
WATCHERS = "hpcrun-watch"
# What is no rank sees nothing of the site's MpiDefault.
NO_MPI = "--mpi=none"
KILLED = "Killed"
_OUT_OF_MEMORY = "Out Of Memory"
# Slurm describes signals in the words of the C library, as Python does.
_SIGNALS = {signal.strsignal(number): number.name for number in signal.Signals}
_SIGNALS[_OUT_OF_MEMORY] = "SIGKILL"
_COMPLETED = re.compile(
    r"srun: (?:launch/slurm: _task_finish: )?\S+: tasks? (?P<tasks>[0-9,-]+): Completed\s*$"
)
# What srun says of itself with ``--verbose``.
_CHATTER = re.compile(r"srun: (?!error|fatal|[Ww]arning|Job |job |Step|Force|Requested)")
_NOT_CREATED = re.compile(
    r"srun: (?:error|fatal): "
    r"((?:Unable to (?:create step|confirm|contact|resolve)|Invalid MPI type).*)"
)


@dataclass(frozen=True)
class TaskEnd:
    """srun's report of tasks of a node that ended badly."""

    node: str
    """The node's name."""
    ranks: tuple[int, ...]
    """The tasks that the line names, the lowest first."""
    what: str
    """Slurm's words, such as ``Killed`` or ``Exited with exit code 1``."""
    exit_code: int | None
    """The exit code; None when a signal ended the task."""

    @property
    def signal(self) -> str | None:
        """The name of the signal that ended the tasks; None if none did."""
        return None if self.what.startswith("Exited") else _SIGNALS.get(self.what, self.what)

    @property
    def out_of_memory(self) -> bool:
        """Slurm says that they took too much memory."""
        return self.what == _OUT_OF_MEMORY


def agent_argv(
    nodes: Sequence[str],
    log_pattern: str,
    gpus: str | None,
    command: Sequence[str],
    *,
    name: str = AGENTS,
    cpus: int = 1,
    part: int = 0,
) -> list[str]:
    """Return the ``srun`` of one agent a node, which share CPUs and GPUs with the ranks.

    ``log_pattern`` is ``--output``, with ``%N`` for the node's name where there are several; one
    agent that ends leaves the others alone. ``gpus`` is the job's option for GPUs,
    ``gpus-per-node=4``; None without. An agent sees the GPUs because it compiles for them. It is
    given what is written to srun's standard input. ``part`` is the nodes' of a heterogeneous job.
    """
    count = len(nodes)
    argv = [
        *("srun", "--overlap", "--export=ALL", f"--nodes={count}", f"--ntasks={count}"),
        *("--ntasks-per-node=1", f"--cpus-per-task={cpus}", f"--nodelist={','.join(nodes)}"),
        *("--mem=0", "--input=all"),
        *(f"--job-name={name}", "--open-mode=append", f"--output={log_pattern}"),
        NO_MPI,
    ]
    argv += ["--kill-on-bad-exit=0", "--wait=0", "--no-kill"] if count > 1 else []
    return [*argv, *_gpu_flags(gpus), *_part_flags(part), *command]


def workers_argv(
    nodes: Sequence[str],
    *,
    ranks_per_node: int,
    cpus_per_task: int,
    gpus: str | None,
    log_pattern: str,
    name: str,
    command: Sequence[str],
    options: Sequence[str] = (),
    part: int = 0,
    mpi: str | None = None,
    outlives: bool = False,
) -> list[str]:
    """Return the ``srun`` of all ranks, block-distributed, each with a log of its own.

    Rank 0 runs on the first of the nodes in Slurm's order. ``log_pattern`` is ``--output``, with
    ``%t`` for the rank; `client.step_ids` finds the step by its ``name``. ``options`` are further
    ones of srun; ``part`` is that of a heterogeneous job which has these nodes; ``mpi`` is the type
    of MPI that they are prepared for, None for the site's default. With ``outlives`` a lost node
    costs the others nothing, and srun tells of each task that completes (`parse_completed`), since
    it waits for those of the lost node until Slurm has noticed.
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
    argv += [f"--mpi={mpi}"] if mpi else []
    argv += ["--no-kill", "--verbose"] if outlives else []
    return [*argv, *_gpu_flags(gpus), *_part_flags(part), *options, *command]


def packed_argv(
    node: str,
    *,
    cpus: int,
    mem: str | None,
    gpus: str | None,
    log: str,
    name: str,
    command: Sequence[str],
    is_alone: bool = False,
) -> list[str]:
    """Return the ``srun`` of one run of a job that several share: a task with a part of the node.

    Its processors, its GPUs and, where ``mem`` is given, its memory are its own. ``gpus`` is an
    option as in `agent_argv`; ``log`` is where the task's output is appended. With ``is_alone`` the
    node has no other run.
    """
    return [
        *("srun", "--overlap" if is_alone else "--exact", "--export=ALL"),
        *("--nodes=1", "--ntasks=1", "--ntasks-per-node=1"),
        *(f"--cpus-per-task={cpus}", f"--nodelist={node}", f"--mem={mem or 0}"),
        *("--kill-on-bad-exit=0", "--input=none", "--unbuffered", "--open-mode=append"),
        *(f"--job-name={name}", f"--output={log}", NO_MPI),
        *_gpu_flags(gpus),
        *command,
    ]


def beside_argv(
    job_id: str,
    node: str,
    gpus: str | None,
    command: Sequence[str],
    *,
    terminal: bool,
    options: Sequence[str] = (),
    part: int = 0,
) -> list[str]:
    """Return the ``srun`` of a command on a node of a job, which takes nothing from its ranks.

    ``job_id`` is a whole number, also of an array's task; ``gpus`` is the job's
    option for GPUs, None without; ``options`` are further ones of srun; ``part`` is the
    node's of a heterogeneous job, whose id is that of its first part.
    """
    argv = [
        *("srun", f"--jobid={job_id}", "--overlap", "--nodes=1", "--ntasks=1"),
        *("--ntasks-per-node=1", "--cpus-per-task=1", f"--nodelist={node}", "--mem=0", "--quiet"),
        *("--export=PATH", "--chdir=/", "--job-name=hpcrun-beside", NO_MPI),
    ]
    argv += ["--pty"] if terminal else ["--input=all", "--unbuffered"]
    return [*argv, *_gpu_flags(gpus), *_part_flags(part), *options, *command]


def workers_name(attempt: int) -> str:
    """Return the name of an attempt's step of ranks."""
    return f"{WORKERS}{attempt}"


def rank_name(workers: str, rank: int | str) -> str:
    """Return the name of a step of one rank, started apart from the others of its attempt."""
    return f"{workers}-rank-{rank}"


def warm_name(attempt: int, group: int | str = "") -> str:
    """Return the name of the steps of warm ranks that an attempt started for the next one.

    With ``group``, that of one of them.
    """
    name = f"{workers_name(attempt + 1)}-warm"
    return name if group == "" else f"{name}-group-{group}"


def packed_name(run: int) -> str:
    """Return the name of the step of one run of a job that several share."""
    return f"{PACKED}{run}"


def name_in_pack(run: int, name: str) -> str:
    """Return the name of a further step of such a run, which it has in a job of its own."""
    return f"{packed_name(run)}-{name.removeprefix(_OWN)}"


def name_alone(name: str, packed: str) -> str | None:
    """Return the name that a step has in a job of its run's own; None for another run's.

    ``packed`` is a `packed_name`, and the name of the step that is the run's anyway.
    """
    if name.startswith(f"{packed}-"):
        return f"{_OWN}{name.removeprefix(f'{packed}-')}"
    return name if name == packed else None


def is_of(name: str, step: str) -> bool:
    """Check whether a step's ``name`` is ``step``, or that of a part of it."""
    return name == step or name.startswith((rank_name(step, ""), f"{step}-group-"))


def _gpu_flags(gpus: str | None) -> list[str]:
    return [f"--{gpus}"] if gpus else []


def _part_flags(part: int) -> list[str]:
    # Without it, srun takes the first part.
    return [f"--het-group={part}"] if part else []


def parse_task_end(line: str) -> TaskEnd | None:
    """Read a line of srun's stderr; None if it does not report the end of a task."""
    match = _TASK_ENDED.match(line.strip())
    if not match:
        return None
    try:
        ranks = sorted(write_out(parse_ranges(match["tasks"])))
    except ValueError:
        return None
    code = int(match["code"]) if match["code"] else None
    return TaskEnd(match["node"], tuple(ranks), match["what"], code)


def parse_completed(line: str) -> tuple[int, ...]:
    """Read which tasks have ended well from a line of ``srun --verbose``; empty for other lines."""
    match = _COMPLETED.match(line)
    try:
        return tuple(write_out(parse_ranges(match["tasks"]))) if match else ()
    except ValueError:
        return ()


def is_chatter(line: str) -> bool:
    """Check for a line by which ``srun --verbose`` only says what it does."""
    return _CHATTER.match(line) is not None


def is_abort(line: str) -> bool:
    """Check for the line of srun's stderr by which Slurm itself ends the step.

    So it does where a rank calls MPI_Abort, or ends in the midst of MPI.
    """
    return line.startswith("srun: Job step aborted")


def parse_refusal(line: str) -> str | None:
    """Read why srun created no step from a line of its stderr; None for other lines."""
    match = _NOT_CREATED.match(line.strip())
    return match[1] if match else None
