"""The masked language model and the ResNet through hpcrun, beside the same in plain PyTorch.

    python -m bench.jobs [--seeds 5] [--ranks 1 2 4] [--masked-steps N] [--keep DIRECTORY]
                         [--float64] [--output bench/results] [--json]

Each program trains with its shipped spec: with ``--seeds`` seeds through `hpcrun run` (two ranks)
and by `bench.jobs_plain` (one process, the whole batch), then with one seed on 1, 2 and 4 ranks at
one global batch. What lies in ``--keep`` is not trained again. With ``--float64``, the images alone
are trained, with numbers so wide that the order of sums does not matter, on these numbers of ranks.
See bench/README.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.publish import add_options, circumstances, publish
from hpcrun.state import files
from hpcrun.state.layout import experiment

REPOSITORY = Path(__file__).resolve().parent.parent
IMAGES = "image-classification"
# Relative to the spec.
FLOAT64 = "../../bench/programs/images_float64.py:train"
# Spec -> its program, and what its held-out result is judged by. None has dropout, whose masks
# depend on the ranks.
PROGRAMS = {
    "masked-language-model": ("masked_language_model", "loss"),
    IMAGES: ("image_classification", "accuracy"),
}
SHIPPED_RANKS = 2
# The difference of means is noise where at least so many of all divisions of the results into two
# sides have one that is as large.
LEVEL = 0.05
# Steps whose losses are one point of a curve.
POINT = 20


class JobsBench:
    """The place where both sides train.

    Parameters
    ----------
    root
        Where hpcrun's experiments lie.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def train(self, side: str, spec: str, name: str, *typed: str) -> dict[str, Any]:
        """Train, or read what an earlier bench has kept.

        Returns the loss of each step, and step -> what the evaluation found.
        """
        kept = self.root / f"{name}-{side}.json"
        if not kept.exists():
            found = (self.hpcrun if side == "hpcrun" else self.plain)(spec, name, *typed)
            kept.write_text(json.dumps({"typed": typed, **found}))
        found = json.loads(kept.read_text())
        if found["typed"] != [*typed]:
            sys.exit(f"{kept} is of {found['typed']}, not of {[*typed]}: name another --keep")
        held = {int(step): one for step, one in found["held_out"].items()}
        print(f"{name} {side}: {held[max(held)]}", file=sys.stderr, flush=True)
        return {**found, "held_out": held}

    def hpcrun(self, spec: str, name: str, *typed: str) -> dict[str, Any]:
        """Train through hpcrun."""
        self._hpcrun("run", spec, "cluster=local", f"name={name}", *typed, "--new", "--quiet")
        runs = experiment(self.root, name)
        run = runs.run(max(runs.run_numbers()))
        lines = list(files.read_lines(run.attempt(1).metrics))
        found = {
            line["step"]: {"accuracy": line["eval/accuracy"], "loss": line["eval/loss"]}
            for line in lines
            if "eval/loss" in line
        }
        return {"loss": [line["loss"] for line in lines if "loss" in line], "held_out": found}

    def plain(self, spec: str, name: str, *typed: str) -> dict[str, Any]:
        """Train in plain PyTorch, with the configuration that hpcrun would have."""
        told = self._hpcrun("plan", spec, "cluster=local", *typed, "--json")
        plan = json.loads(told)["runs"][0]["spec"]
        given = {"program": PROGRAMS[spec][0], **{k: plan[k] for k in ("config", "deepspeed")}}
        path = self.root / f"{name}-plan.json"
        path.write_text(json.dumps(given))
        found: dict[str, Any] = json.loads(
            _output([sys.executable, "-m", "bench.jobs_plain", str(path)])
        )
        return found

    def _hpcrun(self, *arguments: str) -> str:
        return _output([sys.executable, "-m", "hpcrun", *arguments, "--root", str(self.root)])


