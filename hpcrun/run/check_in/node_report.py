"""What a node's agent finds wrong with its node, as an attempt begins.

Nothing here waits for longer than `PATIENCE`: a driver or a file system that does not answer in
time is a finding. A fault is looked for twice. Errors of shared storage are raised.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from hpcrun.policy import node_health
from hpcrun.run.node import gpus
from hpcrun.slurm.background import BackgroundCall
from hpcrun.text import agreeing, plural, size

# Seconds for the driver, and for the file systems.
PATIENCE = 3.0
# Seconds after which what seems to be a fault is looked for again.
AGAIN = 1.0
_DRIVER = Path("/proc/driver/nvidia/version")
# Free bytes and files below which a file system is about to be full.
_LITTLE_BYTES, _LITTLE_FILES = 64 << 20, 1_000
_MOST = 16
# Errors of NVML that say nothing of a GPU: its library is not in a container, a MIG device is ours.
_SAYS_NOTHING = frozenset({"NVMLError_LibraryNotFound", "NVMLError_NoPermission"})

Finding = tuple[str, str]


def report(
    shared: Path, scratch: Path, node: str, devices: str | None, *, wants: int, first_time: bool
) -> dict[str, Any]:
    """Return the report of this node for its supervisor; raise OSError of shared storage.

    It has ``findings`` (kind and message of each), ``gpus`` (how many this job can see; None where
    that does not matter, or cannot be told) and ``clock`` (seconds since the epoch). ``shared`` and
    ``scratch`` are the attempt's directories, ``devices`` CUDA_VISIBLE_DEVICES of the node's ranks
    (None where Slurm has set it here), ``wants`` the GPUs that the run asked for on each node;
    ``first_time``: no rank of this job has been on the node before.
    """
    found: list[Finding] = []
    # Of the shared one nobody can tell that from a server that is busy.
    late_shared = f"its shared storage has not answered for {PATIENCE:.0f} s"
    looks: list[tuple[Callable[[], list[Finding]], Finding]] = [
        (
            partial(storage, scratch, "node-local", node),
            (node_health.NOT_WRITABLE, "its node-local storage does not answer"),
        ),
        (partial(storage, shared, "shared", node), (node_health.SHARED_STORAGE, late_shared)),
    ]
    count = 0 if wants and not _DRIVER.exists() else None
    if wants and count is None:

        def look_at_gpus() -> list[Finding]:
            nonlocal count
            seen, told = of_gpus(devices, wants, first_time=first_time)
            count = seen if count is None else count
            return told

        words = "the driver of its GPUs does not answer"
        looks.append((look_at_gpus, (node_health.BUSY_GPU, words)))
    for look, late in looks:
        answer = _in_time(look)
        if answer and any(kind in node_health.FAULTS for kind, _ in answer):
            time.sleep(AGAIN)
            answer = _in_time(look)
        found += [late] if answer is None else answer
    cut = [(kind, message[:300]) for kind, message in found[:_MOST]]
    return {"findings": cut, "gpus": count, "clock": time.time()}


def _in_time(look: Callable[[], list[Finding]]) -> list[Finding] | None:
    """Return what a look finds, or raise its OSError; None if that takes too long."""
    call = BackgroundCall(look)
    if not call.wait(PATIENCE):
        return None
    try:
        return call.result()
    except OSError:
        raise
    except Exception:
        import traceback  # which an agent does without

        # A look that is broken finds nothing.
        traceback.print_exc()
        return []


def storage(path: Path, name: str, node: str) -> list[Finding]:
    """Return what is wrong with writing to a directory from this node.

    Where it is ``shared``, raises OSError unless it is full, or a quota is used up.
    """
    doubt = node_health.SHARED_STORAGE if name == "shared" else node_health.LITTLE_ROOM
    own, found = path / f".check-{node}", []
    try:
        own.write_bytes(b"hpcrun")
        if own.read_bytes() != b"hpcrun":
            raise OSError(errno.EIO, "it reads something else than was written", str(own))
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        if name == "shared" and not is_full:
            raise
        kind = doubt if name == "shared" else node_health.NOT_WRITABLE
        found.append((kind, f"its {name} storage cannot be written: {error.strerror or error}"))
    else:
        found += [(doubt, told) for told in _room(path, name)]
    with contextlib.suppress(OSError):
        own.unlink()
    return found


def _room(path: Path, name: str) -> list[str]:
    with contextlib.suppress(OSError):
        there = os.statvfs(path)
        left = there.f_bavail * there.f_frsize
        if there.f_blocks and left < _LITTLE_BYTES:
            return [f"its {name} storage has {size(left)} left"]
        if there.f_files and there.f_favail < _LITTLE_FILES:
            return [f"its {name} storage has room for {there.f_favail} files"]
    return []


def of_gpus(
    devices: str | None, wants: int, *, first_time: bool
) -> tuple[int | None, list[Finding]]:
    """Return how many GPUs of this job NVML sees, and what is wrong with them.

    Without the library nothing is known. Ranks of an earlier attempt may still leave their memory.
    Whether none at all is wrong shows on other nodes: Slurm may hide them from an agent.
    """
    try:
        reader = gpus.Gpus(devices)
    except ImportError:
        return None, []
    except Exception as error:
        if type(error).__name__ in _SAYS_NOTHING:
            return None, []
        # Classes of NVML's, such as "Driver/library version mismatch".
        return None, [(node_health.BROKEN_GPU, f"its GPUs do not answer: {error}")]
    found = []
    states = reader.check()
    if 0 < len(states) < wants:
        has = plural(len(states), "GPU")
        found.append((node_health.NO_GPU, f"it has {has} of the {wants} that the run asks for"))
    for place, state in enumerate(states):
        if state.trouble:
            found.append((node_health.BROKEN_GPU, f"GPU {place} does not answer: {state.trouble}"))
        if state.ecc_errors:
            errors = plural(state.ecc_errors, "uncorrected memory error", ",")
            found.append((node_health.ECC_ERRORS, f"GPU {place} had {errors} since it was reset"))
        if state.processes and first_time:
            others = agreeing(state.processes, "1 process", f"{state.processes} processes")
            found.append((node_health.BUSY_GPU, f"GPU {place} is used by {others} already"))
        elif state.used > _USED * state.total and first_time:
            used = f"{size(state.used)} of {size(state.total)}"
            found.append((node_health.BUSY_GPU, f"GPU {place} has {used} in use"))
    return len(states), found


# The part of a GPU's memory that is in use where a GPU is idle, at most.
_USED = 0.1
