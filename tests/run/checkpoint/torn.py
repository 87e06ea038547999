"""Saves that are killed at their first file operation, at their second, and so on to the end.

One process imports torch once; its forks save, die, restore and save again. Prints a line of JSON
for each place of death, and one of all operations of the save that came to its end.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from hpcrun.policy.retention import Retention
from hpcrun.run.checkpoint.restore import CheckpointStore
from hpcrun.run.protocol.attempt_fence import AttemptFence
from hpcrun.run.rank import rng
from hpcrun.run.rank.collectives import Collectives
from hpcrun.state.layout import RunPaths
from tests.run import operations
from tests.support.place import FakeEngine


class Loader:
    """A state of the user's."""

    def __init__(self, position: int = 0) -> None:
        self.position = position

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]
        random.random()


def _store(run: RunPaths, attempt: int) -> CheckpointStore:
    fence = AttemptFence(run.attempt(attempt))
    return CheckpointStore(run, attempt, Collectives(0, 1), fence, Retention(newest=1))


def save(run: RunPaths, attempt: int, step: int) -> None:
    """Save what a run has at a step."""
    engine = FakeEngine()
    for _ in range(step):
        engine.step()
    rng.seed_all(step)
    saver = _store(run, attempt).saver
    saver.save(engine, step, {"loader": Loader(step * 10)}, {})
    saver.wait_for_removals()


def restore_and_save(run: RunPaths, attempt: int) -> dict[str, Any]:
    """What is restored, and which directories there are once the run has saved again."""
    engine, loader = FakeEngine(), Loader()
    reports: list[str] = []
    step, name = _store(run, attempt).restore(
        engine,
        {"loader": loader},
        expected=True,
        report=lambda event, checkpoint, message: reports.append(f"{checkpoint} {message}"),
    )
    state = [engine.global_steps, engine.weight, loader.position]
    numbers = [random.random(), torch.rand(()).item()]
    save(run, attempt, 9)
    return {
        "restored": [step, name],
        "state": state,
        "numbers": numbers,
        "reports": reports,
        "left": sorted(path.name for path in run.checkpoints.iterdir()),
    }


def expected(step: int) -> dict[str, Any]:
    """What the checkpoint of a step holds."""
    rng.seed_all(step)
    numbers = [random.random(), torch.rand(()).item()]
    return {"state": [step, step * 0.5, step * 10], "numbers": numbers}


def die_at(fatal: int, run: RunPaths, trace: Path) -> None:
    """Save step 2 as attempt 2, and be killed before the given operation, or in its middle."""
    descriptor = os.open(trace, os.O_WRONLY | os.O_CREAT)
    count = 0

    def tick(operation: str, path: Path) -> None:
        nonlocal count
        count += 1
        name = str(path.relative_to(run.directory)) if path.is_absolute() else str(path)
        os.write(descriptor, f"{operation} {name}\n".encode())
        if count == fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    operations.watch(tick)
    save(run, 2, 2)


def prepare(run: RunPaths) -> None:
    """One whole checkpoint, and all that failed saves and killed removals leave behind."""
    save(run, 1, 1)
    for name in ("step-00000003-a1", "step-00000002-a2", ".trash-step-00000001-a0"):
        partial = run.checkpoints / name
        partial.mkdir()
        (partial / "model.json").write_text("{")


def forked(act: Callable[[], object]) -> tuple[int, str]:
    """Do something in a process of its own; how that ended, and the JSON of what it returned."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writable, json.dumps(act()).encode())
            os._exit(0)
        except BaseException as error:
            os.write(writable, json.dumps(repr(error)).encode())
            os._exit(1)
    os.close(writable)
    with os.fdopen(readable) as stream:
        answer = stream.read()
    return os.waitpid(child, 0)[1], answer


def main(directory: Path) -> None:
    torch.set_num_threads(1)
    prepared = directory / "prepared"
    prepare(RunPaths(prepared))
    print(json.dumps({str(step): expected(step) for step in (1, 2)}))
    for fatal in range(1, 1000):
        copied, trace = directory / "run", directory / "trace"
        shutil.rmtree(copied, ignore_errors=True)
        trace.unlink(missing_ok=True)
        shutil.copytree(prepared, copied)
        run = RunPaths(copied)
        status, _ = forked(lambda run=run, n=fatal, to=trace: die_at(n, run, to))  # type: ignore[misc]
        died = os.WIFSIGNALED(status)
        done = trace.read_text().splitlines()
        _, answer = forked(lambda run=run: restore_and_save(run, 3))  # type: ignore[misc]
        print(json.dumps({"died": died, "operations": done, "after": json.loads(answer)}))
        if not died:
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]))
