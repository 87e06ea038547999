"""A small regression problem: what the four forms of an entry train."""

import time

import torch
from torch import nn


def build_model(width: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, width), nn.Tanh(), nn.Linear(width, 1))


def read(indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples by their global index."""
    rows = []
    for index in indices:
        generator = torch.Generator().manual_seed(index)
        rows.append(torch.randn(16, generator=generator))
    inputs = torch.stack(rows)
    return inputs, inputs.mean(dim=1, keepdim=True)


def pause(seconds: float) -> None:
    """Make a step long enough to be stopped in."""
    time.sleep(seconds)
