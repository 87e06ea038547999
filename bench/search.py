"""A search (``sweep.search``) beside a grid of hpcrun's and hydra-optuna-sweeper, on one Slurm.

    python -m bench.search --peer HYDRA_PYTHON [--seeds 5] [--trials 24] [--own-trials 24]
        [--parallel 4] [--pack] [--steps 54] [--pause 0.8] [--slurm 22.05] [--output bench/results]

Brings up the test bed's Slurm (root). HYDRA_PYTHON is a Python that has hydra-core,
hydra-optuna-sweeper and hydra-submitit-launcher. The same function is trained everywhere: a
network of 32 units, to which ``--pause`` seconds a step are added for an accelerator's. The
searches of ``--at-once`` seeds run at once. See bench/README.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from bench.publish import add_options, circumstances, publish
from hpcrun.observe.read import metric_curves
from tests.cluster.ward import Ward, seconds
from tests.cluster.workbench import REPOSITORY
from tests.support.waiting import until
from tests.testbed import VERSIONS, Cluster

# Key -> least and largest value; all are searched on a logarithmic scale.
SPACE = {"lr": (1e-3, 1.0), "decay": (1e-5, 0.1), "scale": (0.1, 10.0)}
# Values of each on the grid, evenly spaced, ends included.
GRID = {"lr": 6, "decay": 3, "scale": 3}
TARGETS = {"node-hours": 1 / 3, "wall time": 0.8}
# Two runs differ by more than so many standard deviations of one with a chance of 5 %.
_NOISE = 1.645 * math.sqrt(2)
_RESAMPLES = 10_000
# Most seconds that the searches take, as a multiple of trials that follow one another.
_PATIENCE = 4.0
# Most starts of a search of Hydra's, of which the last counts.
_STARTS = 3

MODEL = """\
import os
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import time
import numpy as np

def train(lr, decay, scale, seed, steps, pause):
    "Train; return the best loss on held-out samples. Samples are the same for all seeds."
    fixed, draw = np.random.default_rng(0), np.random.default_rng(seed)
    def samples(count):
        x = fixed.uniform(-3, 3, (count, 2))
        y = np.sin(2 * x[:, 0]) * np.cos(x[:, 1]) + 0.2 * fixed.normal(size=count)
        return x, y[:, None]
    (x, y), (held_x, held_y) = samples(256), samples(512)
    w = [scale * draw.normal(size=(2, 32)), scale * draw.normal(size=32)]
    w += [draw.normal(size=(32, 1)) / np.sqrt(32), np.zeros(1)]
    velocity, best, until = [np.zeros_like(one) for one in w], np.inf, time.monotonic()
    for step in range(1, steps + 1):
        until += pause
        with np.errstate(all="ignore"):
            for _ in range(20):
                chosen = draw.integers(0, len(x), 32)
                hidden = np.tanh(x[chosen] @ w[0] + w[1])
                error = (hidden @ w[2] + w[3] - y[chosen]) / 16
                inner = (error @ w[2].T) * (1 - hidden * hidden)
                slopes = [x[chosen].T @ inner, inner.sum(0), hidden.T @ error, error.sum(0)]
                for i in range(4):
                    rate = lr * (1 - (step - 1) / steps)
                    velocity[i] = 0.9 * velocity[i] - rate * (slopes[i] + decay * w[i])
                    w[i] = w[i] + velocity[i]
            guess = np.tanh(held_x @ w[0] + w[1]) @ w[2] + w[3]
            loss = float(np.mean((guess - held_y) ** 2))
        best = min(best, loss) if np.isfinite(loss) else best
        time.sleep(max(0, until - time.monotonic()))
        print(f"step {step} loss {loss!r}", flush=True)
    return best
"""
SCRIPT = """\
import argparse
from model import train
parser = argparse.ArgumentParser()
for name in ("lr", "decay", "scale", "pause"):
    parser.add_argument(f"--{name}", type=float)
for name in ("seed", "steps"):
    parser.add_argument(f"--{name}", type=int)
train(**vars(parser.parse_args()))
"""
HYDRA = """\
import json, os, time
import hydra
from hydra.core.hydra_config import HydraConfig
from model import train

