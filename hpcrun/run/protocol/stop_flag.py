"""A warned stop: a flag that the agent raises on its node, and on which all ranks agree.

Signals of Slurm reach every process of a step, forked data loader workers included, at any moment;
a save is collective and fits only between two optimizer steps. So ranks do nothing on a signal.
Their agent hears it too and tells the supervisor, which knows what it means and has the agents
raise the flag.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)

_SIBLINGS_PATIENCE = 1.0


def flag(scratch: Path) -> Path:
    """Exists once the ranks of a node are to save and leave."""
    return scratch / "stop"


def heard(scratch: Path, number: int) -> Path:
    """Exists once a node's agent has received a signal, which then was for the whole step."""
    return scratch / f"heard-{signal.Signals(number).name}"


def outlive_signals(scratch: Path) -> None:
    """Have this process go on when Slurm signals its step; its agent sees to what follows.

    Children that it forks inherit this. One that is signalled alone, as a pool ends its workers,
    still ends: it dies where the agent has not heard the same signal within a second.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    owner = os.getpid()

    def handle(number: int, _frame: FrameType | None) -> None:
        if os.getpid() == owner:
            return
        path = heard(scratch, number)
        deadline = time.monotonic() + _SIBLINGS_PATIENCE
        while not path.exists():
            if time.monotonic() > deadline:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            time.sleep(0.02)

    for number in SIGNALS:
        signal.signal(number, handle)
