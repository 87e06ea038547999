"""Reading 1 GB of logs of 64 ranks, folded, beside ``cat | grep`` over the same files.

    python -m bench.fold [--megabytes 1000] [--rounds 3] [--output bench/results] [--json]

Lines of 120 bytes, nine in ten of them the same in all ranks. Exits with 1 where a line was lost or
a target missed. See bench/README.md.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.publish import add_options, circumstances, publish
from tests.support.experiment import Experiment, path_with, slurm_shim

RANKS, LINE, COMMON = 64, 120, 0.9
TARGET = 60.0
MEMORY_TARGET = 1.1


def write_logs(root: Path, megabytes: int) -> tuple[list[Path], int, int]:
    """The ranks' logs; how many lines all have in common, and how many one rank alone has."""
    study = Experiment(root)
    study.submit((0,), world=RANKS)
    study.start(0, world=RANKS)
    per_rank = megabytes * 1_000_000 // RANKS // LINE
    randoms = [random.Random(rank) for rank in range(RANKS)]
    streams = [open(study.log(0, 1, rank, ""), "wb") for rank in range(RANKS)]  # noqa: SIM115
    common = alone = 0
    left = [per_rank] * RANKS
    while min(left) > 0:
        line = f"step {common} of the training".encode().ljust(LINE - 1, b".") + b"\n"
        common += 1
        for rank, stream in enumerate(streams):
            stream.write(line)
            left[rank] -= 1
            if randoms[rank].random() < (1 - COMMON) / COMMON:
                own = f"rank {rank} alone, line {left[rank]}".encode().ljust(LINE - 1, b".")
                stream.write(own + b"\n")
                left[rank] -= 1
                alone += 1
    for stream in streams:
        stream.close()
    study.end(0)
    return [Path(stream.name) for stream in streams], common, alone


def measure(argv: list[str], env: dict[str, str], output: Path) -> tuple[float, float]:
    """Seconds, and the most memory in MB."""
    with open(output, "wb") as stream:
        began = time.monotonic()
        process = subprocess.Popen(argv, env=env, stdout=stream)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - began
    if status:
        raise SystemExit(f"{argv[:5]} failed with {status}")
    return seconds, usage.ru_maxrss / 1000


def main() -> None:
    """Measure, print, and write the results where ``--output`` says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    add_options(parser, "fold")
    options = parser.parse_args()
    samples: dict[str, list[float]] = {"hpcrun": [], "cat | grep": []}
    memory: dict[str, float] = {}
    argv = [sys.executable, "-m", "hpcrun", "logs", "study/0"]
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        slurm_shim(place / "bin")
        for name, megabytes in (
            ("an eighth of it", options.megabytes // 8),
            ("all", options.megabytes),
        ):
            paths, common, alone = write_logs(place / name, megabytes)
            size = sum(path.stat().st_size for path in paths) / 1e6
            env = {**os.environ, "HPCRUN_ROOT": str(place / name), "PATH": path_with(place / "bin")}
            quoted = " ".join(f"'{path}'" for path in paths)
            peer = ["sh", "-c", f"cat {quoted} | grep training"]
            printed = place / "printed"
            for _ in range(options.rounds if name == "all" else 1):
                seconds, memory[name] = measure(argv, env, printed)
                lines = count_lines(printed)
                if lines != common + alone:
                    raise SystemExit(f"{lines} lines were printed, {common} + {alone} expected")
                if name == "all":
                    samples["hpcrun"].append(size / seconds)
                    samples["cat | grep"].append(size / measure(peer, env, printed)[0])
                    print(
                        {key: round(value[-1]) for key, value in samples.items()}, file=sys.stderr
                    )
    figures = report(samples, memory, size)
    publish(options, "fold", circumstances(), figures.pop("lines"), samples=samples, **figures)
    sys.exit(1 if figures["missed"] else 0)


def count_lines(path: Path) -> int:
    with open(path, "rb") as stream:
        return sum(block.count(b"\n") for block in iter(lambda: stream.read(1 << 20), b""))


def report(
    samples: dict[str, list[float]], memory: dict[str, float], size: float
) -> dict[str, Any]:
    """The table, and which targets were missed."""
    speed = {name: statistics.median(found) for name, found in samples.items()}
    growth = memory["all"] / memory["an eighth of it"]
    checks = {
        f"{speed['hpcrun']:.0f} MB/s (at least {TARGET:g})": speed["hpcrun"] >= TARGET,
        f"memory {memory['all']:.0f} MB, {growth:.2f} times that for an eighth of the logs "
        f"(at most {MEMORY_TARGET})": growth <= MEMORY_TARGET,
    }
    lines = [f"{size:.0f} MB of logs of {RANKS} ranks, {COMMON:.0%} of the lines common; medians"]
    lines += [f"  {name:<12}{value:>7.0f} MB/s" for name, value in speed.items()]
    lines.append(f"  ratio       {speed['hpcrun'] / speed['cat | grep']:>7.2f}")
    lines += [f"  {'met' if met else 'MISSED'}: {text}" for text, met in checks.items()]
    missed = [text for text, met in checks.items() if not met]
    return {"lines": lines, "speed": speed, "memory_mb": memory, "missed": missed}


if __name__ == "__main__":
    main()
