"""The model of `trials`: a causal transformer that is divided along every axis."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import hpcrun

WIDTH, HEADS, WORDS, EXPERTS = 8, 4, 16, 4


def build(*, experts: bool = False) -> Any:
    """The layers in order; the last is tied to the first."""
    embedding = nn.Embedding(WORDS, WIDTH)
    blocks = [Block(experts=experts) for _ in range(2)]
    return nn.Sequential(embedding, *blocks, nn.LayerNorm(WIDTH), Unembed(embedding))


def loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean over all labels."""
    return functional.cross_entropy(outputs.flatten(0, 1).float(), labels.flatten())


def text(numbers: Iterable[int], length: int) -> torch.Tensor:
    """Samples by number, (numbers, length + 1): one half repeats a word, the other is drawn, so
    that parts of a sequence have gradients of their own."""
    rows = []
    for number in numbers:
        draw = torch.Generator().manual_seed(number)
        row = torch.randint(0, WORDS, (length + 1,), generator=draw)
        row[1 : length // 2] = row[0]
        rows.append(row)
    return torch.stack(rows)


def attend(query: Any, key: Any, value: Any) -> Any:
    """Causal attention, all (batch, sequence, heads, head size)."""
    query, key, value = (each.transpose(1, 2) for each in (query, key, value))
    found = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    return found.transpose(1, 2).contiguous()


class Block(nn.Module):
    """Attention, and two linear layers or experts."""

    tensor_parallel_plan = {  # noqa: RUF012
        **dict.fromkeys(("query", "key", "value", "expand"), "colwise"),
        **dict.fromkeys(("out", "contract"), "rowwise"),
    }

    def __init__(self, *, experts: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.expand, self.contract = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.moe: Any = None
        if experts:
            self.moe = hpcrun.expert_layer(
                WIDTH, _expert, EXPERTS, drop_tokens=False, use_rts=False
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        normed = self.norm(x)
        heads = (
            layer(normed).view(batch, length, -1, WIDTH // HEADS)
            for layer in (self.query, self.key, self.value)
        )
        x = x + self.out(hpcrun.ulysses_attention(attend, *heads).reshape(batch, length, -1))
        x = x + self.contract(functional.gelu(self.expand(x)))
        return x if self.moe is None else x + self.moe(x)[0]


class Unembed(nn.Module):
    """Outputs by the weights of an embedding, which it has as a child."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.embedding = embedding

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.embedding.weight)


def with_loss(model: nn.Module) -> nn.Module:
    """A module that returns the loss; as such DeepSpeed finds its experts."""
    return _WithLoss(model)


class _WithLoss(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return loss(self.model(inputs), labels)


def _expert() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
