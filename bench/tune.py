"""Compare `hpcrun tune` with trying everything: the configuration found, and the time.

    python -m bench.tune [--steps 20] [--rounds 3] [--output bench/results]

The language model that ships with hpcrun, two ranks on this machine's processors, 16 candidates:
micro batches 1, 2, 4, 8 and ZeRO stages 0 to 3, at one global batch. Compared are

tune        `hpcrun tune`, from the command line to the spec that it writes
each        every candidate by `hpcrun run` with so many steps, one after the other
in one run  every candidate with as many steps in one run of trials, without a search

Then the choices of all three train by `hpcrun run`, in turn, several rounds; the median step of all
rounds tells which is fastest.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcrun.compile import compile_spec
from hpcrun.state import files
from hpcrun.state.layout import experiment
from hpcrun.tools.perf import trial_candidates, trial_run
from hpcrun.tools.perf.on_nodes import trial_log
from hpcrun.tools.perf.on_nodes.trial_log import TrialPlan
from hpcrun.tools.perf.trial_candidates import MICRO, STAGE

SPEC = "language-model"
MICROS, STAGES = ("1", "2", "4", "8"), ("0", "1", "2", "3")
ALWAYS = ("cluster=local", "config.evaluate_every=0")
# Steps at the beginning of a run that are not compared.
_WARM_UP = 3

Values = Mapping[str, str]


def space() -> list[dict[str, str]]:
    """All candidates."""
    return [{MICRO: micro, STAGE: stage} for micro, stage in itertools.product(MICROS, STAGES)]


def _hpcrun(root: Path, *arguments: str) -> str:
    argv = [sys.executable, "-m", "hpcrun", *arguments, "--root", str(root)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=root)
    if done.returncode:
        sys.exit(f"{' '.join(argv)}\n{done.stderr}")
    return done.stdout


def tune(root: Path) -> dict[str, Any]:
    """Time `hpcrun tune`, as it is typed."""
    keys = (f"{MICRO}={','.join(MICROS)}", f"{STAGE}={','.join(STAGES)}")
    asked = [word for key in keys for word in ("--space", key)]
    began = time.perf_counter()
    data = json.loads(_hpcrun(root, "tune", SPEC, *ALWAYS, *asked, "--json"))
    seconds = time.perf_counter() - began
    steps = trial_log.read(experiment(root, f"{SPEC}-tune").run(0).trials)
    tried = [one for one in data["candidates"] if one["steps"]]
    return {
        "seconds": seconds,
        "best": data["best"]["values"],
        "step_seconds": data["best"]["step_seconds"],
        "measured": len(tried),
        "steps": sum(len(one.steps) for one in steps),
        "candidates": data["candidates"],
    }


def train(root: Path, values: Values, steps: int) -> list[float]:
    """Train with one candidate; return the seconds of its steps but the first ones."""
    typed = [f"{key}={value}" for key, value in values.items()]
    name = "trained"
    _hpcrun(root, "run", SPEC, *ALWAYS, *typed, f"config.total_steps={steps}", f"name={name}",
            "checkpoint.every=null", "--new", "-q")  # fmt: skip
    run = experiment(root, name).run(max(experiment(root, name).run_numbers()))
    lines = files.read_lines(run.attempt(1).metrics)
    found = [float(one["step_seconds"]) for one in lines if "step_seconds" in one]
    return found[_WARM_UP:]


def each(root: Path, steps: int) -> dict[str, Any]:
    """Run every candidate by itself."""
    began = time.perf_counter()
    found = []
    for values in space():
        times = train(root, values, steps)
        found.append({"values": values, "step_seconds": statistics.median(times)})
        print(f"  {trial_candidates.label(values)}: {found[-1]['step_seconds']:.4f}", flush=True)
    return _result(began, found)


def in_one_run(root: Path, steps: int) -> dict[str, Any]:
    """Try every candidate with the same steps, in one run of trials."""
    began = time.perf_counter()
    base = compile_spec(SPEC, ALWAYS, root=root)
    points = trial_candidates.compiled(SPEC, ALWAYS, space(), root, base)
    kept = [one for one in points if one.pruned is None]
    candidates = tuple(one.candidate for one in kept)
    plan = TrialPlan(candidates, screen_steps=steps, slower=1e9, finalists=0)
    run = trial_run.with_trials(base.runs[0], plan, "all")
    compiled = dataclasses.replace(base, name=f"{SPEC}-all", runs=(run,))
    done = trial_run.bring_to_end(compiled, [], lambda message: None, lambda place, record: None)
    scores = trial_log.scores(done.records[0], len(kept))
    found = [
        {"values": one.values, "step_seconds": score.step_seconds}
        for one, score in zip(kept, scores, strict=True)
    ]
    return _result(began, found)


def _result(began: float, found: list[dict[str, Any]]) -> dict[str, Any]:
    best = min(found, key=lambda one: one["step_seconds"])
    return {
        "seconds": time.perf_counter() - began,
        "best": best["values"],
        "step_seconds": best["step_seconds"],
        "candidates": found,
    }


def confirm(root: Path, choices: Sequence[Values], steps: int, rounds: int) -> list[float]:
    """Train with each choice in turn, back and forth; return the median step of each."""
    unique = list(dict.fromkeys(tuple(sorted(one.items())) for one in choices))
    times: dict[tuple[tuple[str, str], ...], list[float]] = {one: [] for one in unique}
    for number in range(rounds):
        for one in unique if number % 2 == 0 else reversed(unique):
            times[one] += train(root, dict(one), steps)
    return [statistics.median(times[tuple(sorted(one.items()))]) for one in choices]


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.tune", description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        found = {"tune": tune(root)}
        print(f"tune: {found['tune']['seconds']:.1f} s", flush=True)
        found["in one run"] = in_one_run(root, arguments.steps)
        print(f"in one run: {found['in one run']['seconds']:.1f} s", flush=True)
        found["each"] = each(root, arguments.steps)
        print(f"each: {found['each']['seconds']:.1f} s", flush=True)
        choices = [one["best"] for one in found.values()]
        medians = confirm(root, choices, 2 * arguments.steps, arguments.rounds)
    for one, median in zip(found.values(), medians, strict=True):
        one["trained_step_seconds"] = median
    result = {
        "candidates": len(space()),
        "steps": arguments.steps,
        "rounds": arguments.rounds,
        "cores": os.cpu_count(),
        "load": {"before": load, "after": os.getloadavg()[0]},
        "share_of_each": found["tune"]["seconds"] / found["each"]["seconds"],
        "share_of_one_run": found["tune"]["seconds"] / found["in one run"]["seconds"],
        "found": found,
    }
    lines = [f"{'':12}{'seconds':>9}  {'step, trained':>14}  choice"]
    for name, one in found.items():
        told = trial_candidates.label(one["best"])
        lines.append(
            f"{name:12}{one['seconds']:9.1f}  {one['trained_step_seconds']:12.4f} s  {told}"
        )
    lines.append(
        f"tune took {result['share_of_each']:.0%} of each by itself, "
        f"{result['share_of_one_run']:.0%} of all in one run"
    )
    print("\n".join(lines))
    if arguments.output:
        arguments.output.mkdir(parents=True, exist_ok=True)
        (arguments.output / "tune.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
