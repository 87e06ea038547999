"""`hpcrun top` of 5,000 runs in a real terminal (tmux): its share of a core, and how fast keys are.

    python -m bench.top [--runs 5000] [--seconds 60] [--output bench/results] [--json]

The runs are on disk, 300 of them at work and growing; Slurm's clients are stand-ins. See
bench/README.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from bench.publish import add_options, circumstances, publish
from tests.support import command
from tests.support.experiment import Experiment, path_with, slurm_shim
from tests.support.tmux import Tmux

AT_WORK = 300
MOST_OF_A_CORE = 0.10
MOST_SECONDS = 0.1


def study(root: Path, runs: int) -> Experiment:
    """Runs that have ended but for a few."""
    made = Experiment(root)
    now = time.time()
    made.submit(range(runs), swept={n: {"config.lr": n * 1e-6} for n in range(runs)}, when=now)
    for run in range(runs):
        made.start(run, job_id=f"100_{run}", when=now)
        made.metrics(run, 1, range(1, 41), loss=lambda step: 5 / step, lr=1e-3)
        if run < runs - AT_WORK:
            made.end(run)
    return made


def processor(pid: int) -> float:
    """Seconds of processor time of a process and of the children that it has waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def measured(directory: Path, runs: int, seconds: float, columns: int, rows: int) -> dict[str, Any]:
    """Look on for some time, then type."""
    made = study(directory / "root", runs)
    working = range(runs - AT_WORK, runs)
    lines = (f"100_{run}|RUNNING|None|n1|N/A\n" for run in working)
    shim = slurm_shim(directory / "shim", squeue="".join(lines))
    env = {
        "HPCRUN_ROOT": str(directory / "root"),
        "PATH": path_with(shim),
        "XDG_CACHE_HOME": str(directory / "cache"),
    }
    stop = threading.Event()

    def grow() -> None:
        step = 40
        while not stop.wait(2):
            step += 1
            for run in list(working)[step % 10 :: 10]:
                made.metrics(run, 1, [step], restored=None, loss=5 / step, lr=1e-3)

    terminal_directory = directory / "terminal"
    top = command.argv("top")
    with Tmux(top, terminal_directory, columns=columns, rows=rows, env=env) as terminal:
        began = time.monotonic()
        terminal.wait_for(f"{AT_WORK} running", "▁", seconds=120)
        first = time.monotonic() - began
        pid = terminal.pid
        threading.Thread(target=grow, daemon=True).start()
        time.sleep(5)
        used, since = processor(pid), time.monotonic()
        time.sleep(seconds)
        share = (processor(pid) - used) / (time.monotonic() - since)
        took = []
        for number in range(20):
            key = ("Down", "NPage", "End", "Up", "Home")[number % 5]
            before = terminal.text
            pressed = time.monotonic()
            terminal.press(key)
            while terminal.text == before and time.monotonic() - pressed < 5:
                time.sleep(0.002)
            took.append(time.monotonic() - pressed)
            time.sleep(0.3)
        # What the pressing and looking itself takes.
        idle = time.monotonic()
        terminal.press("F12")
        assert terminal.text
        harness = time.monotonic() - idle
        took.sort()
        stop.set()
        terminal.press("q")
    return {
        "size": [columns, rows],
        "share_of_a_core": share,
        "first_picture_seconds": first,
        "key_seconds": took,
        "harness_seconds": harness,
    }


def main() -> None:
    """Measure, and write what was found where ``--output`` says."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--runs", type=int, default=5000)
    parser.add_argument("--seconds", type=float, default=60)
    add_options(parser, "top")
    options = parser.parse_args()
    found = []
    for columns, rows in ((80, 24), (200, 50)):
        with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
            found.append(measured(Path(directory), options.runs, options.seconds, columns, rows))
    lines = [f"{options.runs:,} runs, {AT_WORK} of them at work; Slurm's clients are stand-ins"]
    for one in found:
        keys = one["key_seconds"]
        lines.append(
            f"  {one['size'][0]} x {one['size'][1]}: {one['share_of_a_core']:.1%} of a core over "
            f"{options.seconds:.0f} s; first picture after {one['first_picture_seconds']:.1f} s; a "
            f"key is on the screen after {statistics.median(keys):.3f} s (median), "
            f"{keys[int(0.95 * len(keys))]:.3f} s (95 %), of which tmux and this harness take "
            f"{one['harness_seconds']:.3f} s"
        )
    share = max(one["share_of_a_core"] for one in found)
    slowest = max(statistics.median(one["key_seconds"]) for one in found)
    lines += [
        f"{'met' if share < MOST_OF_A_CORE else 'MISSED'}: {share:.1%} of a core (below 10 %)",
        f"{'met' if slowest < MOST_SECONDS else 'MISSED'}: {slowest:.3f} s a key (below 0.1 s)",
    ]
    setting = {**circumstances(), "python": sys.version.split()[0]}
    publish(options, "top", setting, lines, measured=found)


if __name__ == "__main__":
    main()
