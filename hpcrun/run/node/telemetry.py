"""What a node does while an attempt runs on it: a line every few seconds, in a file a node.

A line is ``{"time", "cpu", "memory", "memory_total", "network", "fabric", "gpus"}``; see
docs/architecture.md. Its agent samples in threads of their own: a driver or a file system that does
not answer keeps neither the agent nor the other figures from going on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcrun.run.node import network as node_network
from hpcrun.run.node.counters import Counters
from hpcrun.run.node.gpus import Gpus
from hpcrun.run.protocol.output import say
from hpcrun.state import files
from hpcrun.state.plan import RunPlan

# All nodes of a run together write about once a second, and each of them every two minutes.
WRITE_EVERY_A_NODE = 1.0
WRITE_LATEST = 120.0
GPU_PATIENCE = 2.0
LEAVE = 1.0
# Lines that wait for a file system that does not answer: three hours of them.
_MOST = 1000


def begin(
    run: RunPlan, path: Path, network: dict[str, Any], node: dict[str, Any], devices: str | None
) -> NodeTelemetry | None:
    """Sample this node for an attempt; None where the spec wants none of that.

    Parameters
    ----------
    path
        The attempt's file for this node.
    network
        The profile's ``fabric`` block.
    node
        What `hpcrun.run.protocol.launch.LaunchNode` holds.
    devices
        CUDA_VISIBLE_DEVICES of the node's ranks, where hpcrun shares out the GPUs.
    """
    every = run.telemetry.every
    if not every:
        return None
    is_apart = node["interface"] != node_network.management(network)[0]
    gauges = Counters(node["interface"] if is_apart else None, node["hca"])
    open_gpus = (lambda: Gpus(devices)) if run.resources.gpus_per_node else None
    return NodeTelemetry(path, gauges, open_gpus, float(every), run.nodes)


class NodeTelemetry:
    """Samples this node until it is stopped.

    Parameters
    ----------
    path
        The attempt's file for this node.
    gauges
        The node's own figures.
    open_gpus
        Makes what reads the GPUs; None for a run without. Called in a thread of its own.
    every
        Seconds between two samples.
    nodes
        How many nodes do the same: the more there are, the more samples share a write.
    """

    def __init__(
        self,
        path: Path,
        gauges: Counters,
        open_gpus: Callable[[], Gpus] | None,
        every: float,
        nodes: int,
    ) -> None:
        self._file = files.Appender(path, say)
        self._gauges = gauges
        self._open_gpus = open_gpus
        self._gpus: Gpus | None = None
        self._told: str | None = None
        self._every = every
        self._write_every = min(max(every, WRITE_EVERY_A_NODE * nodes), WRITE_LATEST)
        self._written = time.monotonic()
        self._lines: list[dict[str, Any]] = []
        self._reader: threading.Thread | None = None
        self._writer: threading.Thread | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="telemetry", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Sample no more, and write what is left if the file system takes it at once."""
        self._over.set()
        self._thread.join(LEAVE)

    def _work(self) -> None:
        while not self._over.wait(self._every):
            line = {"time": round(time.time(), 1), **self._gauges.read()}
            if gpus := self._read_gpus():
                line["gpus"] = gpus
            self._lines = [*self._lines[-_MOST:], line]
            if time.monotonic() - self._written >= self._write_every - self._every / 2:
                self._write()
        self._write(wait=True)

    def _read_gpus(self) -> list[dict[str, Any]] | None:
        """What the GPUs do; None where there is none, or no answer in time."""
        if self._open_gpus is None or _lives(self._reader):
            return None
        answers: list[list[dict[str, Any]]] = []

        def read() -> None:
            try:
                if self._gpus is None:
                    assert self._open_gpus is not None
                    self._gpus = self._open_gpus()
                answers.append(self._gpus.read())
                if self._gpus.trouble is None:
                    self._told = None
                else:
                    self._tell(self._gpus.trouble)
                    self._gpus = None
            except ImportError as error:
                self._open_gpus = None
                self._tell(f"{error}; the job's Python needs nvidia-ml-py")
            except Exception as error:
                self._gpus = None
                self._tell(f"{type(error).__name__}: {error}")

        self._reader = threading.Thread(target=read, daemon=True)
        self._reader.start()
        self._reader.join(GPU_PATIENCE)
        if self._reader.is_alive():
            self._tell(f"NVML gave no answer in {GPU_PATIENCE:g} s")
        return answers[0] if answers else None

    def _tell(self, reason: str) -> None:
        """Say once, until it is otherwise, why figures of GPUs are absent."""
        if reason != self._told:
            say(f"telemetry lacks figures of the GPUs: {reason}")
        self._told = reason

    def _write(self, *, wait: bool = False) -> None:
        if wait and self._writer is not None:
            self._writer.join()
        if not self._lines or _lives(self._writer):
            return
        lines, self._lines = self._lines, []
        self._written = time.monotonic()
        self._writer = threading.Thread(target=self._file.write, args=lines, daemon=True)
        self._writer.start()
        if wait:
            self._writer.join()


def _lives(thread: threading.Thread | None) -> bool:
    return thread is not None and thread.is_alive()
