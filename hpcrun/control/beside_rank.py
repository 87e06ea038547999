"""A command beside a live rank of a run, and the stacks of all ranks.

The job's Python need not be known, nor the modules that it was started with: bash takes both from
the rank's own process, which only its owner can read.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from hpcrun.container.rank_python import OUTSIDE
from hpcrun.errors import HpcrunError, UsageError
from hpcrun.observe.read.selection import Selected
from hpcrun.observe.status import jobs, run_state
from hpcrun.observe.status.status import statuses
from hpcrun.run.health import stack_summary
from hpcrun.run.protocol.launch import Launch, LaunchNode
from hpcrun.shared_look import is_there
from hpcrun.slurm import client, steps
from hpcrun.state import ledger, permissions
from hpcrun.state.node_layout import ScratchPaths
from hpcrun.text import range_text

# Nodes that are asked at the same time, and the seconds that each may take.
_AT_ONCE, _ANSWER = 16, 60.0
# What bash exits with where the rank's process is not there.
_NO_RANK = 66
# $0: the file with the process id of the rank's worker. The first word after it is the Python,
# empty for the rank's own; the next is how many of those after it put a command into the rank's
# container; the rest is for the program. What a container hides of the host's variables is needed
# to start another one.
_BASH = f"""\
pid="$(cat "$0" 2> /dev/null)" &&
mapfile -d '' -t variables < "/proc/$pid/environ" 2> /dev/null &&
mapfile -d '' -t words < "/proc/$pid/cmdline" 2> /dev/null &&
[ "${{#words[@]}}" -gt 0 ] || exit {_NO_RANK}
for one in "${{variables[@]}}"; do
    case "$one" in {OUTSIDE}*) variables+=("${{one#{OUTSIDE}}}") ;; esac
done
python="${{1:-${{words[0]}}}}"
inside=("${{@:3:$2}}")
shift $(($2 + 2))
exec env -i "${{variables[@]}}" "${{inside[@]}}" "$python" -m hpcrun.run.beside "$@"
"""


@dataclass(frozen=True)
class RankStack:
    """The Python stacks of a rank; None where it does not tell."""

    rank: int
    node: str
    text: str | None


@dataclass(frozen=True)
class LiveRun:
    """A run whose ranks are at work."""

    name: str
    launches: tuple[Launch, ...]
    """Of each role, the main one's first."""
    job_id: str | None
    """The whole number of its job; None on this machine."""
    gpus: tuple[str | None, ...]
    """srun's option for the GPUs of the nodes of each role; of one where there are no roles."""
    parts: tuple[int, ...] = (0,)
    """The part of a heterogeneous job that each role is in."""

    @property
    def ranks(self) -> range:
        return range(sum(one.world_size for one in self.launches))

    def place(self, rank: int) -> tuple[Launch, int]:
        """Return the launch that a rank belongs to, and its number there."""
        own = self.launches[self._role(rank)]
        return own, rank - own.first_rank

    def _role(self, rank: int) -> int:
        """Return the number of the role of a rank; 0 is the main one."""
        begun = [number for number, one in enumerate(self.launches) if one.first_rank <= rank]
        return max(begun, default=0)

    def node_of(self, rank: int) -> LaunchNode:
        launch, own = self.place(rank)
        return launch.node_of(own)

    def argv(self, rank: int, words: Sequence[str], *, terminal: str = "") -> list[str]:
        """Return what starts a command beside a rank; without ``words``, what tells the stacks.

        ``terminal`` is TERM, for a command on a terminal.
        """
        launch, own = self.place(rank)
        node = launch.node_of(own)
        container = launch.rank_python or {}
        prefix = container.get("prefix", ())
        # What puts a command into the rank's container; the Python, empty for the rank's own.
        inside, python = [*prefix, *container.get("python", ())[:-1]], ""
        if prefix and not words:
            # A container beside the rank's has users of its own, and may not look into it.
            inside, python = [], prefix[0]
        found = ["bash", "-c", _BASH, str(ScratchPaths(Path(node.scratch)).pid(rank))]
        found += [python, str(len(inside)), *inside, str(launch.file), str(own), terminal, *words]
        if self.job_id is None:
            return found
        role = self._role(rank)
        return steps.beside_argv(
            self.job_id,
            node.name,
            self.gpus[role],
            found,
            terminal=bool(terminal),
            options=container.get("srun", ()),
            part=self.parts[role],
        )


