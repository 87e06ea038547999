"""`hpcrun status` of 10,000 runs: of one experiment, beside Slurm's own squeue, and of 200.

    python -m bench.status [--rounds 7] [--output bench/results] [--json]
    python -m bench.status --experiments [--against COMMIT] [the same]

With ``--experiments`` there are 200 of 50 runs each on disk, five of which have ten at work, beside
another commit. Otherwise, first an array of 10,000 elements waits in a real Slurm's queue (root;
the test bed's); then 10,000 runs are on disk, most of them completed, and Slurm's clients are
stand-ins. See bench/README.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench import against
from bench.publish import add_options, circumstances, publish
from tests.cluster.workbench import Workbench
from tests.support.experiment import T0, Experiment, path_with, slurm_shim
from tests.testbed import VERSIONS, Cluster

RUNS = 10_000
EXPERIMENTS, ACTIVE_EXPERIMENTS, ACTIVE_RUNS = 200, 5, 10
# What is typed in a root of many experiments.
TYPED = (("status",), ("status", "*"), ("list",), ("status", "--cost", "*"))
# Runs a command, and prints how many files under the root it opened.
OPENED = """
import os, sys
from hpcrun.cli.main import main
found, root = [], os.environ["HPCRUN_ROOT"]
sys.addaudithook(lambda e, a: e == "open" and str(a[0]).startswith(root) and found.append(a[0]))
try:
    main(sys.argv[1:])
except SystemExit as end:
    assert not end.code
print(len(found), file=sys.stderr)
"""
AT_WORK = 300
MOST_SECONDS = 1.5
COUNTED = '#!/bin/sh\necho {name} >> {log}\nPATH=/usr/bin:/bin exec {name} "$@"\n'


def timed(action: Callable[[], Any], rounds: int) -> list[float]:
    """Seconds of each call; answers of Slurm's are good for a second."""
    found = []
    for _ in range(rounds):
        time.sleep(1.5)
        began = time.monotonic()
        action()
        found.append(time.monotonic() - began)
    return found


def queued(version: str, rounds: int) -> dict[str, Any]:
    """An array that waits, in a real Slurm."""
    settings = {"max_array_size": RUNS + 1, "extra": {"MaxJobCount": str(2 * RUNS)}}
    with Cluster(version, 2, **settings) as cluster:
        desk = Workbench(cluster, "status")
        log = desk.directory / "calls"
        cluster.run(["mkdir", "-p", str(desk.directory / "bin")])
        for name in ("squeue", "sacct"):
            desk.write(f"bin/{name}", COUNTED.format(name=name, log=log)).chmod(0o755)
        spec = desk.spec(
            "queued",
            {
                "entry": ["sleep", "3000"],
                "cluster": "bed",
                "config": {"x": 0},
                "resources": {"time": "01:00:00", "mem": "500M"},
                "environment": {"python": cluster.python},
                "sweep": {"grid": {"config.x": {"range": [RUNS]}}, "max_parallel": 2},
            },
        )
        desk.hpcrun("submit", spec)
        job = cluster.run(["squeue", "--me", "-h", "-o", "%F"]).stdout.split()[0]
        path = f"{desk.directory}/bin:{Path(cluster.python).parent}:/usr/bin:/bin"
        status = [cluster.python, "-m", "hpcrun", "status", "queued"]
        environment = {"HPCRUN_ROOT": str(desk.root), "PATH": path}

        def look() -> str:
            return cluster.run(status, env=environment, cwd=str(desk.directory)).stdout

        shown = Counter(line.split()[2] for line in look().splitlines()[1:])
        log.unlink()
        seconds = timed(look, rounds)
        calls = Counter(log.read_text().split())
        peer = timed(
            lambda: cluster.run(["squeue", "-r", "-j", job, "-o", "%i|%T|%r|%N|%S"]),
            rounds,
        )
        cluster.stop_controller()
        away = timed(look, 1)
    return {
        "shown": dict(shown),
        "seconds": seconds,
        "calls_per_refresh": {name: count / rounds for name, count in calls.items()},
        "squeue_seconds": peer,
        "controller_away_seconds": away,
    }


