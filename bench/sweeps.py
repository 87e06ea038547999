"""What a large sweep costs before it is in the queue, beside Hydra and its submitit launcher.

    python -m bench.sweeps --peer HYDRA_PYTHON [--rounds 3] [--output bench/results] [--json]
    python -m bench.sweeps --against CHECKOUT [--rounds 9] [--output bench/results] [--json]

HYDRA_PYTHON is a Python that has hydra-core and hydra-submitit-launcher; they need an older
OmegaConf than hpcrun, so an environment of their own. sbatch is a stand-in that notes when it was
called. CHECKOUT is one of another commit. See bench/README.md.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.publish import add_options, circumstances, publish

ROOT = Path(__file__).resolve().parents[1]
KEYS, INTERPOLATIONS = 60, 8
POINTS = (1_000, 10_000)
PEER_POINTS = 100
SUBMITTED = 1_000
TARGETS = {"compile": 300.0, "submit": 30.0, "files": 12, "megabytes": 3.0, "memory": 400.0}

_SBATCH = """#!/bin/sh
date +%s.%N >> "$CALLS"
echo "Submitted batch job 100"
"""
_OURS = """
import resource, sys, time
from hpcrun.compile import compile_spec
from hpcrun.compile.freeze import freeze
began = time.perf_counter()
compiled = compile_spec(sys.argv[1], (), (f"config.k0={{range: [{int(sys.argv[2]) // 10}]}}",))
count = len(freeze(compiled).runs)
seconds = time.perf_counter() - began
print(count, seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""
_PEER = """
import sys, time
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
count = int(sys.argv[2])
with initialize_config_dir(sys.argv[1], version_base=None):
    began = time.perf_counter()
    for point in range(count):
        config = compose("config", overrides=[f"k0={point // 10}", f"k1={point % 10}"])
        OmegaConf.to_container(config, resolve=True)
    print(count, time.perf_counter() - began)
"""
_APPLICATION = """
import hydra
@hydra.main(version_base=None, config_path=".", config_name="config")
def main(config):
    print(config.k0)
if __name__ == "__main__":
    main()
"""


@dataclass(frozen=True)
class Submission:
    """What it took to have a sweep in the queue.

    Attributes
    ----------
    seconds
        From the command to the last call of sbatch.
    calls
        Of sbatch.
    """

    seconds: float
    calls: int
    files: int
    megabytes: float


class Bench:
    """One specification, as ours and as Hydra's."""

    def __init__(self, directory: Path, peer: str) -> None:
        self._directory, self._peer = directory, peer
        keys = "".join(f"k{number}: {number}\n" for number in range(KEYS - INTERPOLATIONS))
        plain = keys + "".join(f"i{n}: ${{k{n}}}/x\n" for n in range(INTERPOLATIONS))
        ours = keys + "".join(f"i{n}: ${{config.k{n}}}/x\n" for n in range(INTERPOLATIONS))
        self._hydra = directory / "hydra"
        self._code = directory / "code"
        programs = directory / "bin"
        for path in (self._hydra, self._code, programs):
            path.mkdir()
        (self._hydra / "config.yaml").write_text(plain)
        (self._hydra / "app.py").write_text(_APPLICATION)
        (self._code / "work.py").write_text("print('worked')\n")
        self._spec = self._code / "sweep.yaml"
        indented = "".join(f"  {line}\n" for line in ours.splitlines())
        self._spec.write_text(
            f"cluster: slurm\nentry: work.py\nenvironment: {{python: {sys.executable}}}\n"
            f"config:\n{indented}"
            "sweep: {grid: {config.k0: [0], config.k1: {range: [10]}}}\n"
        )
        (programs / "sbatch").write_text(_SBATCH)
        (programs / "sbatch").chmod(0o755)
        self._environment = {
            **os.environ,
            "HPCRUN_PROGRESS": "0",
            "PATH": f"{programs}:{os.environ['PATH']}",
            "CALLS": str(directory / "calls"),
            "PYTHONPATH": str(ROOT),
        }

    def compile(self, points: int) -> tuple[float, float]:
        """Seconds a point, all of hpcrun's checks included, and the process's MiB."""
        count, seconds, memory = self._say(sys.executable, _OURS, self._spec, points)
        assert count == points
        return seconds / count, memory

    def compare(self, checkouts: Mapping[str, Path], points: int) -> dict[str, Any]:
        """Processor seconds and MiB of each checkout's hpcrun, by the way of asking it."""
        sweep = f"config.k0={{range: [{points // 10}]}}"
        plan = ["-m", "hpcrun", "plan", str(self._spec), "--sweep", sweep]
        ways = {"compile": ["-c", _OURS, str(self._spec), str(points)], "plan": plan}
        ways["plan --json"] = [*plan, "--json"]
        return {
            way: {
                name: _processor([sys.executable, *argv], {**self._environment, "PYTHONPATH": path})
                for name, path in ((name, str(path)) for name, path in checkouts.items())
            }
            for way, argv in ways.items()
        }

    def compose(self, points: int) -> float:
        """Hydra's seconds a point: composed and resolved, nothing checked."""
        count, seconds = self._say(self._peer, _PEER, self._hydra, points)
        return seconds / count

    def submit(self) -> Submission:
        """`hpcrun submit` of the sweep."""
        root = Path(tempfile.mkdtemp(dir=self._directory))
        sweep = f"config.k0={{range: [{SUBMITTED // 10}]}}"
        command = ["-m", "hpcrun", "submit", str(self._spec), "--sweep", sweep, "--root", str(root)]
        return self._submit([sys.executable, *command], self._code, root, lambda run: None)

    def launch(self) -> Submission:
        """Hydra's multirun through its submitit launcher, ended when it waits for the jobs."""
        place = Path(tempfile.mkdtemp(dir=self._directory))
        swept = [f"k0=range({SUBMITTED // 10})", "k1=range(10)", f"hydra.sweep.dir={place}"]
        command = [self._peer, "app.py", "--multirun", "hydra/launcher=submitit_slurm", *swept]
        return self._submit(command, self._hydra, place, _end)

    def _submit(
        self,
        command: list[str],
        where: Path,
        files_in: Path,
        end: Callable[[subprocess.Popen[bytes]], None],
    ) -> Submission:
        calls = self._directory / "calls"
        calls.unlink(missing_ok=True)
        log = self._directory / "log"
        with log.open("wb") as stream:
            began = time.time()
            run = subprocess.Popen(
                command,
                cwd=where,
                env=self._environment,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
        try:
            while run.poll() is None and not calls.exists():
                time.sleep(0.05)
            time.sleep(2)
            end(run)
            run.wait(60)
        finally:
            _end(run)
        if not calls.exists():
            raise RuntimeError(log.read_text())
        times = [float(line) for line in calls.read_text().splitlines()]
        files = [path for path in files_in.rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in files) / 1e6
        return Submission(times[-1] - began, len(times), len(files), size)

    def _say(self, python: str, program: str, *arguments: object) -> list[float]:
        answer = subprocess.run(
            [python, "-c", program, *map(str, arguments)],
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if answer.returncode != 0:
            raise RuntimeError(answer.stderr)
        return [float(word) for word in answer.stdout.split()]


def _processor(argv: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Processor seconds of a command, and its MiB."""
    # Python finds what lies in the current directory before PYTHONPATH.
    with subprocess.Popen(argv, env=environment, cwd="/", stdout=subprocess.DEVNULL) as run:
        _, status, used = os.wait4(run.pid, 0)
        run.returncode = os.waitstatus_to_exitcode(status)
    if run.returncode:
        raise RuntimeError(f"{argv} ended with exit code {run.returncode}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def _against(options: argparse.Namespace) -> None:
    """Measure this checkout and another by turns, print, and write."""
    checkouts = {"now": ROOT, "before": options.against.resolve()}
    rounds: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(Path(name), "")
        for number in range(-1, options.rounds):
            turns = dict(sorted(checkouts.items(), reverse=bool(number % 2)))
            found = {str(points): bench.compare(turns, points) for points in POINTS}
            # The first compiles the modules.
            rounds += [found] if number >= 0 else []
    lines = [f"{'processor s, MiB':<24}{'now':>16}{'before':>16}{'ratio':>9}{'memory':>9}"]
    for points, way in ((points, way) for points, found in rounds[0].items() for way in found):
        each = {side: [one[points][way][side] for one in rounds] for side in checkouts}
        medians = {
            side: [statistics.median(values) for values in zip(*samples, strict=True)]
            for side, samples in each.items()
        }
        both = zip(each["now"], each["before"], strict=True)
        ratio = statistics.median(now[0] / before[0] for now, before in both)
        shown = "".join(f"{medians[side][0]:>9.3f}{medians[side][1]:>7.0f}" for side in checkouts)
        memory = medians["now"][1] / medians["before"][1]
        lines.append(f"{way + ' ' + points:<24}{shown}{ratio:>9.3f}{memory:>9.3f}")
    commits = {
        side: subprocess.run(
            ["git", "-C", str(path), "describe", "--always", "--dirty"],
            capture_output=True,
            text=True,
            check=False,
        ).stdout.strip()
        for side, path in checkouts.items()
    }
    setting = circumstances(load=round(os.getloadavg()[0], 2), rounds=options.rounds, **commits)
    publish(options, "sweeps-against", setting, lines, rounds=rounds)


def _end(run: subprocess.Popen[bytes]) -> None:
    if run.poll() is None:
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()


def _lines(data: dict[str, Any]) -> list[str]:
    ours, peer = data["compile"], data["compose"]
    lines = [f"{'':<26}{'hpcrun':>12}{'Hydra':>12}{'ratio':>9}  target"]

    def row(name: str, one: str, other: str = "", ratio: str = "", target: str = "") -> None:
        lines.append(f"{name:<26}{one:>12}{other:>12}{ratio:>9}  {target}".rstrip())

    for points in POINTS:
        times = statistics.median(ours[str(points)])
        ratio = peer / times
        verdict = "met" if ratio >= TARGETS["compile"] else "MISSED"
        row(
            f"ms a point of {points:,}",
            f"{times * 1e3:.4f}",
            f"{peer * 1e3:.2f}",
            f"{ratio:.0f}",
            f"{TARGETS['compile']:.0f}: {verdict}",
        )
    memory = data["memory"]
    verdict = "met" if memory < TARGETS["memory"] else "MISSED"
    row(f"MiB for {POINTS[-1]:,}", f"{memory:.0f}", target=f"{TARGETS['memory']:.0f}: {verdict}")
    mine, theirs = data["submit"], data["launch"]
    seconds = statistics.median(one["seconds"] for one in mine)
    ratio = theirs["seconds"] / seconds
    verdict = "met" if ratio >= TARGETS["submit"] else "MISSED"
    row(
        f"s to the last sbatch ({SUBMITTED:,})",
        f"{seconds:.2f}",
        f"{theirs['seconds']:.1f}",
        f"{ratio:.0f}",
        f"{TARGETS['submit']:.0f}: {verdict}",
    )
    for name in ("calls", "files", "megabytes"):
        one, other = max(run[name] for run in mine), theirs[name]
        target = ""
        if name in TARGETS:
            verdict = "met" if one <= TARGETS[name] else "MISSED"
            target = f"{TARGETS[name]:g}: {verdict}"
        row(
            "calls of sbatch" if name == "calls" else name, f"{one:.4g}", f"{other:.4g}", "", target
        )
    return lines


def main() -> None:
    """Measure both by turns, print, and write where ``--output`` says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--peer", help="a Python that has Hydra and its launcher")
    which.add_argument("--against", type=Path, help="a checkout of another commit")
    parser.add_argument("--rounds", type=int, default=3)
    add_options(parser, "sweeps")
    options = parser.parse_args()
    if options.against:
        _against(options)
        return
    data: dict[str, Any] = {"compile": {str(points): [] for points in POINTS}, "submit": []}
    composed = []
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(Path(name), options.peer)
        for _ in range(options.rounds):
            composed.append(bench.compose(PEER_POINTS))
            for points in POINTS:
                seconds, data["memory"] = bench.compile(points)
                data["compile"][str(points)].append(seconds)
            data["submit"].append(asdict(bench.submit()))
        data["launch"] = asdict(bench.launch())
    data["compose"] = statistics.median(composed)
    peers = ("hydra-core", "hydra-submitit-launcher")
    ask = f"import importlib.metadata as m; print(*map(m.version, {peers}))"
    peer = subprocess.run([options.peer, "-c", ask], capture_output=True, text=True, check=True)
    setting = circumstances(
        keys=KEYS,
        interpolations=INTERPOLATIONS,
        rounds=options.rounds,
        **dict(zip(peers, peer.stdout.split(), strict=True)),
    )
    publish(options, "sweeps", setting, _lines(data), **data)


if __name__ == "__main__":
    main()
