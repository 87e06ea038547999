"""Ranks that are warm before they are needed, for restarts on the same nodes.

To import torch and DeepSpeed takes seconds, on busy storage many. So once a run has trained for a
while, a second set of its ranks is started, which import them and then wait, without a turn of the
processor, for a lock that their node's agent holds. Where the next attempt is on the same nodes
they become its ranks; else they leave, as they do when their agent does.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from hpcrun.errors import HpcrunError
from hpcrun.run.node import cgroup
from hpcrun.run.protocol import stop_flag
from hpcrun.run.protocol.launch import Launch
from hpcrun.slurm.duration import seconds
from hpcrun.state.layout import AttemptPaths
from hpcrun.state.plan import RunPlan

_LEAVE = "-"
_NOTED = "modules"
# Bytes that one takes, twice: the training goes on.
_TAKES = 600 << 20
# What every rank of a function imports.
_MODULES = ("torch", "deepspeed", "hpcrun.run.session")
# Of what a run has imported besides, what takes long and does nothing else as it is imported.
_PACKAGES = frozenset(
    {
        *("torch", "deepspeed", "sympy", "numpy", "scipy", "sklearn", "pandas", "pyarrow"),
        *("transformers", "tokenizers", "datasets", "accelerate", "peft", "huggingface_hub"),
        *(
            "torchvision",
            "torchaudio",
            "timm",
            "einops",
            "lightning",
            "pytorch_lightning",
            "triton",
        ),
    }
)
# Pauses between tries to read a launch.json that another node has just written.
_PAUSES = (0.1, 0.5, 1.0, 3.0)


def after(run: RunPlan) -> float | None:
    """For how many seconds a run trains before it has warm ranks; None where it never has."""
    recovery = run.spec.get("recovery") or {}
    if run.entry.kind == "command" or not recovery.get("in_place", 0):
        return None
    return seconds(recovery.get("warm_after") or "")


class Call:
    """What the warm ranks of a node wait for; held by its agent.

    Parameters
    ----------
    scratch
        The node-local directory of the attempt in which they are started.
    """

    def __init__(self, scratch: Path) -> None:
        self._descriptor = os.open(_place(scratch), os.O_WRONLY | os.O_CREAT, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def make(self, launch: str | None) -> None:
        """Have them be ranks of the attempt with this ``launch.json``, or leave."""
        try:
            os.write(self._descriptor, (launch or _LEAVE).encode())
        finally:
            self.close()

    def close(self) -> None:
        """Nobody is to wait any more."""
        os.close(self._descriptor)


def wait(scratch: Path, rank: int) -> Launch | None:
    """The attempt that a warm rank is called to, whose log is its own then; None where it is not
    needed.

    Raises
    ------
    HpcrunError
        The agent is gone, or could not write whom it calls.
    OSError
        The launch cannot be read.
    """
    try:
        with open(_place(scratch)) as stream:
            fcntl.flock(stream, fcntl.LOCK_SH)
            text = stream.read()
    except FileNotFoundError:  # the agent has left, and cleaned its node
        return None
    if not text:
        raise HpcrunError("this node's agent is gone")
    if text == _LEAVE:
        return None
    path = Path(text)
    with (
        contextlib.suppress(OSError),
        open(AttemptPaths(path.parent).rank_log(rank), "ab") as log,
    ):
        for descriptor in (1, 2):
            os.dup2(log.fileno(), descriptor)
    for pause in _PAUSES:
        with contextlib.suppress(OSError):
            return Launch.read(path)
        time.sleep(pause)
    return Launch.read(path)


def check_room(ranks: int) -> None:
    """Raise where a node has little memory left for so many warm ranks.

    Raises
    ------
    HpcrunError
        The training could be short of memory with them.
    """
    left = cgroup.memory_left()
    if left is not None and left < ranks * _TAKES:
        raise HpcrunError(f"{left >> 20} MiB of memory are left, too little for warm ranks")


def ignore_signals() -> None:
    """Slurm's are for the ranks at work."""
    for number in stop_flag.SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def note_modules(scratch: Path) -> None:
    """Write down what a rank has imported, for those that are to be as warm as it is."""
    names = [name for name in list(sys.modules) if name.partition(".")[0] in _PACKAGES]
    with contextlib.suppress(OSError):
        (scratch / _NOTED).write_text("\n".join(names))


def import_all(scratch: Path, variables: dict[str, str], code: Path, paths: Sequence[str]) -> None:
    """Import what the ranks do, in the surroundings of one, which are as before then.

    Parameters
    ----------
    scratch
        Of the running attempt, of which a rank has noted its modules.
    variables
        Of a rank: some are read as torch is imported.
    code
        The frozen code on this node.
    paths
        Where ranks look for modules first.

    Raises
    ------
    HpcrunError
        A module comes from the frozen code, of which the next attempt has another copy; or memory
        of a GPU may be held now.
    """
    ignore_signals()
    with _surroundings(variables, paths):
        for name in _MODULES:
            importlib.import_module(name)
        # In the order of the ranks. Some names are no modules that can be imported by themselves.
        for name in _noted(scratch):
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    if sys.modules["torch"].cuda.is_initialized():
        raise HpcrunError("an import has begun to use the GPU, which the ranks at work need")
    for name, module in list(sys.modules.items()):
        if code in Path(getattr(module, "__file__", None) or "/").parents:
            raise HpcrunError(f"{name} is imported from the frozen code")


def _noted(scratch: Path) -> list[str]:
    try:
        return (scratch / _NOTED).read_text().split()
    except OSError:
        return []


@contextlib.contextmanager
def _surroundings(variables: dict[str, str], paths: Sequence[str]) -> Iterator[None]:
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


def _place(scratch: Path) -> Path:
    # Beside the directories of attempts, which go when the next begins.
    return scratch.with_name(f"call-{scratch.name}")
