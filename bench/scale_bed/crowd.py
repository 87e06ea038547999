"""Many nodes' agents and ranks in one process, for `bench.scale`; no part of hpcrun.

Each of its agents is the node's end of a `Channel` of the hpcrun that is measured: the handshake,
the MACs and the messages are real, and the answers are those of an agent whose node does at once
what it is asked. Its ranks are numbers that grow. What it does stands in ``events``, a line each.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import os
import queue
import selectors
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hpcrun.errors import EXIT_SAVED
from hpcrun.run.protocol.channel import Channel
from hpcrun.run.protocol.heartbeat import ALIVE, INTERVAL
from hpcrun.run.protocol.job_secret import JobSecret

# Agents that connect at the same time, as if each had a processor.
_AT_ONCE = 32
_TICK = 0.05
_GOLDEN = 0.618034


class Step:
    """A step that srun's stand-in has begun, as far as the crowd has tasks of it."""

    def __init__(self, bed: Path, pid: str, real: set[str]) -> None:
        self._pipe, self._pid = bed / f"step.{pid}", pid
        lines = (bed / f"step.{pid}.job").read_text().split("\n")
        self.name, self.secret, self.each = lines[0], lines[1], int(lines[2])
        self.nodes, self.words = lines[3].split(","), lines[4].split(" ")
        self.left = {node for node in self.nodes if node not in real}
        self._said: list[str] = []
        self._is_over = False

    def say(self, line: str) -> None:
        self._said.append(f"say {line}\n")

    def leave(self, node: str, code: int) -> None:
        """End a node's tasks; the last ones end the step."""
        self.left.discard(node)
        if not self.left and not self._is_over:
            self._is_over = True
            self._said.append(f"exit {code}\n")

    def flush(self) -> bool:
        """Tell srun's stand-in what it is to say; return whether more may follow."""
        if self._said:
            try:
                pipe = os.open(self._pipe, os.O_WRONLY | os.O_NONBLOCK)
            except OSError:
                # It does not listen yet, or was killed.
                return Path(f"/proc/{self._pid}").exists()
            with contextlib.suppress(OSError):
                os.write(pipe, "".join(self._said).encode())
            os.close(pipe)
            self._said.clear()
        return not self._is_over


class Node:
    """One node's agent."""

    def __init__(self, name: str, place: int, step: Step, channel: Channel, start: str) -> None:
        self.name, self.place, self.step, self.channel = name, place, step, channel
        self.home = f"/tmp/hpcrun-{start}"  # noqa: S108 - a name that is told, and never made
        self.attempt = 0
        self.is_silent = False
        self.workers: Step | None = None
        self.ranks: list[int] = []
        self.began = 0.0
        # As many moments as nodes, in no order.
        self.report_at = time.monotonic() + place * _GOLDEN % 1 * INTERVAL

    def hello(self) -> None:
        found: dict[str, Any] = {"pid": os.getpid(), "directory": self.home, "extensions": None}
        self.channel.send({"type": "hello", **found, "interfaces": [], "down": []})

    def report(self) -> None:
        """Send what an agent sends every `INTERVAL`."""
        # Newer agents leave out a sign of life where a report was one.
        if not hasattr(self.channel, "quiet") or not self.ranks:
            self.channel.send(ALIVE)
        if not self.ranks:
            return
        step = int(time.monotonic() - self.began)
        one: dict[str, Any] = {"pid": 1, "step": step, "phase": 1, "moves": step, "looks": step}
        one |= {"state": "S", "processor": step * 50, "waits": 0}
        report = {"type": "pulse", "attempt": self.attempt, "fabric": None, "logs": {}}
        self.channel.send({**report, "ranks": dict.fromkeys(self.ranks, one)})

    def answer(self, message: dict[str, Any]) -> dict[str, Any] | None:
        kind = message["type"]
        if kind == "prepare":
            scratch = f"{self.home}/attempt-{self.attempt}"
            node = {"name": self.name, "scratch": scratch, "code": f"{scratch}/code"}
            node |= {"interface": "lo", "address": "127.0.0.1"}
            health: dict[str, Any] = {"findings": [], "gpus": None, "clock": time.time()}
            return {"type": "ready", "node": node, "port": 20000, "health": health}
        if kind == "kill":
            return {"type": "killed", "gone": []}
        if kind == "keep":
            return {"type": "kept", "failed": []}
        return {"type": "stacks", "ranks": {}, "locks": {}} if kind == "stacks" else None


