"""Following the logs of 1,000 runs as they grow, beside ``tail -F``; and of 10,000 that do not.

    python -m bench.follow [--seconds 60] [--rounds 3] [--output bench/results] [--json]

The files are written here at 1,000 lines a second together; ``tail`` polls them as often as
``hpcrun logs --follow`` does. Slurm's clients are stand-ins that say that all run. Exits with 1
where a line was lost, doubled or out of order, or a target missed. See bench/README.md.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from bench.publish import add_options, circumstances, publish
from tests.support.experiment import Experiment, path_with, slurm_shim

FILES, RATE, IDLE = 1_000, 1_000, 10_000
INTERVAL = 0.1
SETTLE = 5.0
TICK = os.sysconf("SC_CLK_TCK")
CPU_TARGET, LATE_TARGET, IDLE_TARGET, CALLS_TARGET = 1.5, INTERVAL + 0.020, 5.0, 100.0
STATUS_CALLS = "stat,lstat,fstat,newfstatat,statx,open,openat,access,faccessat,faccessat2"
LINE = re.compile(rb"file (\d+) line (\d+) at (\d+)")


@dataclass
class Reader:
    """Takes the lines of a follower from its pipe, and how late each was."""

    stream: IO[bytes]
    latencies: list[float] = field(default_factory=list)
    lines: dict[int, list[int]] = field(default_factory=dict)
    counting: bool = False

    def run(self) -> None:
        rest = b""
        while data := os.read(self.stream.fileno(), 1 << 16):
            now = time.time_ns()
            *whole, rest = (rest + data).split(b"\n")
            for line in whole:
                found = LINE.search(line)
                if found is None:
                    continue
                number, sequence, written = map(int, found.groups())
                self.lines.setdefault(number, []).append(sequence)
                if self.counting:
                    self.latencies.append((now - written) / 1e9)


class Writer:
    """Appends lines to random files, at an even rate."""

    def __init__(self, paths: list[Path]) -> None:
        self._descriptors = [os.open(path, os.O_WRONLY | os.O_APPEND) for path in paths]
        self.written = [0] * len(paths)
        self._random = random.Random(0)
        self.over = threading.Event()

    def run(self) -> None:
        began, count = time.monotonic(), 0
        while not self.over.is_set():
            due = int((time.monotonic() - began) * RATE)
            for _ in range(due - count):
                number = self._random.randrange(len(self._descriptors))
                text = f"file {number} line {self.written[number]} at {time.time_ns()}\n"
                os.write(self._descriptors[number], text.encode())
                self.written[number] += 1
            count = due
            time.sleep(0.002)


def experiment(root: Path, runs: int) -> list[Path]:
    """So many runs of one rank that have begun; their logs, empty."""
    study = Experiment(root)
    study.submit(range(runs), world=1)
    paths = []
    for run in range(runs):
        study.start(run, job_id=f"100_{run}", world=1)
        paths.append(study.log(run, 1, 0, ""))
    return paths


def shim(directory: Path, runs: int) -> Path:
    queue = "".join(f"100_{run}|RUNNING|None|n{run}|N/A\n" for run in range(runs))
    return slurm_shim(directory, squeue=queue)


def processor_seconds(pid: int) -> float:
    """Of a process and of those that it has waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / TICK


def hpcrun_argv(*options: str) -> list[str]:
    return [sys.executable, "-m", "hpcrun", "logs", "study", "--follow", "--tail", "0", *options]


def environment(root: Path, bin_directory: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "HPCRUN_ROOT": str(root), "PATH": path_with(bin_directory), **more}


def follow(
    argv: list[str], env: dict[str, str], paths: list[Path], seconds: float
) -> dict[str, float]:
    """Follow growing files for so long; processor use, lateness and what went wrong."""
    for path in paths:
        os.truncate(path, 0)
    writer = Writer(paths)
    process = subprocess.Popen(
        argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
    )
    assert process.stdout is not None
    reader = Reader(process.stdout)
    threads = [threading.Thread(target=one.run, daemon=True) for one in (reader, writer)]
    threads[0].start()
    time.sleep(SETTLE)
    threads[1].start()
    time.sleep(SETTLE)
    reader.counting = True
    before, began = processor_seconds(process.pid), time.monotonic()
    time.sleep(seconds)
    used, took = processor_seconds(process.pid) - before, time.monotonic() - began
    reader.counting = False
    writer.over.set()
    threads[1].join()
    time.sleep(3.0)
    process.terminate()
    process.wait(20)
    threads[0].join(10)
    wrong = sum(
        reader.lines.get(number, []) != list(range(count))
        for number, count in enumerate(writer.written)
    )
    late = sorted(reader.latencies)
    return {
        "processor_percent": round(100 * used / took, 2),
        "p50_seconds": round(statistics.median(late), 4),
        "p99_seconds": round(late[int(len(late) * 0.99)], 4),
        "lines": sum(writer.written),
        "files_with_wrong_lines": wrong,
    }


