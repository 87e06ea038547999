"""Telemetry of a node: a line every few seconds, in a file per node.

A line is ``{"time", "cpu", "memory", "memory_total", "network", "fabric", "fabric_errors",
"gpus"}``; see docs/files.md. Samples are taken and written in threads, so that a driver or a file
system that does not answer blocks neither the agent nor the other figures.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from hpcrun.run.node import network
from hpcrun.run.node.counters import Counters
from hpcrun.run.node.gpus import Gpus
from hpcrun.run.protocol.output import say
from hpcrun.slurm.background import BackgroundCall
from hpcrun.state import files
from hpcrun.state.plan import RunPlan

# Seconds: all nodes together write about once a second, each at least every two minutes.
WRITE_EVERY_A_NODE = 1.0
WRITE_LATEST = 120.0
GPU_PATIENCE = 2.0
LEAVE = 1.0
# Lines kept for a file system that does not answer: three hours of them.
_MOST = 1000


def begin(
    run: RunPlan, path: Path, fabric: dict[str, Any], node: dict[str, Any], devices: str | None
) -> NodeTelemetry | None:
    """Start the telemetry of this node for an attempt; None if the spec switches it off.

    ``fabric`` is the profile's block; ``node`` has the fields of a `LaunchNode`; ``devices`` is
    CUDA_VISIBLE_DEVICES of the node's ranks, where hpcrun shares out the GPUs.
    """
    every = run.telemetry.every
    if not every:
        return None
    counters = Counters(*links(fabric, node))
    open_gpus = (lambda: Gpus(devices)) if run.resources.gpus_per_node else None
    return NodeTelemetry(path, counters, open_gpus, float(every), run.nodes)


def links(fabric: dict[str, Any], node: dict[str, Any]) -> tuple[str | None, str | None]:
    """Return the arguments of `Counters` for a node that is prepared; see `begin`."""
    is_apart = node["interface"] != network.management(fabric)[0]
    return node["interface"] if is_apart else None, node["hca"]


class NodeTelemetry:
    """Samples this node until it is stopped.

    ``open_gpus`` is called in a thread of its own. Samples are ``every`` seconds apart; the more
    ``nodes`` the run has, the more of them share a write.
    """

    def __init__(
        self,
        path: Path,
        counters: Counters,
        open_gpus: Callable[[], Gpus] | None,
        every: float,
        nodes: int,
    ) -> None:
        self._file = files.Appender(path, say)
        self._counters = counters
        self._open_gpus = open_gpus
        self._gpus: Gpus | None = None
        self._logged: str | None = None
        self.gpu = 0
        """Percent of a GPU times seconds that the samples saw."""
        self._every = every
        self._write_every = min(max(every, WRITE_EVERY_A_NODE * nodes), WRITE_LATEST)
        self._written = time.monotonic()
        self._lines: list[dict[str, Any]] = []
        self._reader: BackgroundCall[list[dict[str, Any]] | None] | None = None
        self._writer: threading.Thread | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="telemetry", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop sampling, and write the rest if the file system takes it at once."""
        self._over.set()
        self._thread.join(LEAVE)

    def _work(self) -> None:
        while not self._over.wait(self._every):
            line = {"time": round(time.time(), 1), **self._counters.read()}
            if gpus := self._read_gpus():
                line["gpus"] = gpus
                self.gpu += round(self._every * sum(one.get("utilization", 0) for one in gpus))
            self._lines = [*self._lines[-_MOST:], line]
            if time.monotonic() - self._written >= self._write_every - self._every / 2:
                self._write()
        self._write(wait=True)

    def _read_gpus(self) -> list[dict[str, Any]] | None:
        """Return the figures of the GPUs; None without any, or without an answer in time."""
        if self._open_gpus is None or not (self._reader is None or self._reader.wait(0)):
            return None
        self._reader = BackgroundCall(partial(self._ask_gpus, self._open_gpus))
        if self._reader.wait(GPU_PATIENCE):
            return self._reader.result()
        self._log(f"NVML gave no answer in {GPU_PATIENCE:g} s")
        return None

    def _ask_gpus(self, open_gpus: Callable[[], Gpus]) -> list[dict[str, Any]] | None:
        try:
            gpus = self._gpus = self._gpus or open_gpus()
            found = gpus.read()
        except ImportError as error:
            self._open_gpus = None
            self._log(f"{error}; the job's Python needs nvidia-ml-py")
        except Exception as error:
            self._gpus = None
            self._log(f"{type(error).__name__}: {error}")
        else:
            if gpus.trouble is None:
                self._logged = None
            else:
                self._log(gpus.trouble)
                self._gpus = None
            return found
        return None

    def _log(self, reason: str) -> None:
        """Log why figures of GPUs are absent, once for each new reason."""
        if reason != self._logged:
            say(f"telemetry lacks figures of the GPUs: {reason}")
        self._logged = reason

    def _write(self, *, wait: bool = False) -> None:
        if wait and self._writer is not None:
            self._writer.join()
        if not self._lines or (self._writer is not None and self._writer.is_alive()):
            return
        lines, self._lines = self._lines, []
        self._written = time.monotonic()
        self._writer = threading.Thread(target=self._file.write, args=lines, daemon=True)
        self._writer.start()
        if wait:
            self._writer.join()
