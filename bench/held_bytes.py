"""What each rank of real DeepSpeed engines holds, measured: the ranks of `bench.estimate`.

    RANK=0 WORLD_SIZE=2 … python -m bench.held_bytes CASES.json ANSWER.json

All tensors of the process are counted once, by their storage, and told apart by who holds them.
Also used by tests/tools/estimate, with small models.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import deepspeed
import torch

from jobs.language_model import LanguageModel

# Where DeepSpeed's optimizers hold gradients and master weights, by attribute.
GRADIENTS = (
    *("averaged_gradients", "all_grad_tensors", "fp32_groups_gradients_flat"),
    *("accumulated_grads_in_cpu", "grad_partitions_flat_buffer", "offload_gradient_dict"),
)
MASTERS = (
    *("fp32_partitioned_groups_flat", "fp32_groups_flat", "fp32_groups"),
    *("single_partition_of_fp32_groups", "fp32_groups_flat_partition"),
)


def make_model(shape: dict[str, int], frozen: int = 0, tied: bool = False) -> LanguageModel:
    """Return a language model whose first blocks may be frozen, and its embedding tied."""
    model = LanguageModel(**shape)
    for block in list(model.blocks)[:frozen]:
        block.requires_grad_(False)
    if tied:
        model.head.weight = model.tokens.weight
    return model


def _tensors(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif depth < 5 and isinstance(value, dict):
        for one in value.values():
            yield from _tensors(one, depth + 1)
    elif depth < 5 and isinstance(value, (list, tuple, set)):
        for one in value:
            yield from _tensors(one, depth + 1)


def _storage(tensor: torch.Tensor) -> tuple[int, int]:
    """Address and bytes; 0 bytes of a tensor that has no memory of its own."""
    with contextlib.suppress(Exception):
        if tensor.device.type != "meta":
            found = tensor.untyped_storage()
            return found.data_ptr(), found.nbytes()
    return 0, 0


def _all_tensors() -> list[torch.Tensor]:
    gc.collect()
    # By its type: lazy modules import themselves where `isinstance` asks them for their class.
    return [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor)]


class Counter:
    """Counts what an engine holds, but for what was there before it."""

    def __init__(self, everything: bool = True) -> None:
        self._everything = everything
        self._before = {_storage(one)[0] for one in (_all_tensors() if everything else ())}

    def count(self, engine: Any) -> dict[str, int]:
        """Return bytes of parameters, gradients, the optimizer, and all else."""
        wrapper = engine.optimizer
        inner = getattr(wrapper, "optimizer", wrapper)
        own = list(engine.module.parameters())
        ids = {id(one) for one in own}
        taken = set(self._before)

        def take(tensors: Any) -> int:
            total = 0
            for one in tensors:
                address, count = _storage(one) if one is not None else (0, 0)
                if count and address not in taken:
                    taken.add(address)
                    total += count
            return total

        masters = [one for group in inner.param_groups for one in group["params"]]
        masters += [one for name in MASTERS for one in _tensors(getattr(wrapper, name, None))]
        masters = [one for one in masters if id(one) not in ids]
        gradients = [getattr(one, name, None) for one in own for name in ("grad", "grad_accum")]
        gradients += [one for name in GRADIENTS for one in _tensors(getattr(wrapper, name, None))]
        gradients += [one.grad for one in masters]
        parts = [getattr(one, "ds_tensor", None) for one in own]
        return {
            "parameters": take([*(one.data for one in own), *parts]),
            "gradients": take(gradients),
            "optimizer": take([*masters, *_tensors(list(inner.state.values()), -1)]),
            "other": take(_all_tensors() if self._everything else ()),
        }


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Train two steps, and return the most that was held of each kind, and when."""
    counter = Counter(case.get("everything", True))
    torch.manual_seed(0)
    model = make_model(case["shape"], case.get("frozen", 0), case.get("tied", False))
    learning = [one for one in model.parameters() if one.requires_grad]
    sizes = [one.numel() for one in learning]
    frozen = [one.numel() for one in model.parameters() if not one.requires_grad]
    config = case["deepspeed"]
    engine, *_ = deepspeed.initialize(model=model, model_parameters=learning, config=config)
    micro, context = config["train_micro_batch_size_per_gpu"], case["shape"]["context"]
    text = torch.randint(0, 256, (micro, context + 1), device=engine.device)
    inner = getattr(engine.optimizer, "optimizer", engine.optimizer)
    inside: list[dict[str, int]] = []
    seen: list[dict[str, int]] = []
    step = inner.step

    def stepping(*args: Any, **kwargs: Any) -> Any:
        inside.append(counter.count(engine))
        return step(*args, **kwargs)

    inner.step = stepping
    steps = config.get("gradient_accumulation_steps", 1)
    for _ in range(2):
        for _ in range(steps):
            loss = engine(text)
            engine.backward(loss)
            del loss
            seen.append(counter.count(engine))
            engine.step()
    inner.step = step
    tagged = [one.numel() for one in learning if getattr(one, "use_muon", False)]
    after = counter.count(engine)
    found: dict[str, Any] = {
        "sizes": sizes,
        "frozen_sizes": frozen,
        "muon": sum(tagged),
        "parameters": max(one["parameters"] for one in seen),
        # The states are there from the first step on.
        "optimizer": after["optimizer"],
        "gradients": max(one["gradients"] for one in seen),
        "other": max(one["other"] for one in seen),
        "stepping": max((one["gradients"] for one in inside), default=0),
        "wrapper": type(engine.optimizer).__name__,
    }
    if case.get("save"):
        found["checkpoint"] = _saved(engine)
    engine.destroy()
    return found


def _saved(engine: Any) -> int:
    """Return the bytes of a checkpoint of all ranks."""
    names = [tempfile.mkdtemp() if deepspeed.comm.get_rank() == 0 else None]
    torch.distributed.broadcast_object_list(names, src=0)
    directory = Path(str(names[0]))
    engine.save_checkpoint(str(directory), tag="t")
    deepspeed.comm.barrier()
    return sum(one.stat().st_size for one in (directory / "t").iterdir())


def answer(measure: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Measure all cases that are asked for, one after the other."""
    cases, told = Path(sys.argv[1]), Path(sys.argv[2])
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    deepspeed.init_distributed()
    found = {}
    for case in json.loads(cases.read_text()):
        try:
            found[case["name"]] = measure(case)
        except Exception:  # the others go on: all ranks fail alike
            found[case["name"]] = {"error": traceback.format_exc()[-1500:]}
        gc.collect()
    unfinished = told.with_suffix(".part")
    unfinished.write_text(json.dumps(found))
    os.replace(unfinished, told)


if __name__ == "__main__":
    answer(measure)