def living(selected: Selected, verb: str) -> LiveRun:
    """Return a run of one's own whose ranks are at work; raise UsageError for any other."""
    permissions.check_mine(selected.experiment, [selected.run.number], verb)
    name, attempts = selected.name, selected.paths.attempts()
    (status,) = statuses([selected], ask=jobs.ask, values=False)
    if status.state != run_state.RUNNING or not attempts or not is_there(attempts[-1].launch):
        reason = f" ({status.reason})" if status.reason else ""
        raise UsageError(
            f"{name} is {status.state}{reason}: there is no rank to be beside",
            hint=f"hpcrun status {name}" if not status.over else f"hpcrun logs {name}",
        )
    attempt = attempts[-1]
    job = ledger.read(selected.paths)[-1].job_id
    number = None if job is None or job.startswith("local:") else _whole_number(job)
    roles = selected.run.role_plans
    is_divided = selected.run.own_parts and number and client.further_parts(number)
    # Slurm would give a step beside a run that shares its job the GPU of another.
    shares = selected.submission is not None and selected.submission.is_packed
    own = None if shares and selected.run.nodes == 1 else selected.run.resources.gpus_option
    further = (Launch.read(attempt.role_launch(role.name)) for role in roles[1:])
    return LiveRun(
        name,
        (Launch.read(attempt.launch), *further),
        number,
        tuple(selected.run.resources_of(role.first_node).gpus_option for role in roles) or (own,),
        tuple(role.part if is_divided else 0 for role in roles) or (0,),
    )


def run(live: LiveRun, rank: int, words: Sequence[str], *, terminal: str = "") -> int:
    """Run a command beside a rank, on this process's streams; return its exit code.

    Raises UsageError if there is no such rank, or its process has ended.
    """
    _check(live, [rank])
    process = subprocess.Popen(
        live.argv(rank, words, terminal=terminal), env=client.scrubbed_environment()
    )
    try:
        code = process.wait()
    except KeyboardInterrupt:
        # Ctrl-C reached the command, too; Slurm ends a step whose srun is ended.
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(2.0)
        process.terminate()
        code = process.wait()
    if code == _NO_RANK:
        raise UsageError(
            f"rank {rank} of {live.name} is not at work on {live.node_of(rank).name}: it has "
            "ended, or not begun",
            hint=f"hpcrun status {live.name}",
        )
    return code if code >= 0 else 128 - code


def stacks(live: LiveRun, ranks: Iterable[int] | None = None) -> list[RankStack]:
    """Return the Python stacks of ranks, in their order; of all by default.

    The ranks go on. Raises UsageError if there is no such rank, HpcrunError if no node answers.
    """
    wanted = sorted(live.ranks if ranks is None else set(ranks))
    _check(live, wanted)
    nodes: dict[str, list[int]] = {}
    for rank in live.ranks:
        nodes.setdefault(live.node_of(rank).name, []).append(rank)
    asked = [ranks for ranks in nodes.values() if not {*wanted}.isdisjoint(ranks)]
    with ThreadPoolExecutor(min(_AT_ONCE, len(asked))) as pool:
        answers = [*pool.map(lambda ranks: _stacks_of_node(live, ranks), asked)]
    if not any(isinstance(one, dict) for one in answers):
        raise HpcrunError(
            f"no node of {live.name} tells its ranks' stacks: {answers[0]}",
            hint=f"hpcrun status {live.name}",
        )
    texts: dict[int, str] = {}
    for one in answers:
        texts.update(one if isinstance(one, dict) else {})
    return [RankStack(rank, live.node_of(rank).name, texts.get(rank) or None) for rank in wanted]


def together(found: Sequence[RankStack], *, threads: bool) -> dict[str, list[RankStack]]:
    """Return text -> the ranks that it is of, the most common first; of main threads, or of all."""
    same: dict[str, list[RankStack]] = {}
    for one in found:
        text = one.text or ""
        shown = text if threads else "\n".join(stack_summary.main_thread(text)) or text
        same.setdefault(shown, []).append(one)
    return dict(sorted(same.items(), key=lambda item: -len(item[1])))


def _stacks_of_node(live: LiveRun, ranks: Sequence[int]) -> dict[int, str] | str:
    """Return the stacks of the node of these ranks, or what went wrong."""
    failed = "its ranks have ended"
    # Any rank that lives tells of the others.
    for each in ranks:
        try:
            done = subprocess.run(
                live.argv(each, ()),
                env=client.scrubbed_environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_ANSWER,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"no answer within {_ANSWER:.0f} s"
        if done.returncode == 0:
            with contextlib.suppress(ValueError):
                return {int(one): text for one, text in json.loads(done.stdout).items()}
        if done.returncode != _NO_RANK:
            return " ".join(done.stderr.split()) or f"exit code {done.returncode}"
    return failed


def _whole_number(job: str) -> str:
    """Return the number by which srun knows a job, of an array's task too."""
    if job.isdigit():
        return job
    with contextlib.suppress(client.CommandFailed):
        if number := client.show("job", job).get("JobId"):
            return number
    raise HpcrunError(f"Slurm does not tell the number of job {job}", hint="type it again")


def _check(live: LiveRun, ranks: Sequence[int]) -> None:
    if unknown := sorted(set(ranks).difference(live.ranks)):
        raise UsageError(f"{live.name} has no rank {unknown[0]}: it has {range_text(live.ranks)}")
