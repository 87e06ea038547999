"""A parameter server on plain sockets: servers hold the model in parts, workers compute gradients.

A run of `roles` (docs/roles.md): each server keeps one part of the vector that is learnt, each
worker draws examples of its own, asks all servers for their parts and sends them its gradients.
Nobody waits for the others, so a worker or a server that dies is started anew alone. A server
writes its part after each `--save-every` updates and reads it again; workers try until it answers.

Needs the standard library alone. `python parameter_server.py server|worker --help`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import socket
import socketserver
import threading
import time
from pathlib import Path
from typing import Any

ADDRESSES = "HPCRUN_ADDRESSES"


def addresses() -> list[str]:
    """Return where the servers are now: one may have moved to another node."""
    return list(json.loads(Path(os.environ[ADDRESSES]).read_text())["server"])


def address_of(rank: int) -> tuple[str, int]:
    """Return the address and port of one server."""
    host, _, port = addresses()[rank].rpartition(":")
    return host, int(port)


def part_of(rank: int, servers: int, size: int) -> range:
    """Return the numbers of the vector that a server has."""
    return range(rank * size // servers, (rank + 1) * size // servers)


class Server(socketserver.ThreadingTCPServer):
    """One part of the vector, read and changed by lines of JSON."""

    allow_reuse_address = daemon_threads = True

    def __init__(
        self, place: tuple[str, int], path: Path, size: int, rate: float, save_every: int
    ) -> None:
        self.path, self.rate, self.save_every = path, rate, save_every
        self.values, self.updates = [0.0] * size, 0
        self.lock = threading.Lock()
        if path.exists():
            saved = json.loads(path.read_text())
            self.values, self.updates = saved["values"], saved["updates"]
        super().__init__(place, Handler)

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Change the part by a gradient, if one was sent, and return it."""
        with self.lock:
            if gradient := asked.get("gradient"):
                moved = zip(self.values, gradient, strict=True)
                self.values = [value - self.rate * each for value, each in moved]
                self.updates += 1
                if self.updates % self.save_every == 0:
                    self.save()
            return {"values": self.values, "updates": self.updates}

    def save(self) -> None:
        """Write the part so that a reader finds the old or the new one, whole."""
        fresh = self.path.with_suffix(".new")
        fresh.write_text(json.dumps({"values": self.values, "updates": self.updates}))
        fresh.replace(self.path)


class Handler(socketserver.StreamRequestHandler):
    """One worker's connection."""

    server: Server

    def handle(self) -> None:
        # A worker that was killed resets its connection, or leaves half a line.
        with contextlib.suppress(ConnectionError):
            for line in self.rfile:
                if not line.endswith(b"\n"):
                    return
                answer = self.server.answer(json.loads(line))
                self.wfile.write(json.dumps(answer).encode() + b"\n")


def serve(options: argparse.Namespace) -> None:
    """Serve one part until SIGTERM, which comes when the workers are done."""
    rank, servers = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    host, port = address_of(rank)
    size = len(part_of(rank, servers, options.size))
    path = Path(f"part-{rank}.json")
    with Server((host, port), path, size, options.rate, options.save_every) as server:
        print(f"server {rank}: {host}:{port}, {server.updates} updates so far", flush=True)
        server.serve_forever()


class Client:
    """A connection to one server, made anew where it was lost."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.stream: Any = None

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Return the answer, however long the server takes to come (back)."""
        while True:
            try:
                if self.stream is None:
                    place = address_of(self.rank)
                    self.stream = socket.create_connection(place, 5).makefile("rwb")
                self.stream.write(json.dumps(question).encode() + b"\n")
                self.stream.flush()
                if line := self.stream.readline():
                    return dict(json.loads(line))
            except (OSError, ValueError):
                pass
            # A gradient may be lost, or count twice; the next one is computed anew anyway.
            self.stream = None
            time.sleep(0.2)


def work(options: argparse.Namespace) -> None:
    """Learn the vector 0, 1, 2, … (divided by its length) from noisy examples of it."""
    rank, size = int(os.environ["RANK"]), options.size
    servers = len(addresses())
    clients = [Client(index) for index in range(servers)]
    parts = [part_of(index, servers, size) for index in range(servers)]
    draw = random.Random(f"{rank} {os.getpid()}")  # noqa: S311
    gradients: list[list[float] | None] = [None] * servers
    step = told = 0
    # Steps are counted by the servers: a worker that is started anew joins the others.
    while step < options.steps:
        asked = zip(clients, gradients, strict=True)
        answers = [client.ask({"gradient": gradient}) for client, gradient in asked]
        values = [value for answer in answers for value in answer["values"]]
        step = min(answer["updates"] for answer in answers)
        exact = [index / size for index in range(size)]
        wrong = [value - draw.gauss(one, 0.1) for value, one in zip(values, exact, strict=True)]
        gradients = [[wrong[index] for index in part] for part in parts]
        loss = sum((value - one) ** 2 for value, one in zip(values, exact, strict=True)) / size
        if rank == 0 and step >= told + 10:
            told = step
            report(step, options.steps, loss)
        time.sleep(options.pause)


def report(step: int, total: int, loss: float) -> None:
    """Tell `hpcrun status` the steps and the loss."""
    with open(os.environ["HPCRUN_METRICS_FILE"], "a") as file:
        line = {"step": step, "loss": loss, "total_steps": total}
        file.write(json.dumps(line) + "\n")
    print(f"step {step}: loss {loss:.6f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=("server", "worker"))
    parser.add_argument("--size", type=int, default=64, help="numbers in the vector")
    parser.add_argument("--steps", type=int, default=400, help="updates of all workers")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds after a step")
    parser.add_argument("--rate", type=float, default=0.1, help="of learning")
    parser.add_argument("--save-every", type=int, default=20, help="updates of a server")
    options = parser.parse_args()
    {"server": serve, "worker": work}[options.role](options)


if __name__ == "__main__":
    main()
