"""Sums over MPI's ranks, step after step; goes on from the file that rank 0 writes each step.

``mpi_steps.py STEPS [abort|raise|exit]``: the word is what rank 1 does in the end.
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
while step < int(sys.argv[1]):
    step += 1
    total = world.allreduce(step * (world.rank + 1))
    if world.rank == 0:
        part = Path("step.part")
        part.write_text(str(step))
        part.replace(saved)
        print(f"step {step}: sum {total / step:g}", flush=True)
    if world.allreduce(len(asked)):
        sys.exit(0)
    time.sleep(0.2)
if sys.argv[2:] == ["abort"] and world.rank == 1:
    world.Abort(7)
if sys.argv[2:] == ["raise"] and world.rank == 1:
    raise ValueError("of one rank")
if sys.argv[2:] == ["exit"] and world.rank == 1:
    os._exit(5)
world.barrier()
