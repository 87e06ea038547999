"""Check what `hpcrun profile` measures of four models: parts, operations, and its own cost.

    python -m bench.profile [--rounds 3] [--steps 10] [--output bench/results]

The shipped specs, each on two ranks of this machine's processors. Compared are

parts       a profiled step by the program's clock, with the sum of its parts from the trace
operations  those counted in a step, with the formula of the model (`FORMULAS`)
cost        a profiled step with one that is not, both of the same run

A round profiles each model once. Of the parts the largest error of any rank and round is told, of
the cost the median of all ranks and rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.publish import add_options, circumstances, publish
from hpcrun.compile import compile_spec

RANKS = 2
ALWAYS = ("cluster=local", f"resources.ntasks_per_node={RANKS}")
# The most that parts may miss the step by, and counts the formula.
OF_STEP, OF_FORMULA = 0.05, 0.03
# Sides of an image in scikit-learn's digits, and its classes.
_SIDE, _CLASSES = 8, 10

TRANSFORMER = "samples · context · (6 · N + 14 · layers · width · context)"
FORMULAS = {
    "language-model": (TRANSFORMER, "N = layers · 12 · width² + width · 256"),
    "causal-language-model": (TRANSFORMER, "N = layers · 12 · width² + width · 256"),
    "masked-language-model": (TRANSFORMER, "N = layers · 12 · width² + width · 257"),
    "image-classification": (
        "samples · sum over layers of 6 · in · out · kernel² · places",
        "4 in place of 6 for the first layer, whose images need no gradient",
    ),
}


def _transformer(config: Any, samples: int, vocabulary: int) -> float:
    """Return the operations of a step: 2 forward and 4 backward a weight and token, and attention.

    Queries by keys, and weights by values, are 2 · width · context each a token. Backward are five
    such products, as the kernel computes the weights again: 4 + 10. No mask is regarded.
    """
    model = config["model"]
    layers, width = model["layers"], model["width"]
    context = config.get("context") or model["context"]
    weights = layers * 12 * width**2 + width * vocabulary
    return float(samples * context * (6 * weights + 14 * layers * width * context))


def _network(config: Any, samples: int) -> float:
    """Return the operations of a step of the residual network: each layer's, added up."""
    width, small = config["model"]["width"], _SIDE // 2
    # Inputs, outputs, side of the kernel, places of the output.
    layers = [
        *[(width, width, 3, _SIDE**2)] * 2,
        (width, width, 1, _SIDE**2),
        (width, 2 * width, 3, small**2),
        (2 * width, 2 * width, 3, small**2),
        (width, 2 * width, 1, small**2),
        (2 * width, _CLASSES, 1, 1),
    ]
    products = sum(before * after * side**2 * places for before, after, side, places in layers)
    return float(samples * (6 * products + 4 * width * 3**2 * _SIDE**2))


OPERATIONS: dict[str, Callable[[Any, int], float]] = {
    "language-model": lambda config, samples: _transformer(config, samples, 256),
    "causal-language-model": lambda config, samples: _transformer(config, samples, 256),
    "masked-language-model": lambda config, samples: _transformer(config, samples, 257),
    "image-classification": _network,
}


def profiled(name: str, root: Path, steps: int) -> dict[str, Any]:
    """Return what `hpcrun profile` measures of a shipped spec."""
    argv = [sys.executable, "-m", "hpcrun", "profile", name, *ALWAYS, "--steps", str(steps)]
    argv += ["--json", "--root", str(root)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=root)
    if done.returncode:
        sys.exit(f"{' '.join(argv)}\n{done.stderr}")
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def summary(name: str, rounds: list[dict[str, Any]], root: Path) -> dict[str, Any]:
    """Return one model's comparison over all rounds."""
    (run,) = compile_spec(name, ALWAYS, root=root).runs
    formula = OPERATIONS[name](run.config, int(run.deepspeed["train_batch_size"]))
    ranks = [rank for one in rounds for rank in one["ranks"]]
    errors = [sum(one["parts"].values()) / one["step"] - 1 for one in ranks]
    costs = [one["step"] / one["bare"] - 1 for one in ranks]
    counted = {one["flops"] for one in rounds}
    return {
        "model": name,
        "step_seconds": statistics.median(one["bare"] for one in ranks),
        "profiled_step_seconds": statistics.median(one["step"] for one in ranks),
        "parts_seconds": {
            part: statistics.median(one["parts"][part] for one in ranks)
            for part in ranks[0]["parts"]
        },
        "parts_error": max(errors, key=abs),
        "cost": statistics.median(costs),
        "costs": [min(costs), max(costs)],
        "operations": sorted(counted),
        "formula": formula,
        "formula_error": max((one / formula - 1 for one in counted), key=abs),
        "formula_words": FORMULAS[name],
        "problems": sorted({problem for one in ranks for problem in one["problems"]}),
    }


def table(found: list[dict[str, Any]]) -> list[str]:
    """Return the lines for a person."""
    head = ("step", "profiled", "parts off", "operations", "formula off", "profiling costs")
    lines = [f"{'':23}" + "".join(f"{one:>18}" for one in head)]
    for one in found:
        costs = f"{one['cost']:+.0%} ({one['costs'][0]:+.0%} to {one['costs'][1]:+.0%})"
        cells = (
            f"{1000 * one['step_seconds']:.1f} ms",
            f"{1000 * one['profiled_step_seconds']:.1f} ms",
            f"{one['parts_error']:+.2%}",
            f"{one['operations'][-1] / 1e6:,.1f} M",
            f"{one['formula_error']:+.2%}",
        )
        lines.append(f"{one['model']:23}" + "".join(f"{cell:>18}" for cell in cells) + f"  {costs}")
    lines += ["", "formulas:"]
    for one in found:
        lines.append(f"  {one['model']}: {'; '.join(one['formula_words'])}")
    lines.append("")
    for one in found:
        good = abs(one["parts_error"]) <= OF_STEP and abs(one["formula_error"]) <= OF_FORMULA
        lines.append(f"{one['model']}: {'met' if good else 'MISSED'}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.profile", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10, help="profiled, and as many timed before")
    add_options(parser, "profile")
    options = parser.parse_args()
    before = os.getloadavg()[0]
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in OPERATIONS}
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        for number in range(options.rounds):
            for name, done in rounds.items():
                print(f"round {number + 1}: {name}", file=sys.stderr, flush=True)
                done.append(profiled(name, root, options.steps))
        found = [summary(name, done, root) for name, done in rounds.items()]
    setting = circumstances(
        ranks=RANKS,
        rounds=options.rounds,
        steps=options.steps,
        load=f"{before:.1f} before, {os.getloadavg()[0]:.1f} after",
        target=f"parts within {OF_STEP:.0%} of the step, operations within {OF_FORMULA:.0%}",
    )
    publish(options, "profile", setting, table(found), models=found)


if __name__ == "__main__":
    main()