def on_disk(directory: Path, at_work: int, rounds: int) -> list[float]:
    """Runs that have ended but for a few; Slurm's clients are stand-ins."""
    study = Experiment(directory / "root")
    study.submit(range(RUNS), swept={n: {"config.lr": n * 1e-6} for n in range(RUNS)})
    for run in range(RUNS):
        study.start(run, job_id=f"100_{run}")
        study.metrics(run, 1, range(1, 41), loss=0.5, lr=1e-3)
        if run < RUNS - at_work:
            study.end(run)
    working = range(RUNS - at_work, RUNS)
    lines = (f"100_{run}|RUNNING|None|n1|N/A\n" for run in working)
    shim = slurm_shim(directory / "shim", squeue="".join(lines))
    environment = {
        **os.environ,
        "HPCRUN_ROOT": str(directory / "root"),
        "PATH": path_with(shim),
        "XDG_CACHE_HOME": str(directory / "cache"),
    }

    def look() -> None:
        done = subprocess.run(
            [sys.executable, "-m", "hpcrun", "status"],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert f"{RUNS - at_work} completed" in done.stderr, done.stderr

    look()
    return timed(look, rounds)


def many(root: Path) -> str:
    """Make the experiments; return what squeue says of the runs that are at work."""
    each, lines = RUNS // EXPERIMENTS, []
    for number in range(EXPERIMENTS):
        job = str(1000 + number)
        study, when = Experiment(root, f"study{number:03}"), T0 + 3600 * number
        swept = {run: {"config.lr": run * 1e-6} for run in range(each)}
        study.submit(range(each), swept=swept, job_id=job, when=when)
        at_work = ACTIVE_RUNS if number >= EXPERIMENTS - ACTIVE_EXPERIMENTS else 0
        for run in range(each):
            study.start(run, job_id=f"{job}_{run}", when=when + 60)
            study.metrics(run, 1, range(1, 41), loss=0.5, lr=1e-3)
            if run < each - at_work:
                study.end(run)
            else:
                lines.append(f"{job}_{run}|RUNNING|None|n1|N/A\n")
    return "".join(lines)


def experiments(options: argparse.Namespace) -> None:
    """Measure what is typed in a root of many experiments, beside another commit."""
    seconds: dict[str, dict[str, list[float]]] = {}
    opened: dict[str, dict[str, int]] = {}
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp") as place,
        against.versions(options.against) as found,
    ):
        directory = Path(place)
        shim = slurm_shim(directory / "shim", squeue=many(directory / "root"))
        for words in TYPED:
            name = " ".join(words)
            for version, checkout in found.items():
                environment = {
                    **os.environ,
                    "HPCRUN_ROOT": str(directory / "root"),
                    "PATH": path_with(shim),
                    "XDG_CACHE_HOME": str(directory / "cache"),
                    "PYTHONPATH": str(checkout or against.REPOSITORY),
                }

                def look(*python: str, words: Sequence[str] = words, env: Any = environment) -> str:
                    line = [sys.executable, *python, *words]
                    done = subprocess.run(line, env=env, cwd=place, capture_output=True, text=True)
                    done.check_returncode()
                    return done.stderr

                counted = look("-c", OPENED).split()
                opened.setdefault(name, {})[version] = int(counted[-1])
                seconds.setdefault(name, {})[version] = timed(
                    lambda: look("-m", "hpcrun"), options.rounds
                )
    lines = [
        f"{EXPERIMENTS} experiments of {RUNS // EXPERIMENTS} runs on disk,"
        f" {ACTIVE_RUNS} at work in each of {ACTIVE_EXPERIMENTS}; a stand-in for Slurm"
    ]
    for name, of in seconds.items():
        for version, those in of.items():
            lines.append(
                f"  hpcrun {name:16} {version:9} {statistics.median(those):5.2f} s"
                f" ({min(those):.2f} to {max(those):.2f}), {opened[name][version]:6,} files opened"
            )
    median = statistics.median(seconds["status"][against.NOW])
    lines.append(f"{'met' if median < 1 else 'MISSED'}: status in {median:.2f} s (below 1 s)")
    publish(options, "status_experiments", circumstances(), lines, seconds=seconds, opened=opened)


def main() -> None:
    """Measure, and write what was found where ``--output`` says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--slurm", choices=VERSIONS, default=VERSIONS[-1])
    parser.add_argument("--experiments", action="store_true", help="200 experiments of 50 runs")
    against.add_option(parser)
    add_options(parser, "status")
    options = parser.parse_args()
    if options.experiments:
        experiments(options)
        return
    real = queued(options.slurm, options.rounds)
    disk = {}
    for at_work in (0, AT_WORK):
        with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
            disk[at_work] = on_disk(Path(directory), at_work, options.rounds)
    queue, peer = statistics.median(real["seconds"]), statistics.median(real["squeue_seconds"])
    lines = [
        f"an array of {RUNS:,} in the queue of Slurm {options.slurm}: {real['shown']}",
        f"  hpcrun status {queue:.2f} s, squeue -r {peer:.2f} s (medians of {options.rounds})",
        f"  ratio to squeue's time: {queue / peer:.2f}",
        f"  commands of Slurm's a refresh: {real['calls_per_refresh']}",
        f"  slurmctld stopped: {real['controller_away_seconds'][0]:.2f} s",
        f"{RUNS:,} runs on disk, Slurm's clients stand-ins",
    ]
    for at_work, seconds in disk.items():
        lines.append(
            f"  {RUNS - at_work:,} completed, {at_work} at work:"
            f" {statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f})"
        )
    slowest = max(queue, *(statistics.median(seconds) for seconds in disk.values()))
    once = real["calls_per_refresh"] == {"squeue": 1.0}
    lines += [
        f"{'met' if slowest < MOST_SECONDS else 'MISSED'}: {slowest:.2f} s at most"
        f" (below {MOST_SECONDS} s)",
        f"{'met' if once else 'MISSED'}: one query a refresh",
    ]
    setting = circumstances(slurm=options.slurm)
    publish(options, "status", setting, lines, real=real, disk=disk)


if __name__ == "__main__":
    main()
