"""Each storage has one kind."""

from __future__ import annotations

import gc

import torch

from hpcrun.run.profile import memory_kinds
from hpcrun.run.profile.memory_kinds import MemoryCensus


def test_parameters_gradients_and_states_of_torchs_optimizer() -> None:
    # The census is of the process: what tests before have left in circles is gone.
    gc.collect()
    held = torch.zeros(500_000)
    model = torch.nn.Linear(256, 256)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(1, 256)).sum().backward()
        optimizer.step()
    census = MemoryCensus(optimizer, None, lambda storage: False)
    size = sum(one.nbytes for one in model.parameters())
    found = census.bytes_of
    assert found[memory_kinds.PARAMETERS] >= size
    assert found[memory_kinds.GRADIENTS] == size
    # Two moments, and the count of steps of each parameter.
    assert 2 * size <= found[memory_kinds.OPTIMIZER_STATE] <= 2 * size + 64
    assert found[memory_kinds.OTHER] >= held.nbytes
    without = MemoryCensus(optimizer, None, lambda storage: True)
    assert without.bytes_of[memory_kinds.OTHER] == 0
    assert sum(one.nbytes() for one in census.gradients) == size