def _output(argv: Sequence[str]) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        argv, capture_output=True, text=True, check=False, cwd=REPOSITORY, env=environment
    )
    if done.returncode:
        sys.exit(f"{' '.join(argv)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return done.stdout


def last(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the held-out result after the last step."""
    found: dict[str, float] = result["held_out"][max(result["held_out"])]
    return found


def share_as_far(one: Sequence[float], other: Sequence[float]) -> float:
    """Return p of the exact permutation test of the difference of two means, two-sided."""
    every = [*one, *other]
    total, wanted = sum(every), abs(statistics.mean(one) - statistics.mean(other))
    as_far = [
        abs(sum(side) / len(one) - (total - sum(side)) / len(other)) >= wanted * (1 - 1e-9)
        for side in itertools.combinations(every, len(one))
    ]
    return sum(as_far) / len(as_far)


def compare(ours: Sequence[dict[str, Any]], plain: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Compare the held-out results of both sides over the seeds."""
    found = {}
    for name in ("accuracy", "loss"):
        sides = {
            side: [last(result)[name] for result in results]
            for side, results in (("hpcrun", ours), ("plain", plain))
        }
        means = {side: statistics.mean(values) for side, values in sides.items()}
        deviations = {side: statistics.stdev(values) for side, values in sides.items()}
        error = (sum(one**2 for one in deviations.values()) / len(ours)) ** 0.5
        found[name] = {
            "results": sides,
            "mean": means,
            "deviation": deviations,
            "difference": means["hpcrun"] - means["plain"],
            "standard_error": error,
            "p": share_as_far(*sides.values()),
        }
    return found


def beside(results: Mapping[int, dict[str, Any]]) -> dict[str, Any]:
    """Compare the runs on several numbers of ranks with that on the first."""
    base, *others = results
    first = results[base]
    differences = {}
    for ranks in others:
        pairs = zip(first["loss"], results[ranks]["loss"], strict=True)
        relative = [abs(own - other) / abs(other) for other, own in pairs]
        differences[ranks] = {
            "first_10": max(relative[:10]),
            "first_100": max(relative[:100]),
            "all": max(relative),
            "held_out_loss": last(results[ranks])["loss"] - last(first)["loss"],
            "held_out_accuracy": last(results[ranks])["accuracy"] - last(first)["accuracy"],
        }
    return {
        "held_out": {ranks: result["held_out"] for ranks, result in results.items()},
        "largest_relative_difference_of_losses": differences,
    }


def curve(losses: Sequence[float]) -> list[float]:
    """Return the means of every `POINT` steps."""
    parts = (losses[start : start + POINT] for start in range(0, len(losses), POINT))
    return [round(statistics.mean(part), 5) for part in parts]


def told(spec: str, found: Mapping[str, Any]) -> list[str]:
    """Return the table of one program."""
    judged = PROGRAMS[spec][1]
    lines = [f"{spec}: {found['steps']} steps", ""]
    lines += [f"  {'':10}{'side':8}{'mean':>9}{'deviation':>11}   of each seed"]
    for name in ("accuracy", "loss"):
        one = found["seeds"][name]
        for side in ("hpcrun", "plain"):
            each = " ".join(f"{value:.4f}" for value in one["results"][side])
            mean, deviation = one["mean"][side], one["deviation"][side]
            lines += [f"  {name:10}{side:8}{mean:9.4f}{deviation:11.4f}   {each}"]
        verdict = ("within noise" if one["p"] > LEVEL else "NOT within noise") + (
            ": the verdict" if name == judged else ""
        )
        lines += [
            f"  {'':10}difference {one['difference']:+.4f}, its standard error "
            f"{one['standard_error']:.4f}, p {one['p']:.2f}: {verdict}"
        ]
    return [*lines, "", *told_of_ranks(found["ranks"])]


def told_of_ranks(found: Mapping[str, Any]) -> list[str]:
    """Return the lines of one seed on several numbers of ranks."""
    lines = ["  seed 0 on several numbers of ranks, held out"]
    for ranks, held in found["held_out"].items():
        each = ", ".join(f"{one['accuracy']:.4f} at {step}" for step, one in held.items())
        lines += [f"  ranks {ranks}   accuracy {each}; loss {held[max(held)]['loss']:.6f}"]
    base = min(found["held_out"])
    for ranks, one in found["largest_relative_difference_of_losses"].items():
        lines += [
            f"  {ranks} beside {base}: losses of steps differ by at most {one['first_10']:.1e} "
            f"(first 10), {one['first_100']:.1e} (first 100), {one['all']:.1e} (all), relative"
        ]
    return [*lines, ""]


def measure(
    bench: JobsBench, spec: str, seeds: int, numbers: Sequence[int], typed: Sequence[str]
) -> dict[str, Any]:
    """Train one program on both sides and on several numbers of ranks."""
    sides: dict[str, list[dict[str, Any]]] = {"hpcrun": [], "plain": []}
    for seed, side in itertools.product(range(seeds), sides):
        name = f"{spec}-seed-{seed}"
        sides[side].append(bench.train(side, spec, name, f"config.seed={seed}", *typed))
    ranks = {}
    for number in numbers:
        if number == SHIPPED_RANKS:
            ranks[number] = sides["hpcrun"][0]
            continue
        ranks[number] = bench.train(
            *("hpcrun", spec, f"{spec}-ranks-{number}"),
            *(f"resources.ntasks_per_node={number}", *typed),
        )
    curves: dict[str, Any] = {
        side: [curve(one["loss"]) for one in results] for side, results in sides.items()
    }
    curves["ranks"] = {number: curve(one["loss"]) for number, one in ranks.items()}
    return {
        "steps": len(sides["hpcrun"][0]["loss"]),
        "typed": [*typed],
        "seeds": compare(sides["hpcrun"], sides["plain"]),
        "ranks": beside(ranks),
        "curves": curves,
    }


def in_float64(bench: JobsBench, numbers: Sequence[int]) -> dict[str, Any]:
    """Train the images in float64 on several numbers of ranks."""
    results = {}
    for number in numbers:
        typed = f"entry={FLOAT64}", f"resources.ntasks_per_node={number}"
        results[number] = bench.train("hpcrun", IMAGES, f"float64-ranks-{number}", *typed)
    return beside(results)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.jobs", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--ranks", type=int, nargs="+", default=(1, 2, 4))
    parser.add_argument("--masked-steps", type=int, help="in place of the spec's")
    parser.add_argument("--keep", type=Path, help="where results of single runs stay")
    parser.add_argument("--only", choices=PROGRAMS, help="one program alone")
    parser.add_argument("--float64", action="store_true", help="the images, on several ranks alone")
    add_options(parser, "jobs")
    options = parser.parse_args()
    if options.seeds < 2:
        parser.error("--seeds: a deviation needs at least 2")
    steps = options.masked_steps
    shorter = (
        [f"config.total_steps={steps}", f"config.evaluate_every={steps // 2}"] if steps else []
    )
    found: dict[str, Any] = {}
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as directory:
        root = options.keep.resolve() if options.keep else Path(directory)
        root.mkdir(parents=True, exist_ok=True)
        bench = JobsBench(root)
        if options.float64:
            wide = in_float64(bench, options.ranks)
            publish(options, "jobs-float64", circumstances(), told_of_ranks(wide), ranks=wide)
            return
        for spec in [options.only] if options.only else PROGRAMS:
            typed = shorter if spec == "masked-language-model" else []
            found[spec] = measure(bench, spec, options.seeds, options.ranks, typed)
            lines += told(spec, found[spec])
    setting = circumstances(
        seeds=options.seeds,
        criterion=f"within noise: p > {LEVEL} of the exact permutation test of the difference of "
        "means, for the spec's objective",
        steps_of_a_point=POINT,
    )
    publish(options, "jobs", setting, lines, programs=found)


if __name__ == "__main__":
    main()
