"""What commands cost to start, as multiples of ``python -c pass``.

    python bench/startup.py [--rounds 30] [--output bench/results/startup.json]

Runs the commands in turn, so that whatever else the machine does hits all of them alike, and
compares medians. Peers: what click alone costs, which any command line built on it pays, and
submitit, which `hpcrun submit` leaves out until it calls sbatch.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

BASELINE = "python -c pass"
TARGET = ("hpcrun --help", 5.0)


def commands(directory: Path) -> dict[str, list[str]]:
    """What is measured, by the name that it is shown under."""
    python = sys.executable
    hpcrun = str(Path(python).with_name("hpcrun"))
    root = ["--root", str(directory)]
    return {
        BASELINE: [python, "-c", "pass"],
        "hpcrun --help": [hpcrun, "--help"],
        "hpcrun status": [hpcrun, "status", *root],
        "hpcrun plan": [hpcrun, "plan", "hello", "cluster=slurm", *root],
        "python -c 'import click'": [python, "-c", "import click"],
        "python -c 'import submitit'": [python, "-c", "import submitit"],
    }


def measure(measured: dict[str, list[str]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each command, ``rounds`` times, interleaved."""
    seconds: dict[str, list[float]] = {name: [] for name in measured}
    for number in range(-2, rounds):
        for name, argv in measured.items():
            began = time.perf_counter()
            subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=True)
            if number >= 0:  # the first two warm the page cache
                seconds[name].append(time.perf_counter() - began)
    return seconds


def main() -> None:
    """Measure, print, and write the result where ``--output`` says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        # One finished run, for status to speak of.
        submit = [*commands(directory)["hpcrun plan"]]
        submit[1:4] = ["submit", "hello", "cluster=local"]
        subprocess.run([*submit, "--wait"], capture_output=True, check=True)
        seconds = measure(commands(directory), options.rounds)

    medians = {name: statistics.median(values) for name, values in seconds.items()}
    ratios = {name: median / medians[BASELINE] for name, median in medians.items()}
    print(f"{'':<30}{'median ms':>10}{'x pass':>8}")
    for name in medians:
        print(f"{name:<30}{medians[name] * 1000:>10.1f}{ratios[name]:>8.1f}")
    name, limit = TARGET
    verdict = "within" if ratios[name] <= limit else "ABOVE"
    print(f"{name}: {ratios[name]:.2f}x python -c pass, {verdict} the target of {limit:g}x")
    if options.output:
        result = {
            "rounds": options.rounds,
            "machine": {
                "processors": os.cpu_count(),
                "load": [round(value, 2) for value in os.getloadavg()],
                "python": platform.python_version(),
                "click": metadata.version("click"),
            },
            "median_seconds": {name: round(value, 5) for name, value in medians.items()},
            "ratio": {name: round(value, 2) for name, value in ratios.items()},
        }
        options.output.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
