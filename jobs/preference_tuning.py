"""Tune a model to prefer one of two answers (DPO), with low-rank adapters on a frozen base.

A prompt is the beginning of a window of torch's C++ headers; preferred is how it goes on, rejected
how another window does. Put your own pairs in `Pairs`. The reference of DPO (Rafailov et al. 2023,
arXiv:2305.18290) is the base, which is the model without its adapters: no second copy is held.
Base, adapters and export are those of lora_fine_tuning.py, which this needs beside it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from lora_fine_tuning import LoRALinear, Windows, build_model, read_base, read_headers
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    import hpcrun

__all__ = ["build_model", "train"]


class Pairs(torch.utils.data.Dataset):
    """Two windows of one prompt, the preferred one first: (2, prompt + answer)."""

    def __init__(self, text: Tensor, prompt: int, answer: int) -> None:
        self.windows, self.prompt = Windows(text, prompt + answer), prompt

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> Tensor:
        preferred = self.windows[index][0]
        other = self.windows[(index * 7 + len(self) // 2) % len(self)][0]
        rejected = torch.cat([preferred[: self.prompt], other[self.prompt :]])
        return torch.stack([preferred, rejected])


def sample_batch(config: Any, micro_batch: int) -> Tensor:
    """Return what the model is called with, in shape: `hpcrun estimate` follows one step of it."""
    return torch.zeros((2 * micro_batch, config.prompt + config.answer - 1), dtype=torch.int64)


def answer_scores(model: Any, pairs: Tensor, prompt: int) -> Tensor:
    """Return the log probability of each answer: (pairs, 2, bytes) -> (pairs, 2), in nats."""
    texts = pairs.flatten(0, 1)
    logits = model(texts[:, :-1])[:, prompt - 1 :].float()
    targets = texts[:, prompt:]
    of_bytes = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return -of_bytes.view(targets.shape).sum(1).view(pairs.shape[:2])


@contextlib.contextmanager
def reference(model: nn.Module) -> Iterator[None]:
    """Have the model be its base for the length of a block: adapters add nothing."""
    scales = [one.scale for one in model.modules() if isinstance(one, LoRALinear)]
    kept = [one.clone() for one in scales]
    try:
        for one in scales:
            one.zero_()
        with torch.no_grad():
            yield
    finally:
        for one, before in zip(scales, kept, strict=True):
            one.copy_(before)


def margins(engine: Any, pairs: Tensor, config: Any) -> Tensor:
    """Return by how much more than the base the model prefers the preferred answers: (pairs,)."""
    with reference(engine.module):
        before = answer_scores(engine, pairs, config.prompt)
    gained = answer_scores(engine, pairs, config.prompt) - before
    return config.beta * (gained[:, 0] - gained[:, 1])


@torch.no_grad()
def evaluate(session: hpcrun.Session, engine: Any, pairs: Pairs, config: Any) -> dict[str, float]:
    """Return DPO's loss on the first pairs, and the share of them with a margin above 0."""
    engine.eval()
    found: list[float] = []
    count = min(config.evaluate_pairs, len(pairs))
    together = torch.stack([pairs[index] for index in range(count)])
    for indices in session.shard(count, batch=16):
        found += margins(engine, together[indices].to(engine.device), config).tolist()
    engine.train()
    losses = [functional.softplus(torch.tensor(-one)).item() for one in found]
    right = [float(one > 0) for one in found]
    totals = session.total({"loss": losses, "right": right})
    return {"eval/loss": totals["loss"] / count, "eval/accuracy": totals["right"] / count}


def train(session: hpcrun.Session) -> None:
    """Train to ``config.total_steps``; see configs/experiments/preference-tuning.yaml."""
    config = session.config
    training, held_out = (Pairs(text, config.prompt, config.answer) for text in read_headers())
    torch.manual_seed(session.seed)
    model = build_model(config)
    read_base(model, config.base)
    trained = [one for one in model.parameters() if one.requires_grad]
    engine, *_ = session.initialize(model=model, model_parameters=trained)
    session.restore(engine)
    loader = session.loader(training, num_workers=config.num_workers)

    for step in session.steps(total=config.total_steps):
        losses, right = [], []
        for pairs in loader(step):
            margin = margins(engine, pairs, config)
            loss = -functional.logsigmoid(margin).mean()
            engine.backward(loss)
            engine.step()
            losses.append(loss.detach())
            right.append((margin.detach() > 0).float().mean())
        values = {"loss": torch.stack(losses).mean(), "accuracy": torch.stack(right).mean()}
        session.log(values, step=step)
        if step % config.evaluate_every == 0:
            scores = evaluate(session, engine, held_out, config)
            session.log(scores, step=step)
            if session.rank == 0:
                told = ", ".join(f"{name} {value:.4f}" for name, value in scores.items())
                print(f"step {step}/{config.total_steps}: {told}", flush=True)
