"""Ranks that are warm before they are needed, for restarts on the same nodes.

To import torch and DeepSpeed takes seconds, on busy storage many. So once a run has trained for a
while, a second set of its ranks is started, which import them and then wait, without a turn of the
processor, for a lock that their node's agent holds. Where the next attempt is on the same nodes
they become its ranks; else they leave, as they do when their agent does.
"""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import TextIO

from hpcrun.run.launch import Launch


class Call:
    """What the warm ranks of a node wait for; held by its agent.

    Parameters
    ----------
    scratch
        The node-local directory of the attempt in which they are started.
    """

    def __init__(self, scratch: Path) -> None:
        self._stream: TextIO = open(_place(scratch), "w")  # noqa: SIM115
        fcntl.flock(self._stream, fcntl.LOCK_EX)

    def make(self, launch: str | None) -> None:
        """Have them be ranks of the attempt with this ``launch.json``, or leave."""
        self._stream.write(launch or "")
        self._stream.close()


def wait(scratch: Path) -> Launch | None:
    """The attempt that a warm rank is called to; None where it is not needed.

    Raises
    ------
    OSError, ValueError, KeyError, TypeError
        The call, or the launch that it names, cannot be read.
    """
    with open(_place(scratch)) as stream:
        fcntl.flock(stream, fcntl.LOCK_SH)
        text = stream.read()
    return Launch.read(Path(text)) if text else None


def _place(scratch: Path) -> Path:
    # Beside the directories of attempts, which go when the next begins.
    return scratch.with_name(f"call-{scratch.name}")
