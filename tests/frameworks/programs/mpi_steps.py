"""Sums over MPI's ranks, step after step; goes on from the file that rank 0 writes now and then.

``mpi_steps.py STEPS EVERY [abort|raise|exit]``: ``EVERY`` is the steps between two saves, and the
word what rank 1 does in the end. SIGTERM has it save and leave.
"""

import os
import signal
import socket
import sys
import time
from pathlib import Path

from mpi4py import MPI

asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
world, saved = MPI.COMM_WORLD, Path("step.txt")
step = world.bcast(int(saved.read_text()) if world.rank == 0 and saved.exists() else 0)
hosts = sorted(world.allgather(socket.gethostname()))
print(f"rank {world.rank} of {world.size} on {','.join(hosts)}, from {step}", flush=True)
steps, every = map(int, sys.argv[1:3])
while step < steps:
    step += 1
    total = world.allreduce(step * (world.rank + 1))
    leaves = world.allreduce(len(asked))
    if world.rank == 0:
        print(f"step {step}: sum {total / step:g}", flush=True)
        if leaves or step % every == 0:
            # Ranks that never met are all rank 0.
            part = Path(f"step.{socket.gethostname()}.{os.getpid()}")
            part.write_text(str(step))
            part.replace(saved)
    if leaves:
        sys.exit(0)
    time.sleep(0.2)
if sys.argv[3:] == ["abort"] and world.rank == 1:
    world.Abort(7)
if sys.argv[3:] == ["raise"] and world.rank == 1:
    raise ValueError("of one rank")
if sys.argv[3:] == ["exit"] and world.rank == 1:
    os._exit(5)
world.barrier()
