"""Warm ranks, which import torch before a restart in the same allocation.

To import torch and DeepSpeed takes seconds, on busy storage many. So once a run has trained for a
while, as many ranks as it has on each node are started on all of its nodes, the spare ones too.
They import both and then block on a lock that their node's agent holds, using no processor. On the
nodes of the next attempt they become its ranks, with the numbers that their node has there;
on others they leave, as they do when their agent does.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from hpcrun.errors import HpcrunError
from hpcrun.policy import frameworks
from hpcrun.run.node import cgroup
from hpcrun.run.protocol import stop_flag
from hpcrun.run.protocol.launch import Launch
from hpcrun.state import files
from hpcrun.state.node_layout import ScratchPaths
from hpcrun.state.plan import RunPlan

_LEAVE = "-"
# Bytes per warm rank, doubled because the training goes on.
_TAKES = 600 << 20
# Every rank of a function imports these.
_MODULES = ("torch", "deepspeed", "hpcrun.run.session")
# Packages that are slow to import and have no other side effect; imported if the run has them.
_PACKAGES = frozenset(
    {
        *("torch", "deepspeed", "sympy", "numpy", "scipy", "sklearn", "pandas", "pyarrow"),
        *("transformers", "tokenizers", "datasets", "accelerate", "peft", "huggingface_hub"),
        *("torchvision", "torchaudio", "timm", "einops", "lightning", "pytorch_lightning"),
        "triton",
    }
)
# Seconds between tries to read a launch.json that another node has just written.
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
    launch = _read_launch(Path(text))
    rank = place.rank_in(launch)
    if rank is None:
        return None
    log_path = launch.paths.rank_log(rank)
    with contextlib.suppress(OSError), open(log_path, "ab") as log:
        for descriptor in (1, 2):
            os.dup2(log.fileno(), descriptor)
    return launch, rank


def _read_launch(path: Path) -> Launch:
    for pause in _PAUSES:
        with contextlib.suppress(OSError):
            return Launch.read(path)
        time.sleep(pause)
    return Launch.read(path)


def check_room(ranks: int) -> None:
    """Raise `HpcrunError` if so many warm ranks could leave the training short of memory."""
    left = cgroup.memory_left()
    if left is not None and left < ranks * _TAKES:
        raise HpcrunError(f"{left >> 20} MiB of memory are left, too little for warm ranks")


def ignore_signals() -> None:
    """Ignore Slurm's signals, which are for the ranks at work."""
    for number in stop_flag.SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def note_modules(scratch: Path) -> None:
    """Record which slow packages a rank has imported, for its warm counterparts."""
    names = [name for name in list(sys.modules) if name.partition(".")[0] in _PACKAGES]
    with contextlib.suppress(OSError):
        ScratchPaths(scratch).modules.write_text("\n".join(names))


def import_all(scratch: Path, variables: dict[str, str], code: Path, paths: Sequence[str]) -> None:
    """Import what the ranks import, in a rank's environment, which is restored afterwards.

    ``scratch`` is that of the running attempt, where a rank has noted its modules; ``variables``
    (torch reads some as it is imported) and ``paths`` (the first of ``sys.path``) are a rank's;
    ``code`` is the frozen code on this node. Raises `HpcrunError` if a module comes from that,
    because the next attempt has another copy, or if an import has begun to use a GPU.
    """
    ignore_signals()
    noted: list[str] = []
    with contextlib.suppress(OSError, UnicodeDecodeError):
        noted = files.read_bytes(ScratchPaths(scratch).modules).decode().split()
    with _environment(variables, paths):
        for name in _MODULES:
            importlib.import_module(name)
        # In the ranks' order. Some names cannot be imported by themselves.
        for name in noted:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    if sys.modules["torch"].cuda.is_initialized():
        raise HpcrunError("an import has begun to use the GPU, which the ranks at work need")
    for name, module in list(sys.modules.items()):
        if code in Path(getattr(module, "__file__", None) or "/").parents:
            raise HpcrunError(f"{name} is imported from the frozen code")


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
