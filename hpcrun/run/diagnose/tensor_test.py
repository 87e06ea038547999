"""A matrix product on each GPU (or one processor), then an all-reduce over all ranks.

``python -m hpcrun.run.diagnose.tensor_test`` is one rank; it imports torch. It reads its `place` as
JSON from standard input, and prints one line of JSON for each result: a crash or a hang of torch,
the driver or NCCL costs the examiner nothing.
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


def main() -> None:
    """Entry point of ``python -m hpcrun.run.diagnose.tensor_test``."""
    place: dict[str, Any] = json.loads(sys.stdin.readline())
    import torch

    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(place["local_rank"] % torch.cuda.device_count())
    device = torch.device("cuda" if on_gpu else "cpu")
    _print(devices=torch.cuda.device_count() if on_gpu else 0)
    _print(gemm=gemm(torch, device))
    if place["world_size"] > 1:
        _print(allreduce=all_reduce(torch, device, place))


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


def all_reduce(torch: Any, device: Any, place: dict[str, Any]) -> list[dict[str, float]]:
    """Return size, seconds and bandwidths of each all-reduce, the same on every rank.

    ``algbw`` is bytes per second, ``busbw`` that times 2(n-1)/n, as nccl-tests has it.
    """
    import torch.distributed as dist

    on_gpu, count = device.type == "cuda", place["world_size"]
    os.environ.update(place["environment"])
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        init_method=f"tcp://{place['address']}:{place['port']}",
        rank=place["rank"],
        world_size=count,
        timeout=timedelta(seconds=_PATIENCE),
    )
    rows = []
    try:
        for size in _SIZES_GPU if on_gpu else _SIZES_CPU:
            if on_gpu and torch.cuda.mem_get_info()[0] < 3 * size:
                break
            data = torch.zeros(size // 4, device=device)
            seconds = _timed(dist, torch, data, _WARM)
            times = torch.tensor(
                [min(_MOST_TIMES, max(3, int(_SIZE_SECONDS / seconds)))], device=device
            )
            dist.broadcast(times, 0)
            seconds = _timed(dist, torch, data, int(times[0]))
            algbw = size / seconds
            rows.append(
                {
                    "bytes": size,
                    "seconds": seconds,
                    "algbw": algbw,
                    "busbw": algbw * 2 * (count - 1) / count,
                }
            )
    finally:
        dist.destroy_process_group()
    return rows


def _timed(dist: Any, torch: Any, data: Any, times: int) -> float:
    """Return the mean seconds of so many all-reduces; of `times`, the slowest rank's."""
    dist.barrier()
    began = time.perf_counter()
    for _ in range(times):
        dist.all_reduce(data)
    if data.device.type == "cuda":
        torch.cuda.synchronize()
    took = torch.tensor([(time.perf_counter() - began) / times], device=data.device)
    dist.all_reduce(took, op=dist.ReduceOp.MAX)
    return max(float(took[0]), 1e-9)


def _print(**found: Any) -> None:
    print(f"hpcrun-tensor:{json.dumps(found)}", flush=True)


if __name__ == "__main__":
    main()
