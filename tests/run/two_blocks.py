"""The model of `compiled_rank`, its samples, and what one process makes of them."""

from __future__ import annotations

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint as checkpointed

WIDTH, MICRO, RATE, CLIPPING = 8, 4, 0.02, 0.5


class Block(torch.nn.Module):
    """Two linear layers, which may recompute what is between them."""

    def __init__(self, dropout: float, recomputes: str) -> None:
        super().__init__()
        self.expand, self.contract = torch.nn.Linear(WIDTH, 16), torch.nn.Linear(16, WIDTH)
        self.dropout, self.recomputes = dropout, recomputes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.recomputes == "inside":
            return x + checkpointed(self._inner, x, use_reentrant=False)
        return x + self._inner(x)

    def _inner(self, x: torch.Tensor) -> torch.Tensor:
        hidden = functional.dropout(functional.gelu(self.expand(x)), self.dropout, self.training)
        found: torch.Tensor = self.contract(hidden)
        return found


class Blocks(torch.nn.Module):
    """Two blocks between linear layers."""

    def __init__(self, dropout: float = 0.0, recomputes: str = "") -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.blocks = torch.nn.ModuleList(Block(dropout, recomputes) for _ in range(2))
        self.recomputes = recomputes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        for block in self.blocks:
            if self.recomputes == "outside":
                hidden = checkpointed(block, hidden, use_reentrant=False)
            else:
                hidden = block(hidden)
        found: torch.Tensor = self.last(hidden)
        return found


def samples(step: int, accumulation: int) -> torch.Tensor:
    """The global batch of a step, (samples, width)."""
    draw = torch.Generator().manual_seed(step)
    return torch.randn(MICRO * 2 * accumulation, WIDTH, generator=draw)


def alone(steps: int, accumulation: int) -> list[float]:
    """The losses of one process that trains in fp32 without any of it."""
    torch.manual_seed(0)
    model, losses = Blocks(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    for step in range(steps):
        x = samples(step, accumulation)
        loss = (model(x) - x.flip(-1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIPPING)
        optimizer.step()
        losses.append(loss.item())
    return losses
