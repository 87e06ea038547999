"""Compares what `hpcrun estimate` says of a divided model with what each of its ranks holds.

    python -m bench.estimate_divided [--output bench/results] [--json]

`jobs/causal_language_model.py` in tensor groups and pipelines of 2 and 4 ranks on the CPU (gloo),
without and with activation checkpointing: elements of each rank's parameters, and the most that
operators allocated in forward and backward. ``even parts`` is a step of the whole model, divided.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.estimate import apart, launch
from bench.publish import add_options, circumstances, publish
from hpcrun.tools.estimate import memory_formulas, training_setup
from hpcrun.tools.estimate.model_facts import ModelFacts, of_answer
from hpcrun.tools.estimate.model_source import count_model

FILE = Path(__file__).parent.parent / "jobs" / "causal_language_model.py"
WITHIN = 0.1
# Worlds of ranks.
RANKS = (2, 4)


def cases(ranks: int) -> list[dict[str, Any]]:
    """Return models that so many ranks divide between them, without and with checkpointing."""
    layouts: list[dict[str, int]] = [{"tensor": ranks}, {"pipeline": ranks}]
    if ranks == 4:
        layouts.append({"pipeline": 2, "tensor": 2})
    return [
        case(parallel, checkpointing=checkpointing)
        for parallel in layouts
        for checkpointing in (False, True)
    ]


def case(parallel: dict[str, int], *, checkpointing: bool, **more: Any) -> dict[str, Any]:
    """Return one case of `bench.held_divided`."""
    axes = " x ".join(f"{axis} {size}" for axis, size in parallel.items())
    return {
        "name": axes + ", checkpointing" * checkpointing,
        "parallel": parallel,
        "checkpointing": checkpointing,
        "shape": {"layers": 8, "width": 128, "heads": 8},
        "context": 128,
        "deepspeed": {
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": 4,
            "gradient_clipping": 0.0,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
            "pipeline": {
                "activation_checkpoint_interval": int(checkpointing),
                # DeepSpeed's default asks a first stage of tokens for their gradient.
                "use_reentrant": False,
            },
        },
        **more,
    }


def compare(one: dict[str, Any], answers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return predicted and measured parameters and activations of each rank."""
    size = {"tensor": 1, "pipeline": 1, **one["parallel"]}
    setup = training_setup.read(
        one["deepspeed"],
        len(answers),
        size["tensor"] * size["pipeline"],
        tensor=size["tensor"],
        stages=size["pipeline"],
        checkpointing=one["checkpointing"],
    )
    undivided, model = (
        _counted(json.dumps([one["shape"], one["context"]]), stages) for stages in (1, setup.stages)
    )
    alone = replace(setup, model_ranks=1, tensor=1, stages=1)
    found = []
    for rank, each in enumerate(answers):
        held = each[one["name"]]
        if "error" in held:
            return [{"name": one["name"], "rank": rank, "error": held["error"]}]
        part, own = memory_formulas.parts(model, setup)[rank // setup.tensor]
        predicted = {
            "parameters": memory_formulas.share(part, own).whole,
            "activations": memory_formulas.activation_bytes(part, own) or 0,
        }
        even = (memory_formulas.activation_bytes(undivided, alone) or 0) / setup.model_ranks
        found.append(
            {
                "name": one["name"],
                "rank": rank,
                "predicted": predicted,
                "measured": held,
                "even_parts": even,
                "apart": {kind: apart(predicted[kind], held[kind]) for kind in predicted},
            }
        )
    return found


def lines(found: Sequence[dict[str, Any]]) -> list[str]:
    told = ["each rank's parameters, and its forward and backward:"]
    for one in found:
        if "error" in one:
            told.append(f"{one['name']} failed: {one['error'].strip().splitlines()[-1][:90]}")
            continue
        said, held, off = one["predicted"], one["measured"], one["apart"]
        told.append(
            f"  {one['name']:36} rank {one['rank']}  parameters {said['parameters']:>9,} "
            f"({100 * off['parameters']:+.1f} %)  predicted {said['activations'] / 1e6:6.2f} MB, "
            f"measured {held['activations'] / 1e6:6.2f} MB ({100 * off['activations']:+.1f} %); "
            f"even parts would be {one['even_parts'] / 1e6:.2f} MB"
        )
    good = sum("error" not in one and abs(one["apart"]["activations"]) <= WITHIN for one in found)
    return [*told, f"  {good} of {len(found)} ranks are within 10 %"]


@functools.cache
def _counted(shape: str, stages: int) -> ModelFacts:
    model, context = json.loads(shape)
    question: dict[str, Any] = {"module": FILE.stem, "file": str(FILE)}
    question["config"] = {"model": model, "context": context}
    if stages > 1:
        question["pipeline"] = {"stages": stages, "partition": "best", "interval": 1}
    return of_answer(count_model([sys.executable], question, precision="fp32"), {})


def main() -> None:
    """Measure, compare and publish."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add_options(parser, "estimate_divided")
    options = parser.parse_args()
    variables = {"DS_ACCELERATOR": "cpu", "GLOO_SOCKET_IFNAME": "lo"}
    found: list[dict[str, Any]] = []
    for ranks in RANKS:
        these = cases(ranks)
        with tempfile.TemporaryDirectory() as directory:
            answers = launch(
                these, ranks, Path(directory), module="bench.held_divided", **variables
            )
        found += [each for one in these for each in compare(one, answers)]
    setting = circumstances(compared=len(found))
    publish(options, "estimate_divided", setting, lines(found), ranks=found)


if __name__ == "__main__":
    main()