class Crowd:
    """All nodes that are no processes of their own."""

    def __init__(self, bed: Path, real: Iterable[str]) -> None:
        self._bed, self._real = bed, {*real}
        self._inbox = os.open(bed / "inbox", os.O_RDWR | os.O_NONBLOCK)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._inbox, selectors.EVENT_READ)
        self._nodes: dict[str, Node] = {}
        self._steps: list[Step] = []
        # When each node reports next, the first one first.
        self._due: list[tuple[float, str, Node]] = []
        self._came: queue.Queue[Node] = queue.Queue()
        self._pool = ThreadPoolExecutor(_AT_ONCE)

    def _event(self, what: str, **more: Any) -> None:
        with (self._bed / "events").open("a") as stream:
            stream.write(json.dumps({"event": what, "at": time.monotonic(), **more}) + "\n")

    def serve(self) -> None:
        """Be there until it is told ``quit``."""
        while True:
            due = self._due[0][0] - time.monotonic() if self._due else _TICK
            for key, _ in self._selector.select(min(_TICK, max(0.001, due))):
                if key.fileobj == self._inbox:
                    for line in os.read(self._inbox, 1 << 16).decode().splitlines():
                        if line == "quit":
                            return
                        self._told(line.split())
                else:
                    self._hear(key.data)
            while not self._came.empty():
                node = self._came.get()
                self._nodes[node.name] = node
                self._selector.register(node.channel, selectors.EVENT_READ, node)
                heapq.heappush(self._due, (node.report_at, node.name, node))
                node.hello()
            while self._due and self._due[0][0] <= time.monotonic():
                at, name, node = heapq.heappop(self._due)
                if not node.channel.closed and not node.is_silent:
                    node.report()
                    heapq.heappush(self._due, (at + INTERVAL, name, node))
            self._steps = [step for step in self._steps if step.flush()]

    def _told(self, words: list[str]) -> None:
        if words[0] == "silence":
            self._nodes[words[1]].is_silent = True
            self._selector.unregister(self._nodes[words[1]].channel)
        elif words[0] == "crash":
            node = self._nodes[words[1]]
            assert node.workers is not None
            rank = node.ranks.pop()
            node.workers.say(f"srun: error: {node.name}: task {rank}: Killed")
        else:
            self._begin(Step(self._bed, words[0], self._real))

    def _begin(self, step: Step) -> None:
        self._steps.append(step)
        if not step.left:
            step.leave("", 0)
        elif step.name == "hpcrun-agent":
            address = step.words[step.words.index("--supervisor") + 1]
            ranks = step.words[step.words.index("--node-rank") + 1].split(",")
            for place, node in zip(ranks, step.nodes, strict=True):
                if node in step.left:
                    self._pool.submit(self._connect, step, node, int(place), address)
        else:
            now = time.monotonic()
            for index, name in enumerate(step.nodes):
                if name in step.left:
                    own = self._nodes[name]
                    own.workers, own.began = step, now
                    own.ranks = [*range(index * step.each, (index + 1) * step.each)]
            self._event("ranks", step=step.name)

    def _connect(self, step: Step, node: str, place: int, address: str) -> None:
        try:
            secret = JobSecret(step.secret)
            channel = Channel.connect(address, node, secret)
            self._came.put(Node(node, place, step, channel, secret.start))
        except Exception as error:
            self._event("error", node=node, message=str(error))

    def _hear(self, node: Node) -> None:
        for message in node.channel.receive(timeout=0):
            kind = message["type"]
            if kind == "attempt":
                node.attempt = message["number"]
            elif kind in ("stop", "kill"):
                self._end_ranks(node, EXIT_SAVED if kind == "stop" else 137)
            elif kind in ("dismiss", "move"):
                node.channel.closed = True
            if (answer := node.answer(message)) is not None:
                node.channel.send({**answer, "attempt": node.attempt})
        if node.channel.closed:
            self._selector.unregister(node.channel)
            node.channel.close()
            node.step.leave(node.name, 0)
            self._end_ranks(node, 137)

    def _end_ranks(self, node: Node, code: int) -> None:
        if node.workers is None:
            return
        workers, node.workers, node.ranks = node.workers, None, []
        workers.leave(node.name, code)
        if not workers.left:
            self._event("left", code=code)


def main() -> None:
    bed, real = sys.argv[1:]
    Crowd(Path(bed), real.split(",")).serve()


if __name__ == "__main__":
    main()
