"""Measures what forward and backward of a divided model hold: ranks of `bench.estimate_divided`.

    RANK=0 WORLD_SIZE=2 … python -m bench.held_divided CASES.json ANSWER.json

All tensors that operators make on a rank are counted while they live, beside its parameters and
gradients. Also used by tests/tools/estimate.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import torch
from deepspeed.runtime.pipe import schedule
from torch.utils.checkpoint import checkpoint

from bench.held_bytes import answer
from hpcrun.run.parallel import engine_setup
from hpcrun.run.parallel.rank_layout import RankLayout
from hpcrun.tools.estimate.step_follower import follower
from jobs.causal_language_model import BYTES, Block, build_layers, cross_entropy


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Return the most bytes of forward and backward, and the elements of the parameters."""
    config, parallel = case["deepspeed"], case["parallel"]
    torch.manual_seed(0)
    model = build_layers(**case["shape"], vocabulary=BYTES)
    if case["checkpointing"] and "pipeline" not in parallel:
        for block in model:
            if isinstance(block, Block):
                block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    arguments = {"config": config, "model_parameters": list(model.parameters())}
    layout = RankLayout(parallel, torch.distributed.get_world_size())
    engine, *_ = engine_setup.initialize(model, cross_entropy, arguments, layout)
    own = list(engine.module.parameters())
    for one in own:
        one.grad = torch.zeros_like(one)
    kept = [*own, *(one.grad for one in own), *engine.module.buffers()]
    text = torch.randint(0, BYTES, (config["train_micro_batch_size_per_gpu"], case["context"] + 1))
    batch = text[:, :-1].contiguous(), text[:, 1:].contiguous()
    mode = follower(torch, [*kept, *batch])
    with mode:
        if "pipeline" in parallel:
            # The optimizer's part is left out.
            last = (schedule.ReduceGrads, schedule.ReduceTiedGrads, schedule.OptimizerStep)
            nothing = dict.fromkeys(last, lambda _engine, **_more: None)
            engine._INSTRUCTION_MAP = {**engine._INSTRUCTION_MAP, **nothing}
            for _ in range(2):
                engine.train_batch(data_iter=itertools.repeat(batch))
        else:
            loss = engine(*batch)
            engine.backward(loss)
            del loss
    return {
        "activations": max(sum(one) for one in mode.peaks),
        "parameters": sum(one.numel() for one in own),
    }


if __name__ == "__main__":
    answer(measure)
