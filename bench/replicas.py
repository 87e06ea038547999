"""Measures the comparison of ranks that hold the same weights (`recovery.check_replicas`).

    python -m bench.replicas [--steps 1000] [--output bench/results]

Trains language models of `jobs` on two and on four ranks of this machine (gloo), the comparison as
it comes (``auto``), and adds up its seconds beside those of all steps. See bench/README.md.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.publish import add_options, circumstances, publish

TARGET = 0.1
# Name -> model, and the part of --steps that it takes.
MODELS: dict[str, tuple[dict[str, int], float]] = {
    "0.8M": ({"layers": 1, "width": 256, "heads": 4, "context": 64}, 1.0),
    "3.2M": ({"layers": 4, "width": 256, "heads": 4, "context": 128}, 0.4),
    "25M": ({"layers": 8, "width": 512, "heads": 8, "context": 128}, 0.04),
}
CASES = [(name, ranks, stage) for name in MODELS for ranks in (2, 4) for stage in (0, 1)]
MICRO = 2


def train(name: str, ranks: int, stage: int, steps: int, rank: int, folder: str) -> None:
    """Be a rank; rank 0's figures are a file of the folder."""
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(ranks),
        OMP_NUM_THREADS="1",
        DS_ACCELERATOR="cpu",
    )
    with Path(folder, f"{rank}.log").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        import deepspeed
        import torch

        from hpcrun.run.health.replica_check import ReplicaCheck
        from hpcrun.run.parallel.rank_layout import RankLayout
        from hpcrun.run.rank.collectives import Collectives
        from jobs.language_model import LanguageModel

        torch.set_num_threads(1)
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks
        )
        deepspeed.init_distributed()
        torch.manual_seed(1)
        model = LanguageModel(**MODELS[name][0])
        config = {
            "train_batch_size": MICRO * ranks,
            "train_micro_batch_size_per_gpu": MICRO,
            "zero_optimization": {"stage": stage},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        }
        engine, *_ = deepspeed.initialize(
            model=model, model_parameters=model.parameters(), config=config
        )
        check = ReplicaCheck(Collectives(rank, ranks), RankLayout({}, ranks), "n1", "auto")
        first, spent, compared = 0.0, 0.0, []
        began = last = time.perf_counter()
        for step in range(1, steps + 1):
            text = torch.randint(0, 256, (MICRO, MODELS[name][0]["context"] + 1))
            engine.backward(engine(text))
            engine.step()
            now = time.perf_counter()
            check.after_step(engine, step, now - last)
            last = time.perf_counter()
            if check._agreed == step:
                compared.append(step)
                first = first or last - now
                spent += last - now
        answer = {
            "parameters": sum(each.numel() for each in model.parameters()),
            "seconds": last - began,
            "spent": spent,
            "first": first,
            "every": check._next - check._agreed,
            "compared": compared,
        }
        if rank == 0:
            Path(folder, "answer.json").write_text(json.dumps(answer))
        torch.distributed.barrier()
        os._exit(0)


def measure(name: str, ranks: int, stage: int, steps: int) -> dict[str, Any]:
    """Return a case's row."""
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="hpcrun-replicas-") as folder:
        arguments = name, ranks, stage, steps
        ran = [
            spawn.Process(target=train, args=(*arguments, rank, folder)) for rank in range(ranks)
        ]
        for each in ran:
            each.start()
        for each in ran:
            each.join()
        answer = Path(folder, "answer.json")
        if not answer.exists():
            raise RuntimeError(Path(folder, "0.log").read_text()[-2000:])
        found: dict[str, Any] = json.loads(answer.read_text())
    times, first = len(found["compared"]), found["first"]
    step = (found["seconds"] - found["spent"]) / steps
    # What comes after the first, which an attempt has once; in so few steps that there is none,
    # what is planned.
    later = (found["spent"] - first) / (steps * step)
    return {
        "case": f"{name}, {ranks} ranks, ZeRO {stage}",
        "parameters": found["parameters"],
        "steps": steps,
        "step_ms": 1000 * step,
        "comparisons": times,
        "first_ms": 1000 * first,
        "comparison_ms": 1000 * found["spent"] / times,
        "every": found["every"],
        "percent": 100 * (later if times > 1 else first / (found["every"] * step)),
        "compared": found["compared"],
    }


def main() -> None:
    """Measure, print, and write the results where ``--output`` says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1000, help="of the smallest model")
    add_options(parser, "replicas")
    options = parser.parse_args()
    rows = []
    for name, ranks, stage in CASES:
        rows.append(measure(name, ranks, stage, max(20, int(options.steps * MODELS[name][1]))))
        row = rows[-1]
        print(f"{row['case']}: {row['percent']:.3f} %", file=sys.stderr, flush=True)
    lines = [
        f"{'case':<24}{'parameters':>12}{'steps':>7}{'step ms':>9}{'comparisons':>13}"
        f"{'first ms':>10}{'each ms':>9}{'next after':>12}{'without the first %':>21}"
    ]
    lines += [
        f"{row['case']:<24}{row['parameters']:>12,}{row['steps']:>7}{row['step_ms']:>9.1f}"
        f"{row['comparisons']:>13}{row['first_ms']:>10.2f}{row['comparison_ms']:>9.2f}"
        f"{row['every']:>12}{row['percent']:>21.3f}"
        for row in rows
    ]
    most = max(row["percent"] for row in rows)
    verdict = "within" if most <= TARGET else "ABOVE"
    lines += ["", f"at most {most:.3f} %: {verdict} the target of {TARGET} %"]
    publish(options, "replicas", circumstances(micro_batch=MICRO), lines, rows=rows)


if __name__ == "__main__":
    main()
