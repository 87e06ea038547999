"""Train a byte-level, decoder-only transformer on the Python standard library's own sources.

The example to copy: a function that takes a session. Everything that hpcrun needs of a training
program is in `train`; the rest is an ordinary PyTorch model.
"""

from __future__ import annotations

import hashlib
import sysconfig
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    import hpcrun

VOCABULARY = 256


class Block(nn.Module):
    """Pre-norm self-attention and a feed-forward layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width, bias=False)
        self.project = nn.Linear(width, width, bias=False)
        self.norm_forward = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, context, width) -> the same shape."""
        batch, context, width = x.shape
        mixed = self.queries_keys_values(self.norm_attention(x))
        queries, keys, values = (
            part.view(batch, context, self.heads, -1).transpose(1, 2)
            for part in mixed.split(width, dim=2)
        )
        attended = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).reshape(batch, context, width))
        return x + self.contract(functional.gelu(self.expand(self.norm_forward(x))))


class LanguageModel(nn.Module):
    """Bytes in, mean cross-entropy of the next byte out."""

    def __init__(self, layers: int, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.apply(self._initialize)

    @staticmethod
    def _initialize(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, text: Tensor) -> Tensor:
        """(batch, context + 1) bytes as int64 -> scalar loss in nats per byte."""
        inputs, targets = text[:, :-1], text[:, 1:]
        positions = torch.arange(inputs.shape[1], device=text.device)
        x = self.tokens(inputs) + self.positions(positions)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.reshape(-1, VOCABULARY).float(), targets.reshape(-1))


def build_model(config: Any) -> LanguageModel:
    """Return the model of a configuration; `hpcrun estimate` counts it on the meta device."""
    return LanguageModel(**config.model)


def sample_batch(config: Any, micro_batch: int) -> Tensor:
    """Return what the model is called with, in shape: `hpcrun estimate` follows one step of it."""
    return torch.zeros((micro_batch, config.model.context + 1), dtype=torch.int64)


def read_text(limit: int) -> Tensor:
    """The standard library's modules, in the order of their paths, as a uint8 tensor."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= limit:
            break
    return torch.frombuffer(text, dtype=torch.uint8)[:limit]


def sample(text: Tensor, seed: int, indices: list[int], context: int) -> Tensor:
    """Windows of ``context + 1`` bytes; where each begins depends on (seed, index) alone."""
    windows = []
    for index in indices:
        digest = hashlib.blake2b(f"{seed},{index}".encode(), digest_size=8).digest()
        start = int.from_bytes(digest, "little") % (len(text) - context)
        windows.append(text[start : start + context + 1])
    return torch.stack(windows).long()


@torch.no_grad()
def evaluate(engine: Any, text: Tensor, context: int, batches: int, batch: int) -> Tensor:
    """Mean loss over fixed windows of held-out text, the same on every rank."""
    engine.eval()
    losses = [
        engine(sample(text, 0, list(range(k * batch, (k + 1) * batch)), context).to(engine.device))
        for k in range(batches)
    ]
    engine.train()
    return torch.stack(losses).mean()


def train(session: hpcrun.Session) -> None:
    """Train to ``config.total_steps``; the configuration is configs/experiments/language-model."""
    config = session.config
    context = config.model.context
    text = read_text(config.data_bytes)
    training, held_out = text[: -len(text) // 20], text[-len(text) // 20 :]

    torch.manual_seed(session.seed)
    model = build_model(config)
    engine, _, _, scheduler = session.initialize(
        model=model, model_parameters=list(model.parameters())
    )
    session.restore(engine)
    tokens = session.deepspeed_config["train_batch_size"] * context

    for step in session.steps(total=config.total_steps):
        began = time.perf_counter()
        losses = []
        for indices in session.micro_batches(step):
            loss = engine(sample(training, session.seed, indices, context).to(engine.device))
            engine.backward(loss)
            engine.step()
            losses.append(loss.detach())
        seconds = time.perf_counter() - began
        if session.rank == 0 and step % 10 == 0:
            print(f"step {step}/{config.total_steps}: loss {losses[-1].item():.3f}", flush=True)
        session.log(
            {
                "loss": torch.stack(losses).mean(),
                "lr": scheduler.get_last_lr()[0],
                "tokens": step * tokens,
                "tokens_per_second": tokens / seconds,
            },
            step=step,
        )
        if config.evaluate_every and step % config.evaluate_every == 0:
            loss = evaluate(engine, held_out, context, batches=4, batch=8)
            session.log({"eval/loss": loss}, step=step)
