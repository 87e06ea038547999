"""Commands that look, in a root of 1,000 experiments with 100,000 runs; and plans of many points.

    python -m bench.looking [--against COMMIT] [--rounds 5] [--root DIRECTORY] [--only WORD]...
                            [--output bench/results] [--json]

The runs are made in DIRECTORY (a temporary one; several minutes) unless they lie there already.
Slurm's clients are stand-ins. Calls are those to the file system that name something under the
root, which is what a file server would be asked at most. See bench/README.md.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench import against
from bench.publish import add_options, circumstances, publish
from tests.support.experiment import T0, Experiment, path_with, slurm_shim

EXPERIMENTS, EACH = 1_000, 100
# The newest ones have runs at work.
ACTIVE_EXPERIMENTS, ACTIVE_RUNS = 5, 10
ONE = "study0500"
ALONE, FIRST = "status of one, alone in its root", "list, for the first time"
# As much is shown as there is: once, and without counting.
WHOLE = ("of all", "of 5,000")
LOOKS: Mapping[str, Sequence[str]] = {
    "status of one": ("status", ONE),
    ALONE: ("status", ONE),
    "results of one": ("results", ONE),
    "clean of one": ("clean", ONE, "--dry-run"),
    "status of one run": ("status", f"{ONE}/7"),
    "status of a job": ("status", "1500_7"),
    "status": ("status",),
    "list": ("list",),
    FIRST: ("list",),
    "status of all": ("status", "*"),
    "results of all": ("results", "*"),
    "clean of all": ("clean", "*", "--dry-run"),
    "report of 5,000": ("report", "study00[0-4]?", "-o", "{place}/report.html"),
}
POINTS = {"plan of 10,000": 10_000, "submit --dry-run of 100,000": 100_000}
CALLS = "%file,getdents64,read,pread64,fstat"
SPEC = """\
cluster: slurm
entry: work.py
environment: {{python: {python}}}
config: {{lr: 0.001, seed: 0, {keys}}}
sweep: {{grid: {{config.lr: {{range: [100]}}, config.seed: {{range: [1]}}}}}}
"""
# Beside the swept ones, of which eight refer to others.
KEYS = {f"k{n}": n for n in range(50)} | {f"i{n}": f"${{config.k{n}}}/x" for n in range(8)}


def made(root: Path) -> None:
    """Make the experiments: one by what supervisors write, the others of its bytes."""
    fsync, os.fsync = os.fsync, lambda descriptor: None
    try:
        for number in range(EXPERIMENTS):
            ended = EACH - (ACTIVE_RUNS if number >= EXPERIMENTS - ACTIVE_EXPERIMENTS else 0)
            _experiment(root, f"study{number:04}", str(1000 + number), T0 + 600 * number, ended)
    finally:
        os.fsync = fsync


def _experiment(root: Path, name: str, job: str, when: float, ended: int) -> None:
    study = Experiment(root, name)
    swept = {run: {"config.lr": run * 1e-6} for run in range(EACH)}
    study.submit(range(EACH), swept=swept, job_id=job, when=when)
    for run in range(EACH):
        study.start(run, job_id=f"{job}_{run}", when=when + 60)
        study.metrics(run, 1, range(1, 11), loss=0.5 + run / 1000, lr=1e-3)
        if run < ended:
            study.end(run)


def queue() -> str:
    """Return what squeue says of the runs that are at work."""
    jobs = range(1000 + EXPERIMENTS - ACTIVE_EXPERIMENTS, 1000 + EXPERIMENTS)
    runs = range(EACH - ACTIVE_RUNS, EACH)
    return "".join(f"{job}_{run}|RUNNING|None|n1|N/A\n" for job in jobs for run in runs)


class Desk:
    """One version of hpcrun before the root, with a cache of its own."""

    def __init__(self, place: Path, version: str, checkout: Path | None, shim: Path) -> None:
        self._place = place / version
        self._place.mkdir()
        (self._place / "work.py").write_text("print('worked')\n")
        keys = ", ".join(f'{key}: "{value}"' for key, value in KEYS.items())
        (self._place / "sweep.yaml").write_text(SPEC.format(python=sys.executable, keys=keys))
        self._environment = {
            **os.environ,
            "HPCRUN_PROGRESS": "0",
            "PATH": path_with(shim),
            "PYTHONPATH": str(checkout or against.REPOSITORY),
            "XDG_CACHE_HOME": str(self._place / "cache"),
        }

    def run(self, words: Sequence[str], root: Path, *before: str) -> dict[str, float]:
        """Run a command; return its seconds, processor seconds and MiB."""
        argv = [*before, sys.executable, "-m", "hpcrun", *words]
        argv = [word.format(place=self._place) for word in argv]
        began = time.monotonic()
        process = subprocess.Popen(
            argv,
            cwd=self._place,
            env={**self._environment, "HPCRUN_ROOT": str(root)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        assert process.stderr
        said = process.stderr.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0, said.decode()[-2000:]
        seconds = time.monotonic() - began
        print(f"{seconds:8.2f} s  {shlex.join(argv)}", file=sys.stderr, flush=True)
        return {
            "seconds": seconds,
            "processor": used.ru_utime + used.ru_stime,
            "mebibytes": used.ru_maxrss / 1024,
        }

    def calls(self, words: Sequence[str], root: Path) -> int:
        """Return how many calls to the file system name something under the root."""
        log = self._place / "strace"
        self.run(
            words,
            root,
            "strace",
            "-f",
            "-y",
            "-q",
            "--seccomp-bpf",
            "-o",
            str(log),
            "-e",
            f"trace={CALLS}",
        )
        with open(log, errors="replace") as stream:
            count = sum(f"{root}/" in line or f'{root}"' in line for line in stream)
        log.unlink()
        return count

    def forget(self) -> None:
        """Remove the caches."""
        shutil.rmtree(self._place / "cache", ignore_errors=True)


def looked(desks: Mapping[str, Desk], root: Path, alone: Path, options: Any) -> dict[str, Any]:
    """Return for each command and version the samples of all rounds, by turns, and its calls."""
    found: dict[str, Any] = {}
    for name, words in LOOKS.items():
        if options.only and not any(word in name for word in options.only):
            continue
        where, is_whole = alone if name == ALONE else root, name.endswith(WHOLE)
        found[name] = {version: {"calls": {}, "samples": []} for version in desks}
        for version, desk in desks.items():
            desk.forget()
            if not is_whole and name != FIRST:
                calls = {"first": desk.calls(words, where), "again": desk.calls(words, where)}
                found[name][version]["calls"] = calls
        for _ in range(1 if is_whole else options.rounds):
            for version, desk in desks.items():
                if name == FIRST:
                    desk.forget()
                found[name][version]["samples"].append(desk.run(words, where))
    return found


def planned(desks: Mapping[str, Desk], root: Path, options: Any) -> dict[str, Any]:
    """Return the same for plans."""
    found: dict[str, Any] = {}
    for name, points in POINTS.items():
        if options.only and not any(word in name for word in options.only):
            continue
        *words, _, _ = name.split()
        argv = [*words[:1], "sweep.yaml", *words[1:]]
        argv += ["--sweep", f"config.seed={{{{range: [{points // 100}]}}}}"]
        found[name] = {version: {"calls": {}, "samples": []} for version in desks}
        for _ in range(options.rounds):
            for version, desk in desks.items():
                found[name][version]["samples"].append(desk.run(argv, root))
    return found


def table(found: Mapping[str, Any]) -> list[str]:
    lines = [f"{'':34}{'':11}{'s':>7}{'least':>7}{'cpu s':>7}{'MiB':>6}{'calls':>9}{'again':>9}"]
    for name, versions in found.items():
        for version, one in versions.items():
            of = {key: [each[key] for each in one["samples"]] for key in one["samples"][0]}
            calls = "".join(f"{count:>9,}" for count in one["calls"].values())
            lines.append(
                f"{name:34}{version:11}{statistics.median(of['seconds']):>7.2f}"
                f"{min(of['seconds']):>7.2f}{statistics.median(of['processor']):>7.2f}"
                f"{statistics.median(of['mebibytes']):>6.0f}{calls}"
            )
    return lines


def verdicts(found: Mapping[str, Any]) -> list[str]:
    def median(name: str, key: str = "seconds") -> float:
        return statistics.median(one[key] for one in found[name][against.NOW]["samples"])

    lines = []

    def say(name: str, value: float, most: float, what: str) -> None:
        lines.append(f"{'met' if value <= most else 'MISSED'}: {name}: {value:.3g} {what}")

    if ALONE in found and "status of one" in found:
        ratio = median("status of one", "processor") / median(ALONE, "processor")
        say("status of one", ratio, 1.1, "times its processor time alone in its root (1.1)")
    if "list" in found:
        say("list", median("list"), 2, "s (2)")
    for name, points in POINTS.items():
        if name not in found:
            continue
        if name.startswith("plan"):
            say(name, median(name) / points * 1e3, 0.2, "ms a point (0.2)")
        else:
            say(name, median(name), 30, "s (30)")
            say(name, median(name, "mebibytes"), 1000 / 1.048576, "MiB (954)")
    return lines


def main() -> None:
    """Measure by turns, print, and write where ``--output`` says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--root", type=Path, help="where the runs lie, or are made")
    parser.add_argument("--only", action="append", help="only what has this word in its name")
    against.add_option(parser)
    add_options(parser, "looking")
    options = parser.parse_args()
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/var/tmp")))
        root = options.root or place / "root"
        if not root.exists():
            made(root)
        alone = place / "alone"
        shutil.copytree(root / ONE, alone / ONE)
        shim = slurm_shim(place / "shim", squeue=queue())
        desks = {
            version: Desk(place, version, checkout, shim)
            for version, checkout in stack.enter_context(against.versions(options.against)).items()
        }
        found = {**looked(desks, root, alone, options), **planned(desks, root, options)}
    lines = [
        f"{EXPERIMENTS:,} experiments of {EACH} runs, {ACTIVE_RUNS} at work in each of"
        f" {ACTIVE_EXPERIMENTS}; a stand-in for Slurm",
        *table(found),
        *verdicts(found),
    ]
    load = round(os.getloadavg()[0], 2)
    publish(options, "looking", circumstances(load=load), lines, found=found)


if __name__ == "__main__":
    main()