def idle(root: Path, bin_directory: Path, seconds: float, storage: str) -> dict[str, float]:
    """Follow files that do not grow; processor use, and calls for their status."""
    env = environment(root, bin_directory, HPCRUN_STORAGE=storage)
    process = subprocess.Popen(hpcrun_argv(), env=env, stdout=subprocess.DEVNULL)
    try:
        # Until it has read what there is, and found that nothing grows.
        time.sleep(60)
        before, began = processor_seconds(process.pid), time.monotonic()
        time.sleep(seconds)
        used, took = processor_seconds(process.pid) - before, time.monotonic() - began
        trace = ["strace", "-c", "-f", "-e", f"trace={STATUS_CALLS}", "-p", str(process.pid)]
        counted = subprocess.run(
            ["timeout", str(int(seconds)), *trace],
            capture_output=True,
            text=True,
            check=False,
        ).stderr
    finally:
        process.terminate()
        process.wait(60)
    total = next((line.split() for line in counted.splitlines() if line.endswith(" total")), None)
    if total is None:
        raise SystemExit(f"strace told nothing: {counted[-500:]}")
    return {
        "processor_percent": round(100 * used / took, 2),
        "status_calls_per_second": round(
            int(total[3] if len(total) > 4 else total[2]) / seconds, 1
        ),
    }


def main() -> None:
    """Measure, print, and write the results where ``--output`` says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    add_options(parser, "follow")
    options = parser.parse_args()
    if shutil.which("strace") is None:
        raise SystemExit("strace is not installed")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    rounds: dict[str, list[dict[str, float]]] = {"hpcrun": [], "tail": []}
    with tempfile.TemporaryDirectory() as directory:
        root, commands = Path(directory) / "root", Path(directory) / "bin"
        paths = experiment(root, FILES)
        shim(commands, FILES)
        tail = ["tail", "-q", "-n0", "-F", "---disable-inotify", f"-s{INTERVAL}", *map(str, paths)]
        for number in range(options.rounds):
            for name, argv in sorted(
                {"hpcrun": hpcrun_argv(), "tail": tail}.items(), reverse=number % 2 > 0
            ):
                env = environment(root, commands)
                rounds[name].append(follow(argv, env, paths, options.seconds))
                print(f"{name}: {rounds[name][-1]}", file=sys.stderr)
    quiet = {}
    with tempfile.TemporaryDirectory() as directory:
        root, commands = Path(directory) / "root", Path(directory) / "bin"
        experiment(root, IDLE)
        shim(commands, IDLE)
        for storage in ("local", "network"):
            quiet[storage] = idle(root, commands, options.seconds, storage)
            print(f"idle, {storage}: {quiet[storage]}", file=sys.stderr)
    figures = report(rounds, quiet)
    publish(options, "follow", circumstances(), figures.pop("lines"), rounds=rounds, **figures)
    sys.exit(1 if figures["missed"] else 0)


def report(
    rounds: dict[str, list[dict[str, float]]], quiet: dict[str, dict[str, float]]
) -> dict[str, Any]:
    """The table, and which targets were missed."""
    median = {
        name: {key: statistics.median(one[key] for one in found) for key in found[0]}
        for name, found in rounds.items()
    }
    ours, theirs = median["hpcrun"], median["tail"]
    ratio = ours["processor_percent"] / theirs["processor_percent"]
    wrong = sum(one["files_with_wrong_lines"] for one in rounds["hpcrun"])
    checks = {
        f"processor time: {ratio:.2f} of tail's (at most {CPU_TARGET})": ratio <= CPU_TARGET,
        f"p99 {1000 * ours['p99_seconds']:.0f} ms (at most {1000 * LATE_TARGET:.0f} ms)": (
            ours["p99_seconds"] <= LATE_TARGET
        ),
        f"files with lines lost, doubled or out of order: {wrong:.0f}": not wrong,
        f"10,000 idle files: {quiet['local']['processor_percent']} % of a core "
        f"(at most {IDLE_TARGET:g} %)": quiet["local"]["processor_percent"] <= IDLE_TARGET,
        f"on network storage: {quiet['network']['status_calls_per_second']} status calls a second "
        f"(at most {CALLS_TARGET:g}), {quiet['network']['processor_percent']} % of a core": (
            quiet["network"]["status_calls_per_second"] <= CALLS_TARGET
            and quiet["network"]["processor_percent"] <= IDLE_TARGET
        ),
    }
    rows = [f"{FILES} files, {RATE} lines a second together, looked at every {INTERVAL} s; medians"]
    for name, one in median.items():
        rows.append(
            f"  {name:<8}{one['processor_percent']:>7.2f} % of a core   "
            f"late by {1000 * one['p50_seconds']:.0f} ms, p99 {1000 * one['p99_seconds']:.0f} ms"
        )
    rows += [f"  {'met' if met else 'MISSED'}: {text}" for text, met in checks.items()]
    missed = [text for text, met in checks.items() if not met]
    return {"lines": rows, "median": median, "idle": quiet, "missed": missed}


if __name__ == "__main__":
    main()
