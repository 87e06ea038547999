"""Lets two training programs on the same nodes take turns, and times their steps alike.

`Turns` runs in every rank: it times steps from the top of one to the top of the next and, where the
referee wants it, waits there for its side's next turn. `Referee` runs outside the nodes. They speak
through a Unix socket, so that a rank that waits uses no processor time.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

START_SECONDS = 420.0
TURN_SECONDS = 180.0


class _Line:
    """JSON lines over a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._stream = connection.makefile("r", encoding="utf-8")

    def say(self, message: Any) -> None:
        self._connection.sendall(json.dumps(message).encode() + b"\n")

    def hear(self) -> Any:
        line = self._stream.readline()
        if not line:
            raise ConnectionError("the other end hung up")
        return json.loads(line)


class Turns:
    """One rank's stop-watch; where CUBLAS_WORKSPACE_CONFIG is set, its kernels repeat to the bit.

    Parameters
    ----------
    path
        The referee's socket.
    side
        The name of the program that this rank belongs to.
    """

    def __init__(self, path: str, side: str) -> None:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(path)
        self._line = _Line(connection)
        if os.environ.get("CUBLAS_WORKSPACE_CONFIG"):
            import torch

            torch.use_deterministic_algorithms(True)
            # DeepSpeed's buckets, a gigabyte at each step; nothing reads what it has not written.
            torch.utils.deterministic.fill_uninitialized_memory = False
        rank = int(os.environ["RANK"])
        self._line.say({"side": side, "rank": rank, "node": os.uname().nodename})
        self._pauses = set(self._line.hear()["pauses"])
        self._seconds: list[float] = []
        self._waited = 0.0
        self._processor: list[float] = []
        self._used = 0.0
        self._faults: list[int] = []
        self._faulted = 0
        self._began: float | None = None

    def at(self, step: int) -> None:
        """Call it at the top of every step's body, before any of its work.

        What a step takes is the time to the top of the next, with everything in between; of the
        last one before a pause, with all that a GPU still has to do of its turn.
        """
        if step in self._pauses:
            _settle()
        now = time.perf_counter()
        if self._began is not None:
            self._seconds.append(now - self._began)
            self._processor.append(time.process_time() - self._used)
            self._faults.append(_faults() - self._faulted)
        if step in self._pauses:
            self._line.say({"paused": step})
            self._line.hear()
            self._waited += time.perf_counter() - now
        self._used, self._faulted = time.process_time(), _faults()
        self._began = time.perf_counter()

    def finish(self, **results: Any) -> None:
        """Hand in the times, and what else this rank has to show."""
        times = {"seconds": self._seconds, "processor": self._processor, "waited": self._waited}
        self._line.say({**times, "faults": self._faults, **results})


def _faults() -> int:
    """Pages that the kernel has given to this process so far, without reading any."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def _settle() -> None:
    """Wait for this process's GPU, if it has one."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


class Referee:
    """Says whose turn it is.

    Parameters
    ----------
    path
        Where the socket shall be; every user may connect.
    ranks
        How many ranks each side has.
    """

    def __init__(self, path: Path, sides: Sequence[str], ranks: int) -> None:
        self._sides, self._ranks = sides, ranks
        self._lines: dict[tuple[str, int], _Line] = {}
        self.nodes: dict[str, list[str]] = {}
        self._socket = socket.socket(socket.AF_UNIX)
        path.unlink(missing_ok=True)
        self._socket.bind(str(path))
        path.chmod(0o666)
        self._socket.listen()

    def __enter__(self) -> Referee:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for line in self._lines.values():
            line._connection.close()
        self._socket.close()

    def welcome(self, pauses: Sequence[int], patience: float = START_SECONDS) -> None:
        """Wait until every rank of both sides stands at the first of ``pauses``."""
        nodes: dict[tuple[str, int], str] = {}
        deadline = time.monotonic() + patience
        while len(self._lines) < self._ranks * len(self._sides):
            self._socket.settimeout(max(0.1, deadline - time.monotonic()))
            connection, _ = self._socket.accept()
            connection.settimeout(TURN_SECONDS)
            line = _Line(connection)
            hello = line.hear()
            line.say({"pauses": list(pauses)})
            self._lines[hello["side"], hello["rank"]] = line
            nodes[hello["side"], hello["rank"]] = hello["node"]
        self.nodes = {
            side: [nodes[side, rank] for rank in range(self._ranks)] for side in self._sides
        }
        for side in self._sides:
            self._hear_all(side)

    def turn(self, side: str) -> None:
        """Let one side run to its next pause."""
        self._release(side)
        self._hear_all(side)

    def end(self) -> dict[str, list[Mapping[str, Any]]]:
        """Let both sides run to their ends; what each rank handed in."""
        for side in self._sides:
            self._release(side)
        return {side: self._hear_all(side) for side in self._sides}

    def _release(self, side: str) -> None:
        for rank in range(self._ranks):
            self._lines[side, rank].say("go")

    def _hear_all(self, side: str) -> list[Mapping[str, Any]]:
        return [self._lines[side, rank].hear() for rank in range(self._ranks)]
