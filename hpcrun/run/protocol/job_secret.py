"""The secret of one start of a job, by which supervisor and agents know each other.

The supervisor makes it and writes it to each agent's standard input: through srun, which hands that
to the step (seen on Slurm 22.05 and 24.11). So it is in the memory of these processes only. A
command line can be read by everybody, a file by who owns the storage, and an environment is
inherited by ranks, trackers and the user's commands, whose logs may show it. The agent puts
``/dev/null`` in the place of its standard input before it starts anything.

Slurm carries standard input over the cluster's network as it carries environments: a site whose
network is not its own has to encrypt it there.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import re
import select
import time
from typing import TYPE_CHECKING

from hpcrun.errors import HpcrunError

if TYPE_CHECKING:
    import subprocess

_FORM = re.compile(rb"[0-9a-f]{64}\n")
# Seconds in which it is there; srun may be slow to connect a step.
_PATIENCE = 60.0


class JobSecret:
    """A secret, and what can be shown of it."""

    def __init__(self, text: str) -> None:
        self._text = text

    @classmethod
    def new(cls) -> JobSecret:
        return cls(os.urandom(32).hex())

    @property
    def start(self) -> str:
        """A public name of this start of the job, from which the secret cannot be found."""
        return self.digest("start")[:12]

    def digest(self, *parts: str) -> str:
        """Return the HMAC of words, none of which has a space."""
        return hmac.new(self._text.encode(), " ".join(parts).encode(), "sha256").hexdigest()

    def key(self, *parts: str) -> bytes:
        """Return a key for one direction of one connection."""
        return bytes.fromhex(self.digest("key", *parts))

    def hand_over(self, process: subprocess.Popen[bytes]) -> None:
        """Write it to a process's standard input; who has ended by then is noticed elsewhere."""
        assert process.stdin is not None
        with contextlib.suppress(OSError), process.stdin as stream:
            stream.write(self._text.encode() + b"\n")

    @classmethod
    def take(cls, patience: float = _PATIENCE) -> JobSecret:
        """Read it from standard input, which has nothing afterwards.

        Raises HpcrunError if it is not there, as where a person started this process.
        """
        line, deadline = b"", time.monotonic() + patience
        while len(line) < 65:
            left = max(0.0, deadline - time.monotonic())
            part = os.read(0, 65 - len(line)) if select.select([0], [], [], left)[0] else b""
            if not part:
                break
            line += part
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        if not _FORM.fullmatch(line):
            raise HpcrunError("the supervisor, which starts agents, did not tell its secret")
        return cls(line.decode().strip())
