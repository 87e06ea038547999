"""What commands cost to start, as multiples of ``python -c pass``.

    python -m bench.startup [--rounds 30] [--before CHECKOUT] [--output bench/results/startup.json]

Runs the commands in turn, so that whatever else the machine does hits all of them alike, and
compares medians. Peers: what click alone costs, which any command line built on it pays, and
submitit, which `hpcrun submit` leaves out until it calls sbatch. With ``--before`` the hpcrun of
another checkout is measured beside this one, and the ratios of the medians are printed.
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
TARGETS = {"hpcrun --help": 4.0, "hpcrun status": 7.0, "hpcrun plan hello cluster=slurm": 14.0}
# Seconds that an answer to TAB may take, and the lines up to the cursor.
TAB_TARGET = 0.1
TABS = {"TAB on a key": "hpcrun submit hello res", "TAB on a condition": "hpcrun status hello st"}
BEFORE = " (before)"


ROOT = Path(__file__).parent.parent
# What a rank imports of hpcrun, from the zip file of its submission; the last since it reads the
# spec through dataclasses.
RANK = """
import hpcrun.run.worker, hpcrun.run.session
try:
    import hpcrun.state.spec.experiment
except ImportError:
    pass
"""
Command = tuple[list[str], dict[str, str]]


def peers() -> dict[str, Command]:
    """What is measured beside hpcrun, by the name that it is shown under."""
    programs = {BASELINE: "pass"}
    programs |= {f"python -c 'import {name}'": f"import {name}" for name in ("click", "submitit")}
    return {name: ([sys.executable, "-c", text], {}) for name, text in programs.items()}


def commands(checkout: Path, directory: Path, mark: str = "") -> dict[str, Command]:
    """The commands of one checkout's hpcrun; ``directory`` becomes its root, with one run."""
    hpcrun = [sys.executable, "-m", "hpcrun"]
    environment = {"PYTHONPATH": str(checkout), "HPCRUN_ROOT": str(directory)}
    subprocess.run(
        [*hpcrun, "submit", "hello", "cluster=local", "--wait"],
        env={**os.environ, **environment},
        cwd=directory.parent,
        capture_output=True,
        check=True,
    )
    measured: dict[str, Command] = {
        f"hpcrun {words}{mark}": ([*hpcrun, *words.split()], environment)
        for words in ("--help", "status", "logs", "plan hello cluster=slurm")
    }
    for name, line in TABS.items():
        asked = {"_HPCRUN_COMPLETE": "bash_complete", "COMP_WORDS": line}
        measured[f"{name}{mark}"] = (hpcrun, {**environment, **asked})
    zipped = {"PYTHONPATH": str(directory / "hello/submissions/1/hpcrun.zip")}
    measured[f"a rank's imports{mark}"] = ([sys.executable, "-c", RANK], zipped)
    return measured


def measure(measured: dict[str, Command], rounds: int) -> dict[str, list[float]]:
    """Seconds of each command, ``rounds`` times, interleaved."""
    seconds: dict[str, list[float]] = {name: [] for name in measured}
    for number in range(-2, rounds):
        for name, (argv, environment) in measured.items():
            variables = {**os.environ, **environment}
            # Users' Python has compiled the modules; the first rounds do it here.
            variables.pop("PYTHONDONTWRITEBYTECODE", None)
            began = time.perf_counter()
            subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=True,
                env=variables,
                # `python -m` takes what lies in the current directory before any other checkout.
                cwd=tempfile.gettempdir(),
            )
            if number >= 0:  # the first two warm the page cache
                seconds[name].append(time.perf_counter() - began)
    return seconds


def main() -> None:
    """Measure, print, and write the result where ``--output`` says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--before", type=Path, help="another checkout, measured beside this one")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as name:
        measured = {**peers(), **commands(ROOT, Path(name, "now"))}
        if options.before:
            measured |= commands(options.before.resolve(), Path(name, "before"), BEFORE)
        seconds = measure(measured, options.rounds)

    medians = {name: statistics.median(values) for name, values in seconds.items()}
    ratios = {name: median / medians[BASELINE] for name, median in medians.items()}
    print(f"{'':<30}{'median ms':>10}{'x pass':>8}")
    for name in medians:
        print(f"{name:<30}{medians[name] * 1000:>10.1f}{ratios[name]:>8.1f}")
    for name in filter(lambda name: name.endswith(BEFORE), medians):
        now = name.removesuffix(BEFORE)
        print(f"{now}: {medians[now] / medians[name]:.3f} of what it was before")
    for name, limit in TARGETS.items():
        verdict = "within" if ratios[name] <= limit else "ABOVE"
        print(f"{name}: {ratios[name]:.2f}x python -c pass, {verdict} the target of {limit:g}x")
    slowest = max(medians[name] for name in TABS)
    verdict = "within" if slowest <= TAB_TARGET else "ABOVE"
    print(f"TAB: {slowest * 1000:.0f} ms, {verdict} the target of {TAB_TARGET * 1000:.0f} ms")
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
