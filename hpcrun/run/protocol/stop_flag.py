"""The stop flag: an agent raises it, and all ranks agree on when to stop.

Signals of Slurm reach every process of a step, forked data loader workers included, at any moment;
a save is collective and fits only between two optimizer steps. So ranks ignore signals. Their agent
reports them to the supervisor, which knows what they mean and has the agents raise the flag.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType

from hpcrun.state.node_layout import ScratchPaths

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)

_SIBLINGS_PATIENCE = 1.0


def leave(scratch: Path | None) -> None:
    """Tell this node's workers that a rank has saved and leaves; None for outside hpcrun.

    The rank's own exit code reaches them only if no launcher is in between.
    """
    if scratch is not None:
        with contextlib.suppress(OSError):
            ScratchPaths(scratch).left.touch()


def unblock() -> None:
    """Receive signals again in a process that `hpcrun.run.enter` has started with them blocked."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def outlive_signals(scratch: Path) -> None:
    """Ignore signals that Slurm sends to the whole step; the agent acts on them.

    Forked children inherit this, but a child that is signalled alone (as a pool ends its workers)
    still ends: it dies unless the agent gets the same signal within a second.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    owner = os.getpid()

    def handle(number: int, _frame: FrameType | None) -> None:
        if os.getpid() == owner:
            return
        path = ScratchPaths(scratch).heard(number)
        deadline = time.monotonic() + _SIBLINGS_PATIENCE
        while not path.exists():
            if time.monotonic() > deadline:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            time.sleep(0.02)

    for number in SIGNALS:
        signal.signal(number, handle)
