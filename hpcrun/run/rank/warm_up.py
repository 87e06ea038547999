"""Warm ranks, which import torch before a restart in the same allocation.

To import torch and DeepSpeed takes seconds, on busy storage many. So once a run has trained for a
while, as many ranks as it has on each node are started on all of its nodes, the spare ones too.
They import what rank 0 did and then block on a lock that their node's agent holds, using no
processor. On the nodes of the next attempt they become its ranks, with the numbers that their node
has there; on others they leave, as they do when their agent does.

What rank 0 imported stands in the attempt's directory, a line a module, written after its first
step: by its session, else by its agent, from what the start-up file of a script
(`hpcrun.run.health.python_stacks`) noted on the node. Behind a module that file has the environment
variables, and ``sys.path``, that the program had changed by then.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TextIO, TypeVar

from hpcrun.errors import HpcrunError
from hpcrun.policy import frameworks
from hpcrun.run.protocol import stop_flag
from hpcrun.run.protocol.launch import Launch
from hpcrun.run.protocol.output import tell
from hpcrun.shared_dataclass import replace
from hpcrun.state import files
from hpcrun.state.layout import AttemptPaths
from hpcrun.state.node_layout import ScratchPaths
from hpcrun.state.plan import RunPlan
from hpcrun.text import listed

_Read = TypeVar("_Read")
_LEAVE = "-"
# Bytes per warm rank, doubled because the training goes on.
_TAKES = 600 << 20
# What every rank with a session imports too.
_SESSION = "hpcrun.run.session"
# Packages that are slow to import and have no other side effect; imported if rank 0 has them.
PACKAGES = frozenset(
    {
        *("torch", "deepspeed", "sympy", "numpy", "scipy", "sklearn", "pandas", "pyarrow"),
        *("transformers", "tokenizers", "datasets", "accelerate", "peft", "huggingface_hub"),
        *("torchvision", "torchaudio", "timm", "einops", "lightning", "pytorch_lightning"),
        "triton",
    }
)
# Variables that no package reads as it is imported.
_READ_LATER = re.compile(
    r"(WANDB|MLFLOW|NCCL|TORCH_NCCL|GLOO|MASTER)_\w+"
    r"|CUBLAS_WORKSPACE_CONFIG|TOKENIZERS_PARALLELISM|PYTHONHASHSEED"
)
_MOST_NOTED = 1 << 22
# Seconds between tries to read a file that another node has just written.
_PAUSES = (0.1, 0.5, 1.0, 3.0)


def after(run: RunPlan) -> float | None:
    """Return the seconds of training before a run gets warm ranks; None if it gets none."""
    if run.entry.kind == "command" or not run.recovery.in_place or run.role_plans:
        return None
    if run.entry.framework == frameworks.MPI:
        # To import mpi4py is to wait for the other ranks.
        return None
    if run.spec.get("batch_script"):
        return None  # it starts the ranks
    # Not for ranks, which wait for every import.
    from hpcrun.slurm.parse import parse_duration

    return parse_duration(run.recovery.warm_after or "")


def arguments(nodes: Sequence[str], spares: Mapping[str, Path]) -> list[str]:
    """Return the worker's arguments for the warm ranks of one step.

    Its tasks are so many a node of ``nodes`` as the run has ranks, in their order. ``spares`` are
    nodes that have no rank yet, with the directory of the running attempt there.
    """
    own = [f"{node}={spares[node]}" for node in nodes if node in spares]
    return ["--warm", ",".join(nodes), *(["--spares", *own] if own else [])]


class WarmPlace:
    """The place of one warm rank: its node, which of the ranks there, and as whom it imports.

    ``launch`` is the running attempt's; ``task`` its number in the step on ``nodes``; ``spares`` as
    written by `arguments`. On a spare node it imports as if that were the first of the attempt.
    """

    def __init__(
        self, launch: Launch, task: int, nodes: Sequence[str], spares: Sequence[str] = ()
    ) -> None:
        self._per_node = launch.ranks_per_node
        self._node, self._local = nodes[task // self._per_node], task % self._per_node
        scratch = dict(spare.split("=", 1) for spare in spares).get(self._node)
        if scratch is not None:
            own = replace(launch.nodes[0], name=self._node, scratch=scratch)
            launch = replace(launch, nodes=(own, *launch.nodes[1:]))
        rank = self.rank_in(launch)
        if rank is None:
            raise HpcrunError(f"node {self._node} is none of attempt {launch.attempt}")
        self.launch, self.rank = launch, rank
        # Opened at once: an agent that another one of its node replaces removes its directory.
        self.call: TextIO | None = None
        with contextlib.suppress(OSError):
            self.call = ScratchPaths(self.scratch).call.open()

    @property
    def scratch(self) -> Path:
        """The node-local directory of the attempt in which it was started."""
        return Path(self.launch.node_of(self.rank).scratch)

    def rank_in(self, launch: Launch) -> int | None:
        """Return its rank in an attempt; None if that is not on its node."""
        names = [node.name for node in launch.nodes]
        if self._node not in names:
            return None
        return names.index(self._node) * self._per_node + self._local


class WarmRanksLock:
    """The lock that a node's warm ranks wait for, held by its agent.

    ``scratch`` is the node-local directory of the attempt in which they are started.
    """

    def __init__(self, scratch: Path) -> None:
        self._descriptor = os.open(ScratchPaths(scratch).call, os.O_WRONLY | os.O_CREAT, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def release(self, launch: str | None) -> None:
        """Have them become ranks of the attempt with this ``launch.json``, or leave (None)."""
        try:
            write_call(self._descriptor, launch)
        finally:
            self.close()

    def is_written(self) -> bool:
        """Check whether the agent of a new supervisor has written whom they are to join."""
        return os.fstat(self._descriptor).st_size > 0

    def close(self) -> None:
        """Let the lock go; ranks that still wait find that their agent is gone."""
        os.close(self._descriptor)


def write_call(descriptor: int, launch: str | None) -> None:
    """Write to the file of a call which ``launch.json`` is joined; None if none is."""
    os.write(descriptor, (launch or _LEAVE).encode())


def call_for(scratch: Path, launch: str | None) -> None:
    """Call warm ranks whose lock another agent of this node holds, which lets it go then.

    ``scratch`` is that of the attempt in which they were started. Nothing happens if they are gone.
    """
    with contextlib.suppress(OSError):
        descriptor = os.open(ScratchPaths(scratch).call, os.O_WRONLY | os.O_NOFOLLOW)
        try:
            write_call(descriptor, launch)
        finally:
            os.close(descriptor)


def wait(place: WarmPlace) -> tuple[Launch, int] | None:
    """Wait for the attempt that a warm rank is to join, and write to its log from then on.

    Returns it with the rank, None if that is not needed. Raises `HpcrunError` if the agent is gone
    or could not write which attempt it is, `OSError` if the launch cannot be read.
    """
    if place.call is None:  # the agent has left, and cleaned its node
        return None
    with place.call as stream:
        fcntl.flock(stream, fcntl.LOCK_SH)
        text = stream.read()
    if not text:
        raise HpcrunError("this node's agent is gone")
    if text == _LEAVE:
        return None
    launch = _patiently(lambda: Launch.read(Path(text)))
    rank = place.rank_in(launch)
    if rank is None:
        return None
    log_path = launch.paths.rank_log(rank)
    with contextlib.suppress(OSError), open(log_path, "ab") as log:
        for descriptor in (1, 2):
            os.dup2(log.fileno(), descriptor)
    return launch, rank


def _patiently(read: Callable[[], _Read]) -> _Read:
    for pause in _PAUSES:
        with contextlib.suppress(OSError):
            return read()
        time.sleep(pause)
    return read()


def check_room(ranks: int) -> None:
    """Raise `HpcrunError` if so many warm ranks could leave the training short of memory."""
    from hpcrun.run.node import cgroup

    left = cgroup.memory_left()
    if left is not None and left < ranks * _TAKES:
        raise HpcrunError(f"{left >> 20} MiB of memory are left, too little for warm ranks")


def ignore_signals() -> None:
    """Ignore Slurm's signals, which are for the ranks at work."""
    for number in stop_flag.SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def note_modules(launch: Launch) -> None:
    """Record which slow packages a rank with a session has imported, for its warm counterparts."""
    own = {name.partition(".")[0] for name in _of_users(Path(launch.own_node.code))}
    wanted = PACKAGES - own
    names = [name for name in list(sys.modules) if name.partition(".")[0] in wanted]
    with contextlib.suppress(OSError):
        files.write_bytes(launch.paths.modules, "\n".join([*names, _SESSION]).encode())


