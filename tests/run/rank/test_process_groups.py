"""hpcrun's own process groups on real gloo."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_PROGRAM = """
import os, pathlib, sys, torch
from hpcrun.run.rank import process_groups

def loops():
    names = [path.read_text() for path in pathlib.Path("/proc/self/task").glob("*/comm")]
    return sum(name.startswith("gloo_tcp_loop") for name in names)

where, rank = sys.argv[1:]
store = torch.distributed.FileStore(where, 2)
torch.distributed.init_process_group("gloo", store=store, rank=int(rank), world_size=2)
before = loops()
group = process_groups.own_group(process_groups.HOST)
tensor = torch.tensor([1.0 + torch.distributed.get_rank()])
group.allreduce([tensor]).wait()
assert process_groups.own_group(process_groups.HOST) is group
assert process_groups.has_group(process_groups.HOST)
print(tensor.item(), loops() - before, flush=True)
torch.distributed.barrier()
os._exit(0)
"""


def test_the_group_of_metrics_has_no_thread_of_its_own(tmp_path: Path) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(tmp_path / "store"), rank],
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    assert [rank.communicate(timeout=120)[0] for rank in ranks] == ["3.0 0\n", "3.0 0\n"]
