"""Real ranks that wait for what to do next, so that many tests share one start of DeepSpeed."""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from hpcrun.run.node.rendezvous_port import PortReservation
from hpcrun.state import manifest
from hpcrun.state.layout import RunPaths
from tests.support.nursery import Child, nursery
from tests.support.operators import PATH
from tests.support.place import REPOSITORY

DIED = "died"
ONE, TWO, THREE = (f"step-0000000{step}-a1" for step in (1, 2, 3))


class Ranks:
    """A world of ranks on this machine, connected by gloo.

    Parameters
    ----------
    operators
        A warm TORCH_EXTENSIONS_DIR.
    directory
        Where their logs go.
    module
        What each of them runs.
    python
        Their Python.
    """

    def __init__(
        self,
        world_size: int,
        operators: Path,
        directory: Path,
        module: str = "tests.run.rank",
        python: str = sys.executable,
    ) -> None:
        self._world_size = world_size
        self._module = module
        self._python = python
        self._operators = operators
        self._directory = directory
        self._processes: list[Child] = []
        self._pipes: list[tuple[IO[str], IO[str]]] = []

    def start(self) -> None:
        """Start them, unless they run."""
        if self._processes:
            return
        port = PortReservation(os.getpid())
        for rank in range(self._world_size):
            questions, to_rank = os.pipe()
            from_rank, answers = os.pipe()
            environment = {
                "PATH": PATH,
                "HOME": str(Path.home()),
                "PYTHONPATH": str(REPOSITORY),
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(self._world_size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port.port),
                "GLOO_SOCKET_IFNAME": "lo",
                "DS_ACCELERATOR": "cpu",
                "OMP_NUM_THREADS": "1",
                "TORCH_EXTENSIONS_DIR": str(self._operators),
            }
            with open(self._log(rank), "ab") as log:
                process = nursery(self._python).start(
                    ["-m", self._module],
                    env=environment,
                    output=log.fileno(),
                    pass_fds=(questions, answers),
                )
            os.close(questions)
            os.close(answers)
            self._processes.append(process)
            self._pipes.append((os.fdopen(to_rank, "w"), os.fdopen(from_rank)))
        port.release()

    def tell(self, what: str, **arguments: Any) -> list[Any]:
        """Have every rank do something; what each answers.

        A rank that ends instead answers `DIED`, and then the others are ended too: they may wait
        for it for long.
        """
        self.start()
        for questions, _ in self._pipes:
            print(json.dumps([what, arguments]), file=questions, flush=True)
        found: dict[int, Any] = {}
        deadline = time.monotonic() + 120
        while len(found) < self._world_size:
            waiting = [rank for rank in range(self._world_size) if rank not in found]
            streams = {self._pipes[rank][1]: rank for rank in waiting}
            ready, _, _ = select.select(list(streams), [], [], 1)
            for stream in ready:
                line = stream.readline()
                found[streams[stream]] = json.loads(line) if line else {"value": DIED}
            if {"value": DIED} in found.values():
                self.stop()
                return [found.get(rank, {}).get("value") for rank in range(self._world_size)]
            if time.monotonic() > deadline:
                logs = [self._log(rank).read_text()[-3000:] for rank in waiting]
                self.stop()
                raise AssertionError(f"{what}: ranks {waiting} hang\n" + "\n".join(logs))
        return [
            found[rank]["value"] if "value" in found[rank] else found[rank]["error"]
            for rank in range(self._world_size)
        ]

    def stop(self) -> None:
        """Kill them all."""
        for process, pipes in zip(self._processes, self._pipes, strict=True):
            process.kill()
            process.wait()
            for pipe in pipes:
                pipe.close()
        self._processes, self._pipes = [], []

    def _log(self, rank: int) -> Path:
        return self._directory / f"rank-{rank}.log"


class Bench:
    """Two ranks and the run whose checkpoints they share."""

    def __init__(self, ranks: Ranks, run: RunPaths) -> None:
        self._ranks = ranks
        self.run = run

    def engine(self, stage: int = 1, seed: int = 0) -> None:
        assert self._ranks.tell("engine", stage=stage, seed=seed) == [None, None]

    def train(self, steps: int) -> list[Any]:
        return self._ranks.tell("train", steps=steps)

    def digest(self) -> list[Any]:
        return self._ranks.tell("digest")

    def hook(self, what: str, **arguments: Any) -> None:
        assert self._ranks.tell(what, **arguments) == [None, None]

    def hear(self, what: str, **arguments: Any) -> list[Any]:
        return self._ranks.tell(what, **arguments)

    def save(self, step: int, **arguments: Any) -> list[Any]:
        return self._ranks.tell("save", run=str(self.run.directory), step=step, **arguments)

    def restore(self, **arguments: Any) -> list[Any]:
        return self._ranks.tell("restore", run=str(self.run.directory), **arguments)

    def reports(self) -> list[list[str]]:
        return self._ranks.tell("reports")

    def complete(self) -> list[str]:
        return [path.name for path, _ in manifest.complete(self.run.checkpoints)]

    def names(self) -> list[str]:
        return sorted(path.name for path in self.run.checkpoints.iterdir() if path.is_dir())


Worlds = Callable[[int], Ranks]
