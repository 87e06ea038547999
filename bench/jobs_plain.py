"""The peer of `bench.jobs`: a program of `jobs` in plain PyTorch, one process, the whole batch.

    python -m bench.jobs_plain PLAN.json

PLAN has ``program``, ``config`` and ``deepspeed`` of a compiled spec. Model, data and loss are the
program's own; optimizer, schedule, clipping, order of the samples, seeding and evaluation are
written here, with nothing of hpcrun and DeepSpeed. Prints JSON.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "jobs"))


class PlainTask(NamedTuple):
    """What a program gives: a model, samples to train on, a loss, and the held-out result."""

    model: nn.Module
    dataset: Any
    loss: Callable[[Tensor, Tensor], Tensor]
    evaluate: Callable[[nn.Module], dict[str, float]]


def masked_language_model(config: Any) -> PlainTask:
    """Return the BERT-style transformer and its text."""
    import masked_language_model as job

    training, held_out = job.read_text(config.data_bytes)
    windows = job.Windows(held_out, config.model.context)
    shown, wanted = job.masked_once(windows, config.evaluate_windows)

    def evaluate(model: nn.Module) -> dict[str, float]:
        scores = torch.cat([model(part) for part in shown.split(16)])
        right, count = (scores.argmax(2) == wanted).sum(), (wanted != job.IGNORED).sum()
        return {
            "accuracy": float(right / count),
            "loss": float(job.loss_of(scores.double(), wanted)),
        }

    torch.manual_seed(config.seed)
    return PlainTask(
        job.build_model(config),
        job.Windows(training, config.model.context),
        lambda scores, labels: job.loss_of(scores, labels, label_smoothing=config.label_smoothing),
        evaluate,
    )


def image_classification(config: Any) -> PlainTask:
    """Return the ResNet, with torch's own batch norm, and the digits."""
    import image_classification as job

    images, labels, *held_out = job.read_images()

    def evaluate(model: nn.Module) -> dict[str, float]:
        scores = model(held_out[0])
        return {
            "accuracy": float((scores.argmax(1) == held_out[1]).double().mean()),
            "loss": float(functional.cross_entropy(scores.double(), held_out[1])),
        }

    torch.manual_seed(config.seed)
    return PlainTask(
        job.build_model(config),
        job.Digits(images, labels),
        lambda scores, labels: functional.cross_entropy(
            scores, labels, label_smoothing=config.label_smoothing
        ),
        evaluate,
    )


OPTIMIZERS: dict[str, Any] = {"AdamW": torch.optim.AdamW, "SGD": torch.optim.SGD}
TASKS = {task.__name__: task for task in (masked_language_model, image_classification)}


def warmup_decay(step: int, warmup: int, total: int) -> float:
    """Return the part of the learning rate of ``step`` (from 1), as WarmupDecayLR has it.

    Its warm-up is logarithmic; the rate of the first two steps is 0.
    """
    done = step - 2
    if done < warmup:
        return math.log(max(1, done + 1)) / math.log(warmup)
    return (total - done) / (total - warmup)


def batches(dataset: Any, size: int, seed: int) -> Iterator[list[Tensor]]:
    """Yield batches without end, each epoch in another order."""
    loader = torch.utils.data.DataLoader(
        dataset, size, shuffle=True, drop_last=True, generator=torch.Generator().manual_seed(seed)
    )
    while True:
        yield from loader


def train(task: PlainTask, config: Any, deepspeed: Mapping[str, Any]) -> dict[str, Any]:
    """Train; return the loss of each step and what each evaluation found."""
    params = {k: v for k, v in deepspeed["optimizer"]["params"].items() if k != "torch_adam"}
    schedule = deepspeed["scheduler"]["params"]
    optimizer = OPTIMIZERS[deepspeed["optimizer"]["type"]](task.model.parameters(), **params)
    source = batches(task.dataset, deepspeed["train_batch_size"], config.seed)
    losses, found, began = [], {}, time.process_time()
    for step in range(1, config.total_steps + 1):
        part = warmup_decay(step, schedule["warmup_num_steps"], schedule["total_num_steps"])
        optimizer.param_groups[0]["lr"] = schedule["warmup_max_lr"] * part
        inputs, wanted = next(source)
        loss = task.loss(task.model(inputs), wanted)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(task.model.parameters(), deepspeed["gradient_clipping"])
        optimizer.step()
        losses.append(float(loss))
        if step % config.evaluate_every == 0:
            task.model.eval()
            with torch.no_grad():
                found[step] = task.evaluate(task.model)
            task.model.train()
    return {
        "loss": losses,
        "held_out": found,
        "processor_seconds": round(time.process_time() - began, 1),
    }


def main() -> None:
    torch.set_num_threads(1)
    plan = json.loads(Path(sys.argv[1]).read_text())
    # ``**config.model`` needs a mapping, and the programs read ``config.model.context``.
    config = SimpleNamespace(**plan["config"])
    config.model = _Fields(config.model)
    result = train(TASKS[plan["program"]](config), config, plan["deepspeed"])
    if strangers := {"hpcrun", "deepspeed"}.intersection(sys.modules):
        sys.exit(f"the peer has imported {' and '.join(sorted(strangers))}")
    print(json.dumps(result))


class _Fields(dict[str, Any]):
    """A mapping whose values are attributes, too."""

    __getattr__ = dict.__getitem__


if __name__ == "__main__":
    main()