def publish(file: str, scratch: Path, paths: AttemptPaths) -> int:
    """Give warm ranks on all nodes what rank 0 of a script noted on its own; return the lines.

    ``file`` is the script. A package beside it is the user's own, which a warm rank must not run.
    """
    beside = (ScratchPaths(scratch).code / file).parent
    own = {name for name in PACKAGES if _is_package(beside, name)}
    with contextlib.suppress(OSError, UnicodeDecodeError):
        text = files.read_bytes(ScratchPaths(scratch).modules, _MOST_NOTED).decode()
        lines = [one for one in text.splitlines() if re.split("[. ]", one)[0] not in own]
        if lines:
            files.write_bytes(paths.modules, "\n".join(lines).encode())
        return len(lines)
    return 0


def _is_package(directory: Path, name: str) -> bool:
    return (directory / f"{name}.py").exists() or (directory / name / "__init__.py").exists()


def _of_users(code: Path) -> list[str]:
    """Return the modules of this process that come from the frozen code."""
    paths = {name: getattr(one, "__file__", None) for name, one in list(sys.modules.items())}
    return [name for name, path in paths.items() if code in Path(path or "/").parents]


def hand_on(paths: AttemptPaths, scratch: Path) -> None:
    """Note on the node of rank 0, which was warm, what the attempt before had noted."""
    with contextlib.suppress(OSError):
        import shutil  # most ranks were not warm

        shutil.copyfile(paths.modules, ScratchPaths(scratch).modules)


