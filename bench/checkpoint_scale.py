"""A checkpoint of thousands of ranks: the agreement, the manifest, the restore, the removal.

    python -m bench.checkpoint_scale [--ranks 64 512 4096 8192] [--against COMMIT]
                                     [--output bench/results] [--json]

The real `CheckpointStore` and `CheckpointSaver` of each rank, with real files of 1 kB; each rank is
a thread of one process, and one of them runs at a time. Simulated are torch.distributed (messages
between the threads, whose rounds and bytes are counted) and the engine, which writes and looks for
files under DeepSpeed's names by DeepSpeed's own methods. See bench/README.md.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench.publish import add_options, circumstances, publish
from tests.run.thread_ranks import Wire, in_turn

RANKS = (64, 512, 4096, 8192)
# An earlier way gathers on each rank what all have: its memory grows with the square.
MOST_OF_OTHERS = 1024
PARAMETERS = 64  # of a shard: 1 kB as torch.save writes it
SAVES = 3
# A message between nodes, and a call to shared storage: what is added of a job.
ROUND_SECONDS, CALL_SECONDS = 50e-6, 1e-3
_NO_SWITCH = 1000.0  # seconds: a thread runs until it waits


class Calls:
    """What each rank asks of the file system; ``manifests`` counts opens of manifests."""

    _EVENTS = frozenset(
        ("open", "os.listdir", "os.scandir", "os.rename", "os.mkdir", "os.remove", "os.rmdir")
    )

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.counts: Counter[int | None] = Counter()
        self.entries: Counter[int | None] = Counter()
        self.manifests = 0
        sys.addaudithook(self._hear)
        for name in ("stat", "lstat", "fsync"):
            setattr(os, name, self._counting(getattr(os, name)))
        listdir, scandir = os.listdir, os.scandir

        def list_directory(path: Any = ".") -> list[str]:
            found = listdir(path)
            self.entries[self._rank()] += len(found)
            return found

        def scan_directory(path: Any = ".") -> Any:
            self.entries[self._rank()] += len(listdir(path)) if path else 0
            return scandir(path)

        os.listdir, os.scandir = list_directory, scan_directory  # type: ignore[assignment]

    def clear(self) -> None:
        self.counts.clear()
        self.entries.clear()
        self.manifests = 0

    def _rank(self) -> int | None:
        return getattr(self._wire.here, "rank", None)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in self._EVENTS:
            self.counts[self._rank()] += 1
            if event == "open" and str(arguments[0]).endswith("/manifest.json"):
                self.manifests += 1

    def _counting(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            self.counts[self._rank()] += 1
            return call(*arguments, **options)

        return counted


def engine_of(wire: Wire, rank: int) -> Any:
    """Return an engine of ZeRO 1 that has DeepSpeed's ways to files and no model."""
    import torch
    from deepspeed.runtime.engine import DeepSpeedEngine

    class TorchCheckpointEngine:
        """The writer of DeepSpeed's name, which `redirected_writes` replaces."""

        def save(self, state: Any, path: str) -> None:
            torch.save(state, path)

        def load(self, path: str, map_location: Any = None) -> Any:
            return torch.load(path, map_location=map_location, weights_only=False)

    class Engine:
        """What `CheckpointStore` asks an engine."""

        mp_world_size, checkpoint_mp_rank = 1, 0
        loaded_checkpoint_dp_world_size = wire.ranks
        _get_ckpt_name = DeepSpeedEngine._get_ckpt_name
        _get_all_ckpt_names = DeepSpeedEngine._get_all_ckpt_names
        _get_zero_ckpt_prefix = DeepSpeedEngine._get_zero_ckpt_prefix
        _get_rank_zero_ckpt_name = DeepSpeedEngine._get_rank_zero_ckpt_name
        _get_mp_rank_zero_checkpoint_names = DeepSpeedEngine._get_mp_rank_zero_checkpoint_names
        _get_all_zero_checkpoint_names = DeepSpeedEngine._get_all_zero_checkpoint_names

        def __init__(self) -> None:
            self.checkpoint_engine = TorchCheckpointEngine()
            self.optimizer = SimpleNamespace(dp_process_group=None)
            self.state = {"shard": torch.full((PARAMETERS,), float(rank))}

        def zero_optimization_stage(self) -> int:
            return 1

        def train_batch_size(self) -> int:
            return wire.ranks

        def zero_elastic_checkpoint(self) -> bool:
            return False

        def load_universal_checkpoint(self) -> bool:
            return False

        def zero_optimization_partition_weights(self) -> bool:
            return False

        def save_checkpoint(self, directory: str, tag: str, **_: Any) -> None:
            wire.meet()
            if rank == 0:
                self.checkpoint_engine.save(self.state, self._get_ckpt_name(directory, tag))
            shard = self._get_rank_zero_ckpt_name(directory, tag, 0, rank, False)
            self.checkpoint_engine.save(self.state, shard)
            wire.meet()

        def load_checkpoint(self, directory: str, tag: str) -> tuple[str, dict[str, Any]]:
            (model,) = self._get_all_ckpt_names(directory, tag)
            self.checkpoint_engine.load(model, map_location="cpu")
            names = self._get_all_zero_checkpoint_names(directory, tag, False)
            state = self.checkpoint_engine.load(names[rank], map_location="cpu")
            assert state["shard"][0] == rank
            return model, {}

    return Engine()


