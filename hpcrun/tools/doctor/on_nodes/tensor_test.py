"""A matrix product on each GPU (or one processor), an all-reduce over all ranks, and over pairs.

``python -m hpcrun.tools.doctor.on_nodes.tensor_test`` is one rank; it imports torch. It reads its
`place` as JSON from standard input, and prints one line of JSON for each result: a crash or a hang
of torch, the driver or NCCL costs the examiner nothing.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from datetime import timedelta
from typing import Any

# Side of the square matrices, and seconds of the products.
_SIDE_GPU, _SIDE_CPU, _SECONDS = 8192, 512, 1.5
# Bytes of the all-reduce, as in nccl-tests; the last ones only where they fit.
_SIZES_GPU = (1 << 16, 1 << 20, 1 << 24, 1 << 27, 1 << 30)
_SIZES_CPU = (1 << 16, 1 << 20, 1 << 24)
_WARM, _MOST_TIMES, _SIZE_SECONDS = 3, 50, 1.0
_PATIENCE = 60
# Bytes and times of an all-reduce between two nodes.
_PAIR_GPU, _PAIR_CPU, _PAIR_TIMES = 1 << 26, 1 << 20, 10


def main() -> None:
    """Entry point of ``python -m hpcrun.tools.doctor.on_nodes.tensor_test``."""
    place: dict[str, Any] = json.loads(sys.stdin.readline())
    import torch

    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(place["local_rank"] % torch.cuda.device_count())
    device = torch.device("cuda" if on_gpu else "cpu")
    _print(devices=torch.cuda.device_count() if on_gpu else 0)
    _print(gemm=gemm(torch, device))
    if place["world_size"] > 1:
        collectives(torch, device, place)


def gemm(torch: Any, device: Any) -> float:
    """Return the floating point operations per second of a product of square matrices.

    On a GPU the median over bf16 products, as a board gets slower when it gets hot; on one
    processor the best by the thread's own time, so that its other work does not count.
    """
    on_gpu = device.type == "cuda"
    side = _SIDE_GPU if on_gpu else _SIDE_CPU
    if not on_gpu:
        torch.set_num_threads(1)
    kind = torch.bfloat16 if on_gpu else torch.float32
    one, other = (torch.randn(side, side, device=device, dtype=kind) for _ in range(2))
    for _ in range(_WARM):
        one @ other
    took, until = [], time.monotonic() + _SECONDS
    while time.monotonic() < until:
        if on_gpu:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(5):
                one @ other
            end.record()
            end.synchronize()
            took.append(start.elapsed_time(end) / 5000)
        else:
            began = time.thread_time()
            one @ other
            took.append(time.thread_time() - began)
    seconds = statistics.median(took) if on_gpu else min(took)
    return float(2 * side**3 / seconds)


def collectives(torch: Any, device: Any, place: dict[str, Any]) -> None:
    """Print the rows of `all_reduce`, then what `pair_bandwidths` finds, if pairs are asked for."""
    import torch.distributed as dist

    os.environ.update(place["environment"])
    address = place["address"]
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=f"tcp://{f'[{address}]' if ':' in address else address}:{place['port']}",
        rank=place["rank"],
        world_size=place["world_size"],
        timeout=timedelta(seconds=_PATIENCE),
    )
    try:
        _print(allreduce=all_reduce(torch, dist, device))
        if place.get("pairs"):
            _print(pairs=pair_bandwidths(torch, dist, device, place["pairs"]))
    finally:
        dist.destroy_process_group()


def all_reduce(torch: Any, dist: Any, device: Any) -> list[dict[str, float]]:
    """Return size, seconds and bandwidths of each all-reduce, the same on every rank.

    ``algbw`` is bytes per second, ``busbw`` that times 2(n-1)/n, as nccl-tests has it.
    """
    on_gpu, rows = device.type == "cuda", []
    for size in _SIZES_GPU if on_gpu else _SIZES_CPU:
        if on_gpu and torch.cuda.mem_get_info()[0] < 3 * size:
            break
        data = torch.zeros(size // 4, device=device)
        seconds = _time_all_reduces(dist, torch, data, _WARM)
        wanted = min(_MOST_TIMES, max(3, int(_SIZE_SECONDS / seconds)))
        times = torch.tensor([wanted], device=device)
        dist.broadcast(times, 0)
        seconds = _time_all_reduces(dist, torch, data, int(times[0]))
        found = {"bytes": size, "seconds": seconds, "algbw": size / seconds}
        rows.append({**found, "busbw": _busbw(size, seconds, dist.get_world_size())})
    return rows


def pair_bandwidths(
    torch: Any, dist: Any, device: Any, rounds: list[list[list[int]]]
) -> list[list[float]]:
    """Return round, pair and bus bandwidth of the pairs of nodes that this rank is in.

    ``rounds`` has the ranks of both nodes of each pair; the pairs of a round are measured at once.
    """
    size = _PAIR_GPU if device.type == "cuda" else _PAIR_CPU
    data = torch.zeros(size // 4, device=device)
    # Every rank makes all groups, in the same order.
    groups = [[dist.new_group(ranks) for ranks in pairs] for pairs in rounds]
    found = []
    for number, pairs in enumerate(rounds):
        dist.barrier()
        for place, ranks in enumerate(pairs):
            if dist.get_rank() in ranks:
                group = groups[number][place]
                _time_all_reduces(dist, torch, data, _WARM, group)
                seconds = _time_all_reduces(dist, torch, data, _PAIR_TIMES, group)
                found.append([number, place, _busbw(size, seconds, len(ranks))])
    dist.barrier()
    return found


def _busbw(size: int, seconds: float, ranks: int) -> float:
    return size / seconds * 2 * (ranks - 1) / ranks


def _time_all_reduces(dist: Any, torch: Any, data: Any, times: int, group: Any = None) -> float:
    """Return the mean seconds of so many all-reduces on the slowest rank."""
    dist.barrier(group=group)
    began = time.perf_counter()
    for _ in range(times):
        dist.all_reduce(data, group=group)
    if data.device.type == "cuda":
        torch.cuda.synchronize()
    took = torch.tensor([(time.perf_counter() - began) / times], device=data.device)
    dist.all_reduce(took, op=dist.ReduceOp.MAX, group=group)
    return max(float(took[0]), 1e-9)


def _print(**found: Any) -> None:
    print(f"hpcrun-tensor:{json.dumps(found)}", flush=True)


if __name__ == "__main__":
    main()
