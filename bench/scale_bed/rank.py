"""A rank without torch, for `bench.scale`: sleeps, writes its progress, and stops when asked."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from hpcrun.errors import EXIT_SAVED
from hpcrun.run.health import progress
from hpcrun.run.node import rank_processes
from hpcrun.run.protocol.launch import Launch
from hpcrun.state import files, session_log
from hpcrun.state.node_layout import ScratchPaths

STEP = 1.0


def main() -> None:
    launch, rank = Launch.read(Path(sys.argv[1])), int(sys.argv[2])
    scratch = Path(launch.node_of(rank).scratch)
    rank_processes.register(scratch, rank)
    writer, step = progress.ProgressWriter(scratch, rank), 0

    def record(event: str, **more: object) -> None:
        if rank == 0:
            files.append(launch.paths.session, session_log.record(event, **more))

    size = launch.world_size
    record(session_log.STARTED, total_steps=1 << 20, world_size=size, versions={})
    record(session_log.RESTORED, step=0, checkpoint=None, seconds=0.0)
    while not ScratchPaths(scratch).stop.exists():
        writer.write(progress.STEPPING, step)
        time.sleep(STEP)
        step += 1
    writer.write(progress.ENDING, step)
    record("left", step=step)
    os._exit(EXIT_SAVED)


if __name__ == "__main__":
    main()