def work(directory: Path, ranks: int) -> dict[str, Any]:
    """Save and restore with so many ranks; return the figures of each part."""
    import torch
    from deepspeed import comm

    from hpcrun.policy.retention import Retention
    from hpcrun.run.checkpoint import checkpoint_files, resize
    from hpcrun.run.checkpoint.restore import CheckpointStore
    from hpcrun.run.protocol.attempt_fence import AttemptFence
    from hpcrun.run.rank import process_groups
    from hpcrun.run.rank.collectives import Collectives
    from hpcrun.state import manifest
    from hpcrun.state.layout import RunPaths

    torch.set_num_threads(1)
    wire = Wire(ranks)
    torch.distributed.all_gather_object = wire.all_gather_object
    torch.distributed.broadcast_object_list = wire.broadcast_object_list
    process_groups.own_group = lambda name: wire
    comm.get_rank = lambda group=None: wire.here.rank
    resize.refusal = lambda engine: None
    os.fsync = lambda fd: None  # what the storage takes is not ours
    calls = Calls(wire)
    run = RunPaths(directory)
    run.attempt(1).directory.mkdir(parents=True)
    stores: dict[int, Any] = {}

    def measured(act: Callable[[int], None]) -> dict[str, Any]:
        processor = [0.0] * ranks

        def timed(rank: int) -> None:
            began = time.thread_time()
            act(rank)
            processor[rank] = time.thread_time() - began

        calls.clear()
        wire.clock, wire.bytes = [0] * ranks, [0] * ranks
        began = time.perf_counter()
        ends = in_turn(wire, timed)
        seconds = time.perf_counter() - began
        if any(ends):
            raise next(filter(None, ends))
        others = range(1, ranks)
        return {
            "seconds": seconds,
            "rank_0_processor_seconds": processor[0],
            "other_rank_processor_seconds": statistics.median(processor[1:]),
            "rounds": max(wire.clock),
            "rank_0_bytes": wire.bytes[0],
            "rank_0_calls": calls.counts[0],
            "other_rank_calls": statistics.median(calls.counts[rank] for rank in others),
            "listed_entries": sum(calls.entries[rank] for rank in range(ranks)),
            "manifest_opens": calls.manifests,
        }

    def save(rank: int, step: int) -> None:
        fence, kept = AttemptFence(run.attempt(1)), Retention(newest=SAVES)
        if rank not in stores:
            stores[rank] = CheckpointStore(run, 1, Collectives(rank, ranks), fence, kept)
        stores[rank].saver.save(engine_of(wire, rank), step, {}, {"loss": 1.0})

    def restore(rank: int) -> None:
        fence = AttemptFence(run.attempt(1))
        store = CheckpointStore(run, 1, Collectives(rank, ranks), fence, Retention())
        found = store.restore(engine_of(wire, rank), {}, expected=True)
        assert found[0] == SAVES, found

    def write(rank: int) -> None:
        """Write the files of a save, and nothing else."""
        from hpcrun.run.checkpoint import rank_state

        checkpoint_files.save(engine_of(wire, rank).state, plain / f"{rank}.pt")
        checkpoint_files.save(rank_state.collect({}), plain / f"rank-{rank}.pt")

    def read(rank: int) -> None:
        """Read the files of a restore, and nothing else."""
        torch.load(plain / "0.pt", weights_only=False)
        torch.load(plain / f"{rank}.pt", weights_only=False)
        torch.load(plain / f"rank-{rank}.pt", weights_only=False)
        for name in (f"{rank}.pt", f"rank-{rank}.pt"):
            checkpoint_files.describe(plain / name)

    plain = directory / "plain"
    plain.mkdir()
    measured(lambda rank: write(rank) if rank == 0 else None)  # imports
    found = {"writing": measured(write), "reading": measured(read)}
    shutil.rmtree(plain)
    for step in range(1, SAVES + 1):
        found["save"] = measured(lambda rank, step=step: save(rank, step))  # type: ignore[misc]
    found["restore"] = measured(restore)
    saver = stores[0].saver
    saver._retention = Retention(newest=1)
    calls.clear()
    began = time.perf_counter()
    saver._remove_old()
    found["removal"] = {
        "seconds": time.perf_counter() - began,
        "calls": sum(calls.counts.values()),
    }
    assert len(manifest.complete(run.checkpoints)) == 1
    found["beyond"] = {
        "seconds": found["save"]["seconds"]
        - found["writing"]["seconds"]
        + found["restore"]["seconds"]
    }
    both = found["save"], found["restore"]
    found["of a job"] = {
        "seconds": sum(
            part["rank_0_processor_seconds"]
            + part["rounds"] * ROUND_SECONDS
            + part["rank_0_calls"] * CALL_SECONDS
            for part in both
        )
    }
    return found


