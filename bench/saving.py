"""Saves of a DeepSpeed engine: ours at once and behind the training, against DeepSpeed's own.

    python -m bench.saving [--pairs 80] [--ranks 2] [--output bench/results] [--json]

Real engines (ZeRO 1, Adam, on the CPU with gloo) of about 290 MB of state. DeepSpeed's save is
``engine.save_checkpoint`` and fsync of each file and directory, which is what it takes to be there
after a power cut; ours has checksums beside. See bench/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

from bench.publish import add_options, circumstances, publish
from hpcrun.run.node.rendezvous_port import PortReservation

WIDTH, LAYERS = 1536, 8
EVERY = 20
# Of the saves behind the training, which take long and scatter little.
LEAST_ROUNDS = 8
FASTER, BLOCKED = 1.2, 2.0


def work(directory: Path, pairs: int) -> dict[str, Any]:
    """What one rank measures."""
    import deepspeed
    import torch

    from hpcrun.policy.retention import Retention
    from hpcrun.run.checkpoint.save import CheckpointSaver
    from hpcrun.run.protocol.attempt_fence import AttemptFence
    from hpcrun.run.rank.collectives import Collectives
    from hpcrun.state import manifest
    from hpcrun.state.layout import RunPaths

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    deepspeed.init_distributed(dist_backend="gloo")
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    model = torch.nn.Sequential(*layers)
    config = {
        "train_micro_batch_size_per_gpu": 64,
        "gradient_accumulation_steps": 1,
        "zero_optimization": {"stage": 1},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
    }
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=list(model.parameters()), config=config
    )
    run = RunPaths(directory / "ours")
    ranks = Collectives(rank, world)
    fence = AttemptFence(run.attempt(2).directory)
    saver = CheckpointSaver(run, 1, ranks, fence, Retention(newest=1), set())
    step = 0

    def train() -> float:
        nonlocal step
        began = time.perf_counter()
        inputs = torch.randn(64, WIDTH)
        engine.backward((engine(inputs) - inputs).square().mean())
        engine.step()
        step += 1
        return time.perf_counter() - began

    def theirs() -> float:
        target = directory / "theirs"
        began = time.perf_counter()
        engine.save_checkpoint(str(target), tag=f"step-{step}", save_latest=rank == 0)
        for path in (target / f"step-{step}").iterdir():
            # Each rank makes its own files durable, rank 0 those of the model too.
            if f"pp_rank_{rank}_" in path.name or (rank == 0 and "model_states" in path.name):
                with open(path, "rb") as stream:
                    os.fsync(stream.fileno())
        if rank == 0:
            manifest.sync_directory(target / f"step-{step}")
            manifest.sync_directory(target)
        torch.distributed.barrier()
        seconds = time.perf_counter() - began
        if rank == 0:
            for path in target.glob("step-*"):
                shutil.rmtree(path)
        return seconds

    def ours() -> float:
        began = time.perf_counter()
        saver.save(engine, step, {}, {})
        return time.perf_counter() - began

    def quiet() -> None:
        torch.distributed.barrier()
        if rank == 0:
            os.sync()
        torch.distributed.barrier()

    at_once: dict[str, list[float]] = {"theirs": [], "ours": []}
    for number in range(pairs + 1):
        for name, save in sorted({"theirs": theirs, "ours": ours}.items(), reverse=number % 2 > 0):
            train()
            quiet()
            seconds = save()
            if number:  # the first warms up
                at_once[name].append(seconds)
    blocked: list[float] = []
    durable: list[float] = []
    rounds: dict[str, list[float]] = {"without": [], "with": []}
    for number in range(max(LEAST_ROUNDS, pairs // 10) + 1):
        train()
        quiet()
        plain = sum(train() for _ in range(EVERY))
        quiet()
        began = time.perf_counter()
        saver.save_async(engine, step, {}, {})
        held = time.perf_counter() - began
        for _ in range(EVERY):
            train()
        waited = time.perf_counter()
        outcome = saver.outcome(patience=None)
        held += time.perf_counter() - waited
        whole = time.perf_counter() - began
        assert outcome is not None
        assert outcome.manifest is not None, outcome.error
        if number:  # the first takes the memory
            blocked.append(held)
            durable.append(outcome.seconds)
            rounds["without"].append(plain)
            rounds["with"].append(whole)
    newest = manifest.complete(run.checkpoints)[0][1]
    return {
        "bytes": newest.bytes,
        "at_once": at_once,
        "blocked": blocked,
        "rounds": rounds,
        "durable": durable,
    }


def measure(directory: Path, ranks: int, pairs: int) -> dict[str, Any]:
    """Start the ranks; what rank 0 found."""
    port = PortReservation(os.getpid())
    processes = []
    for rank in range(ranks):
        environment = {
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port.port),
            "GLOO_SOCKET_IFNAME": "lo",
            "DS_ACCELERATOR": "cpu",
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-m", "bench.saving", "--work", str(directory)]
        processes.append(
            subprocess.Popen(
                [*command, f"--pairs={pairs}"],
                env=environment,
                stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                stderr=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                text=True,
            )
        )
    port.release()
    output, errors = processes[0].communicate()
    for process in processes:
        process.wait()
    if processes[0].returncode:
        raise SystemExit(errors[-3000:])
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


def report(found: dict[str, Any], ranks: int) -> dict[str, Any]:
    """The figures: medians, and the median of the ratios of pairs."""
    theirs, ours = found["at_once"]["theirs"], found["at_once"]["ours"]
    without, with_save = found["rounds"]["without"], found["rounds"]["with"]
    step = statistics.median(without) / EVERY
    blocked = statistics.median(found["blocked"])
    ratios = [one / other for one, other in zip(theirs, ours, strict=True)]
    extra = [100 * (one / other - 1) for one, other in zip(with_save, without, strict=True)]
    return {
        "ranks": ranks,
        "state_mb": round(found["bytes"] / 1e6, 1),
        "deepspeed_and_fsync_seconds": round(statistics.median(theirs), 3),
        "ours_at_once_seconds": round(statistics.median(ours), 3),
        "times_as_fast": round(statistics.median(ratios), 2),
        "times_as_fast_at_least": round(_lower_bound(ratios), 2),
        "step_seconds": round(step, 3),
        "blocked_behind_seconds": round(blocked, 3),
        "blocked_behind_percent": round(100 * blocked / (EVERY * step), 2),
        "slower_in_all_percent": round(statistics.median(extra), 2),
        "durable_after_seconds": round(statistics.median(found["durable"]), 3),
        "samples": found,
    }


def _lower_bound(ratios: list[float]) -> float:
    """One-sided 95 % bound of their median, by bootstrap."""
    random = Random(0)
    medians = sorted(
        statistics.median(random.choices(ratios, k=len(ratios))) for _ in range(10_000)
    )
    return medians[len(medians) // 20]


def lines(figures: dict[str, Any]) -> list[str]:
    """For a person."""
    faster = "met" if figures["times_as_fast_at_least"] >= FASTER else "MISSED"
    blocked = "met" if figures["blocked_behind_percent"] <= BLOCKED else "MISSED"
    return [
        f"{figures['ranks']} ranks, {figures['state_mb']} MB of state, "
        f"steps of {figures['step_seconds']} s, medians in seconds",
        f"  engine.save_checkpoint + fsync      {figures['deepspeed_and_fsync_seconds']:>8}",
        f"  ours at once, with checksums        {figures['ours_at_once_seconds']:>8}"
        f"   {figures['times_as_fast']} times as fast, 95 % sure of "
        f"{figures['times_as_fast_at_least']} (target {FASTER}: {faster})",
        f"  behind the training: blocked        {figures['blocked_behind_seconds']:>8}"
        f"   {figures['blocked_behind_percent']} % of {EVERY} steps "
        f"(target {BLOCKED:g} %: {blocked})",
        f"  behind the training: durable after  {figures['durable_after_seconds']:>8}"
        f"   {EVERY} steps with it take {figures['slower_in_all_percent']} % longer in all",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.saving")
    parser.add_argument("--pairs", type=int, default=80)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--where", type=Path, help="a directory on the storage to be measured")
    add_options(parser, "saving")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work is not None:
        found = work(options.work, options.pairs)
        print(json.dumps(found), flush=True)
        os._exit(0)
    with tempfile.TemporaryDirectory(dir=options.where) as directory:
        found = measure(Path(directory), options.ranks, options.pairs)
    figures = report(found, options.ranks)
    publish(options, "saving", circumstances(), lines(figures), **figures)


if __name__ == "__main__":
    main()