def import_all(noted: Path, variables: dict[str, str], code: Path, paths: Sequence[str]) -> None:
    """Import what rank 0 of the running attempt did, in a rank's environment, which is restored.

    Its modules stand in the file ``noted``; ``variables`` (torch reads some as it is imported) and
    ``paths`` (the first of ``sys.path``) are a rank's; ``code`` is the frozen code on this node.
    Where the program had changed variables or ``sys.path`` itself, this and what follows is left to
    be imported after the call.

    Raises `HpcrunError` if nothing can be imported, if a module comes from the frozen code,
    because the next attempt has another copy, or if an import has begun to use a GPU.
    """
    ignore_signals()
    lines = [line.split() for line in _read_noted(noted).splitlines()]
    with _environment(variables, paths):
        variables, places = dict(os.environ), list(sys.path)
        # In the rank's order. Some names cannot be imported by themselves.
        for name, *changed in lines:
            if name in sys.modules:
                continue
            by_program = {*changed} - _changes(variables, places)
            if by_program := {one for one in by_program if not _READ_LATER.fullmatch(one)}:
                tell(f"the program sets {listed(sorted(by_program), 3)} before it imports {name}")
                break
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    if not any(one[0] in sys.modules for one in lines):
        raise HpcrunError("nothing can be imported before the program begins")
    if "torch" in sys.modules and sys.modules["torch"].cuda.is_initialized():
        raise HpcrunError("an import has begun to use the GPU, which the ranks at work need")
    for name in _of_users(code):
        raise HpcrunError(f"{name} is imported from the frozen code")


def _read_noted(path: Path) -> str:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return _patiently(lambda: files.read_bytes(path, _MOST_NOTED)).decode()
    return ""


def _changes(variables: Mapping[str, str], places: Sequence[str]) -> set[str]:
    """Return which environment variables, and whether ``sys.path``, are others by now."""
    now = dict(os.environ)
    found = {name for name in {*now, *variables} if now.get(name) != variables.get(name)}
    return found | ({"sys.path"} if sys.path != places else set())


@contextlib.contextmanager
def _environment(variables: dict[str, str], paths: Sequence[str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    sys.path[:0] = paths
    try:
        yield
    finally:
        for path in paths:
            sys.path.remove(path)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
