"""The stacks of a node's ranks when they hang, also kept beside their logs."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hpcrun.run.health import native_stack, progress, python_stacks
from hpcrun.run.health.progress import RankProgress
from hpcrun.state.layout import AttemptPaths

# Seconds that ranks have to write their stacks, and how many characters of the end are sent.
STACKS_TAKE = 1.0
STACKS_MOST = 30_000
ALL_STACKS_MOST = 600_000
# Shorter than `hpcrun.run.job.agents` waits for an agent that is to end its ranks.
NATIVE_TAKE = 6.0

# Rank -> the processes of its program, where it has no session.
Processes = Callable[[Path, Mapping[int, RankProgress]], Mapping[int, Sequence[int]]]


def ask(
    scratch: Path, processes: Processes, since: Mapping[int, int] | None = None
) -> dict[int, str]:
    """Signal the ranks of a node to write their Python stacks; return rank -> all of the text.

    ``since`` is that of `progress.stacks`.
    """
    from concurrent.futures import ThreadPoolExecutor

    progress.ask_for_stacks(scratch)
    programs = processes(scratch, progress.living(scratch))
    with ThreadPoolExecutor(len(programs) or 1) as pool:
        later = {
            rank: pool.submit(python_stacks.stacks, pids, STACKS_TAKE)
            for rank, pids in programs.items()
        }
        time.sleep(STACKS_TAKE)
        found = progress.stacks(scratch, since)
        return found | {rank: each.result() for rank, each in later.items()}


def collect(paths: AttemptPaths, scratch: Path, processes: Processes) -> dict[int, str]:
    """Return the ends of the stacks that ranks write when asked, which are kept in full."""
    found = ask(scratch, processes)
    _keep(paths, found)
    most = min(STACKS_MOST, ALL_STACKS_MOST // max(1, len(found)))
    return {rank: text[-most:] for rank, text in found.items()}


def keep_native(paths: AttemptPaths, scratch: Path, processes: Processes) -> None:
    """Add the native stacks to the files; the supervisor has those of Python by now."""
    from concurrent.futures import ThreadPoolExecutor

    living = progress.living(scratch)
    pids = {rank: one.pid for rank, one in living.items()}
    for rank, found in processes(scratch, living).items():
        if found:
            pids[rank] = [*found, *python_stacks.pythons(found)][-1]
    with ThreadPoolExecutor(len(pids) or 1) as pool:
        texts = pool.map(lambda pid: native_stack.stacks(pid, NATIVE_TAKE), pids.values())
        _keep(paths, dict(zip(pids, texts, strict=True)))


def _keep(paths: AttemptPaths, found: Mapping[int, str]) -> None:
    def keep() -> None:
        for rank, text in found.items():
            if not text:
                continue
            with contextlib.suppress(OSError), open(paths.stacks(rank), "a") as stream:
                stream.write(text + "\n")

    # The shared storage may be what all of them wait for.
    threading.Thread(target=keep, daemon=True).start()
