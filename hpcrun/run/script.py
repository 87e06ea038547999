"""A warm script: an interpreter with its imports done, waiting for its rank.

The worker of a warm rank starts it, and watches it like a script that starts cold.
"""

from __future__ import annotations

from hpcrun.run import own_archive

if __name__ == "__main__":
    own_archive.read_once()

import argparse
import runpy
import signal
import sys
from pathlib import Path

from hpcrun.run import worker
from hpcrun.run.health import python_stacks
from hpcrun.run.protocol import stop_flag
from hpcrun.run.protocol.launch import Launch
from hpcrun.run.rank import warm_up
from hpcrun.state.node_layout import ScratchPaths


def main() -> None:
    """Entry point of ``python -m hpcrun.run.script``: acts like ``python FILE ARGUMENTS``."""
    parser = argparse.ArgumentParser(prog="hpcrun.run.script")
    parser.add_argument("launch", type=Path)
    parser.add_argument("--rank", type=int, required=True)
    worker.add_warm_arguments(parser)
    arguments = parser.parse_args()
    launch, task = Launch.read(arguments.launch), arguments.rank
    called, rank = worker.wait_to_be_called(launch, task, arguments, imports=True)
    worker.take_place(called, rank)
    scratch = Path(called.node_of(rank).scratch)
    if rank == 0:
        warm_up.hand_on(launch.paths, scratch)
    for number in stop_flag.SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    worker.ignore_slurms_signals(called)
    _, *sys.argv = worker.command(called, rank)
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    python_stacks.run_start_up(ScratchPaths(scratch).start_up)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