def measure(ranks: int, checkout: Path | None, where: Path | None) -> dict[str, Any]:
    """Measure one number of ranks in a process of its own."""
    with tempfile.TemporaryDirectory(dir=where) as directory:
        argv = [sys.executable, "-m", "bench.checkpoint_scale", "--work", directory]
        argv += ["--ranks", str(ranks), *(["--hpcrun", str(checkout)] if checkout else [])]
        environment = {**os.environ, "DS_ACCELERATOR": "cpu"}
        done = subprocess.run(argv, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def table(results: dict[str, dict[int, dict[str, Any]]]) -> list[str]:
    heads = ("seconds", "rank 0", "a rank", "rounds", "MB rank 0", "calls 0", "calls", "listed")
    lines = [f"{'':34}" + "".join(f"{head:>11}" for head in (*heads, "manifests"))]
    for part in ("writing", "reading", "save", "restore", "removal", "beyond", "of a job"):
        for version, by_ranks in results.items():
            for ranks, found in by_ranks.items():
                numbers = dict(found[part])
                if "rank_0_bytes" in numbers:
                    numbers["rank_0_bytes"] /= 1e6
                label = f"{part}, {ranks:,} ranks, {version}"
                lines.append(f"{label:34}" + "".join(f"{n:>11.4g}" for n in numbers.values()))
    return lines


def main() -> None:
    from bench import against

    parser = argparse.ArgumentParser(prog="python -m bench.checkpoint_scale", description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    parser.add_argument("--where", type=Path, help="a directory on the storage to be measured")
    against.add_option(parser)
    add_options(parser, "checkpoint_scale")
    options = parser.parse_args()
    with against.versions(options.against) as versions:
        results = {
            version: {
                ranks: measure(ranks, checkout, options.where)
                for ranks in options.ranks
                if checkout is None or ranks <= MOST_OF_OTHERS
            }
            for version, checkout in versions.items()
        }
    setting = circumstances(switches="one rank at a time", bytes_of_a_shard=4 * PARAMETERS)
    publish(options, "checkpoint_scale", setting, table(results), ranks=results)


def _work() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--hpcrun", help="a checkout whose hpcrun is measured")
    options = parser.parse_args()
    if options.hpcrun:
        sys.path.insert(0, options.hpcrun)
    sys.setswitchinterval(_NO_SWITCH)
    gc.disable()  # a rank has its own objects alone to look through, not those of all
    print(json.dumps(work(options.work, options.ranks)), flush=True)
    os._exit(0)


if __name__ == "__main__":
    _work() if "--work" in sys.argv else main()
