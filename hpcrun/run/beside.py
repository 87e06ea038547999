"""A command beside a live rank, on its node and with its environment; or its node's stacks.

`hpcrun.control.beside_rank` has it started for ``hpcrun exec``, ``hpcrun shell`` and ``hpcrun
stacks``, with the variables that the rank's own process began with. What else a rank is given is
added here, but for what would have the command take part in the run: it writes no metrics, and its
session is none.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path

from hpcrun.errors import EXIT_FAILED, EXIT_OK
from hpcrun.run import worker
from hpcrun.run.health import progress, rank_stacks
from hpcrun.run.node.program_activity import ProgramActivity
from hpcrun.run.protocol import stop_flag
from hpcrun.run.protocol.launch import VARIABLE, Launch
from hpcrun.state.spec import profiling

# What a shell exits with where there is no such command, and where it cannot be run.
_NOT_FOUND, _NOT_RUN = 127, 126
_RANKS_OWN = (VARIABLE, "HPCRUN_METRICS_FILE", profiling.VARIABLE)


def run_command(launch: Launch, rank: int, command: list[str]) -> int:
    """Become the command; return an exit code if it cannot be started."""
    worker.take_place(launch, rank)
    for number in stop_flag.SIGNALS:
        # What starts a container ignores them.
        signal.signal(number, signal.SIG_DFL)
    stop_flag.unblock()
    for name in _RANKS_OWN:
        os.environ.pop(name, None)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"hpcrun: {command[0]!r} cannot be started: {error.strerror}", file=sys.stderr)
        return _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_RUN


def stacks(launch: Launch, rank: int) -> dict[int, str]:
    """Return rank -> its Python stacks, of all living ranks on one's node; empty for unknown."""
    scratch = Path(launch.node_of(rank).scratch)
    programs = ProgramActivity(1.0, leads=launch.entry.kind != "function")
    sessions = dict.fromkeys(progress.living(scratch), "")
    return sessions | rank_stacks.ask(scratch, programs.processes, progress.stacks_written(scratch))


def main() -> int:
    parser = argparse.ArgumentParser(prog="hpcrun.run.beside")
    parser.add_argument("launch", type=Path)
    parser.add_argument("rank", type=int)
    parser.add_argument("terminal", help="TERM, empty for none")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="none for the stacks")
    arguments = parser.parse_args()
    launch = Launch.read(arguments.launch)
    if not arguments.command:
        print(json.dumps(stacks(launch, arguments.rank)))
        return EXIT_OK
    if arguments.terminal:
        os.environ["TERM"] = arguments.terminal
    return run_command(launch, arguments.rank, arguments.command)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except OSError as error:
        print(f"hpcrun: {error}", file=sys.stderr)
        sys.exit(EXIT_FAILED)