@hydra.main(version_base=None, config_path=".", config_name="hydra")
def main(config):
    best = train(**config)
    # Optuna is told of a loss that was never finite as of a large one.
    best = min(best, 1e6)
    with open(os.path.join(HydraConfig.get().runtime.output_dir, "result.json"), "w") as stream:
        json.dump([time.time(), best], stream)
    return best

main()
"""

# When each trial was over, and its best value.
Trials = list[tuple[float, float]]


class Bench:
    """The desk, and what is run from it."""

    def __init__(self, ward: Ward, options: argparse.Namespace) -> None:
        self._ward, self._options = ward, options
        ward.environment["PYTHONPATH"] = str(REPOSITORY)
        self._fixed = {"seed": 0, "steps": options.steps, "pause": options.pause}
        for name, text in {"model.py": MODEL, "train.py": SCRIPT, "app.py": HYDRA}.items():
            ward.write(name, text)
        ward.write("hydra.yaml", json.dumps({**dict.fromkeys(SPACE, 0.1), **self._fixed}))

    def run_grid(self) -> dict[str, Any]:
        """Run the grid for the first seed."""
        grid = {f"config.{key}": values for key, values in _grid().items()}
        at_once = self._options.at_once * self._options.parallel
        self._submit("grid", 0, {"grid": grid, "max_parallel": at_once})
        count = math.prod(GRID.values())
        self._wait(lambda: self._are_over("grid"), math.ceil(count / at_once))
        trials = self._trials("grid", count)
        return {"trials": trials, "node_hours": self._held("grid", math.inf)}

    def search(self, seeds: range) -> list[dict[str, Any]]:
        """Search by hpcrun for these seeds at once."""
        options, began = self._options, []
        for seed in seeds:
            space = {f"config.{key}": {"loguniform": [*ends]} for key, ends in SPACE.items()}
            asked = {"space": space, "trials": options.own_trials, "parallel": options.parallel}
            began.append(time.time())
            search = {**asked, "seed": seed, "prune": "halving"}
            self._submit(f"search-{seed}", seed, {"search": search}, pack=options.pack)
        names = [f"search-{seed}" for seed in seeds]
        waves = math.ceil(options.own_trials / options.parallel)
        self._wait(lambda: all(map(self._are_over, names)), waves)
        found = []
        for name, start in zip(names, began, strict=True):
            trials = self._trials(name, options.own_trials)
            ended = {"began": start, "ended": max(trials)[0], "trials": trials}
            found.append({**ended, "name": name, "starts": 1})
        return found

    def search_with_hydra(self, seeds: range) -> list[dict[str, Any]]:
        """Search by hydra-optuna-sweeper for these seeds at once, in batches of ``--parallel``.

        One that fails is begun again, at most `_STARTS` times, and what it did until then is left
        out: a job of its launcher's was seen to fail on this storage without a word.
        """
        found: dict[int, dict[str, Any]] = {}
        running = {seed: [self._start_hydra(seed, 1)] for seed in seeds}

        def are_over() -> bool:
            for seed, starts in running.items():
                began, process, name = starts[-1]
                if seed in found or process.poll() is None:
                    continue
                results = self._outputs_of(name).glob("*/result.json")
                trials = sorted(tuple(json.loads(path.read_text())) for path in results)
                ended = {"began": began, "ended": time.time(), "trials": trials, "name": name}
                if process.returncode == 0 and len(trials) == self._options.trials:
                    found[seed] = {**ended, "starts": len(starts)}
                elif len(starts) == _STARTS:
                    raise RuntimeError((self._ward.directory / f"{name}.log").read_text())
                else:
                    starts.append(self._start_hydra(seed, len(starts) + 1))
            return len(found) == len(seeds)

        self._wait(are_over, _STARTS * math.ceil(self._options.trials / self._options.parallel))
        return [found[seed] for seed in seeds]

    def _start_hydra(self, seed: int, start: int) -> tuple[float, subprocess.Popen[bytes], str]:
        """Return when the sweeper was started, its process, and what its jobs are called."""
        options, name = self._options, f"hydra-{seed}-{start}"
        words = {
            "hydra/sweeper": "optuna",
            "hydra/launcher": "submitit_slurm",
            "hydra.sweeper.direction": "minimize",
            "hydra.sweeper.n_trials": options.trials,
            "hydra.sweeper.n_jobs": options.parallel,
            "hydra.sweeper.sampler.seed": seed,
            "hydra.launcher.name": name,
            "hydra.launcher.cpus_per_task": 1,
            "hydra.launcher.mem_gb": 1,
            "hydra.sweep.dir": self._outputs_of(name),
            "hydra.sweep.subdir": "${hydra.job.num}",
            "seed": seed,
            **{key: f"tag(log,interval({low},{high}))" for key, (low, high) in SPACE.items()},
        }
        command = [options.peer, "app.py", "--multirun"]
        command += [f"{key}={value}" for key, value in words.items()]
        log = self._ward.write(f"{name}.log", "").open("ab")
        process = self._ward.cluster.popen(
            command, cwd=self._ward.directory, stdout=log, stderr=subprocess.STDOUT
        )
        return time.time(), process, name

    def _outputs_of(self, name: str) -> Path:
        # Not among the code, of which each of our runs would have a copy.
        return self._ward.directory.parent / name

    def judge(self, found: list[dict[str, Any]], targets: Sequence[float]) -> None:
        """Add to each search when its target was reached, and what it had cost then."""
        for one, target in zip(found, targets, strict=True):
            reached = [when for when, value in one["trials"] if value <= target]
            until_when = min(reached, default=one["ended"])
            one |= {
                "best": min(value for _, value in one["trials"]),
                "reached": bool(reached),
                "wall": until_when - one["began"],
                "whole_wall": one["ended"] - one["began"],
                "node_hours": self._held(one["name"], until_when),
                "whole_node_hours": self._held(one["name"], math.inf),
            }

    def _submit(self, name: str, seed: int, sweep: dict[str, Any], *, pack: bool = False) -> None:
        resources: dict[str, Any] = {"ntasks_per_node": 1, "mem": "500M", "time": "01:00:00"}
        if pack:
            resources["pack"] = {"runs_per_node": self._options.parallel}
        spec = {
            "entry": "train.py",
            "cluster": "bed",
            "objective": {"metric": "loss", "mode": "min"},
            "progress": {
                "pattern": r"step (?P<step>\d+) loss (?P<loss>\S+)",
                "total": self._options.steps,
            },
            "config": {**dict.fromkeys(SPACE, 0.1), **self._fixed, "seed": seed},
            "resources": resources,
            "sweep": sweep,
        }
        self._ward.hpcrun("submit", self._ward.spec(name, spec), timeout=300)

    def _wait(self, are_over: Callable[[], bool], waves: int) -> None:
        length = self._options.steps * self._options.pause
        until(are_over, "the runs end", _PATIENCE * waves * (length + 15) + 120, 2)

    def _are_over(self, name: str) -> bool:
        over = {"completed", "pruned", "failed", "cancelled"}
        return all(one["state"] in over for one in self._ward.status(name))

    def _trials(self, name: str, count: int) -> Trials:
        """Return when each run was over and its best value, by the time of its end."""
        found = []
        for number in range(count):
            run = f"{name}/{number}"
            best = metric_curves.read(self._ward.paths(run)).best("loss", "min")
            ended = self._ward.attempts(run)[-1].ended or {}
            found.append((float(ended["time"]), math.inf if best is None else best[1]))
        return sorted(found) if name != "grid" else found

    def _held(self, name: str, when: float) -> float:
        """Return the hours for which jobs of a name held places for a run until then."""
        columns = "--format=Start,End,AllocCPUS,State"
        argv = ["sacct", "--noheader", "--parsable2", "--allocations", "--duplicates", columns]

        def rows() -> list[list[str]]:
            lines = self._ward.cluster.run([*argv, f"--name={name}"]).stdout.splitlines()
            return [line.split("|") for line in lines if line[:1].isdigit()]

        until(lambda: all("Unknown" not in one for one in rows()), "their ends in accounting", 60)
        held = 0.0
        for begin, end, places, _ in rows():
            held += max(0.0, min(seconds(end), when) - seconds(begin)) * int(places)
        return held / 3600


def _grid() -> dict[str, list[float]]:
    def spread(low: float, high: float, count: int) -> list[float]:
        return [low * (high / low) ** (i / (count - 1)) for i in range(count)]

    return {key: spread(*SPACE[key], count) for key, count in GRID.items()}


def values_of_grid(options: argparse.Namespace) -> list[list[float]]:
    """Return the best loss of each point of the grid for each seed, without any pause."""
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "model.py").write_text(MODEL)
        program = (
            "import contextlib, json, os, sys; from model import train\n"
            "points, seeds, steps = json.loads(sys.argv[1])\n"
            "with contextlib.redirect_stdout(open(os.devnull, 'w')):\n"
            "    found = [[train(*p, s, steps, 0) for p in points] for s in range(seeds)]\n"
            "print(json.dumps(found))"
        )
        points = [*itertools.product(*_grid().values())]
        asked = json.dumps([points, options.seeds, options.steps])
        argv = [sys.executable, "-c", program, asked]
        done = subprocess.run(argv, cwd=directory, capture_output=True, text=True, check=True)
        found: list[list[float]] = json.loads(done.stdout)
        return found


def interval(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """Return the ratio of two sums over seeds, and its 95 % interval by resampling seeds."""
    draw, count = random.Random(0), len(ours)
    ratios = []
    for _ in range(_RESAMPLES):
        chosen = draw.choices(range(count), k=count)
        ratios.append(sum(ours[i] for i in chosen) / sum(theirs[i] for i in chosen))
    ratios.sort()
    return sum(ours) / sum(theirs), ratios[_RESAMPLES // 40], ratios[-_RESAMPLES // 40]


def report(
    grid: dict[str, Any],
    values: list[list[float]],
    sides: dict[str, list[dict[str, Any]]],
    deviation: float,
) -> list[str]:
    """Return the tables."""
    ours, hydra = sides["search"], sides["hydra"]
    best = [min(of_seed) for of_seed in values]
    lines = [
        f"a grid of {len(values[0])} points: {grid['node_hours']:.3f} node-hours; its best values "
        + " ".join(f"{one:.4f}" for one in best),
        f"noise: {deviation:.4f} (standard deviation over seeds of its best point); "
        f"reached: at most {_NOISE * deviation:.4f} above the grid's best",
        "",
        f"{'':10}{'seed':>5}{'best':>9}{'reached':>9}{'node-hours':>12}{'of all':>8}"
        f"{'wall s':>9}{'of all':>8}",
    ]
    for side, found in sides.items():
        lines += [
            f"{side:10}{seed:>5}{one['best']:>9.4f}{'yes' if one['reached'] else 'no':>9}"
            f"{one['node_hours']:>12.3f}{one['whole_node_hours']:>8.3f}"
            f"{one['wall']:>9.0f}{one['whole_wall']:>8.0f}"
            for seed, one in enumerate(found)
        ]
    again = sum(one["starts"] - 1 for one in hydra)
    lines.append(f"searches of Hydra's that failed and were begun again: {again}")
    whole = [grid["node_hours"]] * len(ours)

    def of(found: list[dict[str, Any]], key: str) -> list[float]:
        return [one[key] for one in found]

    def apart(others: Sequence[float]) -> tuple[float, float]:
        """Return the mean of what our best values are worse, and half of its 95 % interval."""
        found = [one - other for one, other in zip(of(ours, "best"), others, strict=True)]
        return fmean(found), 1.96 * stdev(found) / math.sqrt(len(found))

    def row(text: str, pair: tuple[Sequence[float], Sequence[float]], target: str = "") -> None:
        ratio, low, high = interval(*pair)
        verdict = ""
        if target:
            worse, _ = apart(of(hydra, "best") if target == "wall time" else best)
            is_met = worse <= _NOISE * deviation and ratio <= TARGETS[target]
            verdict = f"  target {TARGETS[target]:.2f}: {'met' if is_met else 'MISSED'}"
        lines.append(f"{text:58}{ratio:6.3f} [{low:.3f}, {high:.3f}]{verdict}")

    lines.append("")
    row("node-hours, of the grid's", (of(ours, "whole_node_hours"), whole), "node-hours")
    row("  Hydra's", (of(hydra, "whole_node_hours"), whole))
    row("node-hours until reached, of the grid's", (of(ours, "node_hours"), whole))
    row("  Hydra's", (of(hydra, "node_hours"), whole))
    row("wall time, of Hydra's", (of(ours, "whole_wall"), of(hydra, "whole_wall")), "wall time")
    row("wall time until reached, of Hydra's", (of(ours, "wall"), of(hydra, "wall")))
    for name, values_of in (("the grid's", best), ("Hydra's", of(hydra, "best"))):
        worse, spread = apart(values_of)
        lines.append(f"best value less {name}: {worse:+.4f} +- {spread:.4f} (95 % of the mean's)")
    return lines


def main() -> None:
    """Measure, print, and write the results where ``--output`` says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", required=True, help="a Python that has Hydra and its plugins")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--at-once", type=int, default=5, help="seeds that are searched at once")
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--own-trials", type=int, help="of our searches, where they are others")
    parser.add_argument("--parallel", type=int, default=4, help="trials at a time, of each seed")
    parser.add_argument("--pack", action="store_true", help="trials of a seed share a job")
    parser.add_argument("--steps", type=int, default=54)
    parser.add_argument("--pause", type=float, default=0.8, help="seconds a step")
    parser.add_argument("--slurm", choices=VERSIONS, default=VERSIONS[0])
    add_options(parser, "search")
    options = parser.parse_args()
    options.own_trials = options.own_trials or options.trials
    if options.seeds < 2:
        parser.error("--seeds: two at least, or there is no noise to compare with")
    peers = ("hydra-core", "hydra-optuna-sweeper", "hydra-submitit-launcher", "optuna")
    ask = f"import sys, importlib.metadata as m; print(sys.base_prefix, *map(m.version, {peers}))"
    said = subprocess.run([options.peer, "-c", ask], capture_output=True, text=True, check=True)
    base, *versions = said.stdout.split()
    values = values_of_grid(options)
    averages = [fmean(of_point) for of_point in zip(*values, strict=True)]
    best_point = averages.index(min(averages))
    deviation = stdev(of_seed[best_point] for of_seed in values)
    targets = [min(of_seed) + _NOISE * deviation for of_seed in values]
    prefix = Path(options.peer).absolute().parents[1]
    # A place for each run.
    nodes, cpus = 4, math.ceil(options.at_once * options.parallel / 4)
    cluster = Cluster(
        options.slurm, nodes=nodes, cpus=max(cpus, options.parallel), visible=(str(prefix), base)
    )
    with cluster:
        bench = Bench(Ward(cluster, "search"), options)
        grid = bench.run_grid()
        ran = [value for _, value in grid["trials"]]
        pairs = zip(ran, values[0], strict=True)
        # Sums of products are rounded as memory lies.
        differ = [pair for pair in pairs if not math.isclose(*pair, rel_tol=0.01)]
        if differ:
            raise RuntimeError(f"runs of the grid and the same points here differ: {differ[:3]}")
        sides: dict[str, list[dict[str, Any]]] = {"search": [], "hydra": []}
        for first in range(0, options.seeds, options.at_once):
            seeds = range(first, min(first + options.at_once, options.seeds))
            sides["search"] += bench.search(seeds)
            sides["hydra"] += bench.search_with_hydra(seeds)
        for found in sides.values():
            bench.judge(found, targets)
    setting = circumstances(
        slurm=options.slurm,
        **{
            name: getattr(options, name)
            for name in ("seeds", "trials", "own_trials", "parallel", "pack")
        },
        steps=options.steps,
        pause=options.pause,
        **dict(zip(peers, versions, strict=True)),
    )
    lines = report(grid, values, sides, deviation)
    publish(options, "search", setting, lines, grid=grid, values=values, sides=sides)


if __name__ == "__main__":
    main()
