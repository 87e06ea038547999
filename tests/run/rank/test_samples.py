"""Batches that are left out have no step, and those after them move up."""

from __future__ import annotations

import pytest
import torch

from hpcrun.errors import HpcrunError
from hpcrun.policy.batch import Triple
from hpcrun.run.rank import samples
from hpcrun.run.rank.torch_engine import TorchEngine


@pytest.mark.parametrize(
    ("left_out", "wanted"),
    [
        ([], [1, 2, 3, 4, 5]),
        ([(8, 15)], [1, 3, 4, 5, 6]),
        ([(8, 15), (16, 23)], [1, 4, 5, 6, 7]),
        ([(0, 7), (16, 23)], [2, 4, 5, 6, 7]),
        # Of batches that had half the size, or twice it.
        ([(8, 11), (12, 15), (20, 23)], [1, 4, 5, 6, 7]),
        ([(0, 15)], [3, 4, 5, 6, 7]),
        ([(800, 807)], [1, 2, 3, 4, 5]),
    ],
)
def test_the_order_moves_up(left_out: list[tuple[int, int]], wanted: list[int]) -> None:
    assert [samples.batch_number(step, 8, left_out) for step in range(1, 6)] == wanted


def test_an_engine_that_was_told_no_batch_gives_none() -> None:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    with pytest.raises(HpcrunError, match="needs the batch sizes"):
        samples.batch_sizes({"gradient_clipping": 1.0}, TorchEngine(model, optimizer))
    engine = TorchEngine(model, optimizer, accumulation=2, train_batch=8)
    assert samples.batch_sizes({"gradient_clipping": 1.0}, engine) == Triple(8, 4, 2)
