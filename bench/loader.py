"""Measure how long a step waits for ``session.loader``, with 0, 1 and 2 workers.

    python -m bench.loader [--where DIRECTORY] [--steps 40] [--output bench/results] [--json]

One rank on the CPU. A dataset reads 64 KiB of a file of 256 MB at a random place for each sample
and decompresses it twice, as a decoder would work; another has windows of 1,024 tokens of a mixture
of two token files. A step is four micro batches of eight, between which a model is trained for a
while on one thread. The first three steps, in which workers start, are not counted. See
bench/README.md.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hpcrun
from bench.publish import add_options, circumstances, publish
from hpcrun.run.rank import samples
from hpcrun.run.rank.rank_view import RankView

BLOCK, BLOCKS = 1 << 16, 4096
SIZES = {
    "train_batch_size": 32,
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 4,
}
NOT_COUNTED = 3
TARGET = 1.0


class _Blocks:
    """Blocks of a file, read from storage when they are asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __len__(self) -> int:
        return BLOCKS

    def __getitem__(self, index: int) -> Any:
        import torch

        with open(self._path, "rb") as stream:
            stream.seek(index * BLOCK)
            block = stream.read(BLOCK)
        for _ in range(2):
            block = zlib.decompress(zlib.compress(block, 1))
        return torch.frombuffer(bytearray(block), dtype=torch.uint8)[:1024].float() / 256


class _Alone(RankView):
    """One rank, outside a run."""

    def micro_batches(self, step: int) -> Iterator[list[int]]:
        return samples.micro_batches(SIZES, step, 0, 1, lambda: 0)


def _token_files(directory: Path) -> Any:
    """Return windows of two files of 64 million tokens each."""
    parts = {}
    for name, weight in (("web", 0.7), ("code", 0.3)):
        path = directory / f"{name}.bin"
        path.write_bytes(os.urandom(1 << 20) * 128)
        files = hpcrun.TokenFiles(path, dtype="uint16")
        parts[name] = hpcrun.PackedDocuments(files, 1024), weight
    return hpcrun.Mixture(parts)


def measure(kind: str, dataset: Any, workers: int, steps: int) -> dict[str, Any]:
    """Train with so many workers; seconds of a step, and how much of them it waited."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(1024, 2048), torch.nn.Linear(2048, 1024))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = _Alone(None).loader(dataset, num_workers=workers)
    waited = spent = 0.0
    for step in range(1, steps + NOT_COUNTED + 1):
        began = time.perf_counter()
        for batch in loader(step):
            batch = batch.float() / 65_536 if batch.dtype == torch.int64 else batch
            for _ in range(8):
                optimizer.zero_grad()
                (model(batch) - batch).square().mean().backward()
                optimizer.step()
        seconds, wait = time.perf_counter() - began, loader.take_wait()
        if step > NOT_COUNTED:
            waited, spent = waited + wait, spent + seconds
    return {
        "data": kind,
        "workers": workers,
        "step_seconds": round(spent / steps, 4),
        "wait_seconds": round(waited / steps, 5),
        "wait_percent": round(100 * waited / spent, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.loader")
    parser.add_argument("--where", type=Path, help="a directory on the storage to be measured")
    parser.add_argument("--steps", type=int, default=40)
    add_options(parser, "loader")
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=options.where) as directory:
        path = Path(directory, "blocks")
        path.write_bytes(os.urandom(BLOCK) * BLOCKS)
        datasets = {"blocks": _Blocks(path), "tokens": _token_files(path.parent)}
        cases = (("blocks", 0), ("blocks", 1), ("blocks", 2), ("tokens", 0), ("tokens", 1))
        found = [measure(kind, datasets[kind], n, options.steps) for kind, n in cases]
    best = max(
        min(one["wait_percent"] for one in found if one["data"] == kind and one["workers"])
        for kind in datasets
    )
    lines = [
        f"{one['data']}, {one['workers']} workers: a step takes {one['step_seconds']:.3f} s, and "
        f"waits for data {one['wait_seconds'] * 1000:.2f} ms of it ({one['wait_percent']} %)"
        for one in found
    ]
    lines.append(f"target with workers {TARGET:g} %: {'met' if best < TARGET else 'MISSED'}")
    load = round(os.getloadavg()[0], 1)
    publish(options, "loader", circumstances(load=load, steps=options.steps), lines, cases=found)


if __name__ == "__main__":
    main()
