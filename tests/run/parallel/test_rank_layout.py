"""The places of ranks in a model that is divided between them."""

from __future__ import annotations

import pytest

from hpcrun.errors import UsageError
from hpcrun.run.parallel.rank_layout import RankLayout

EIGHT = RankLayout({"tensor": 2, "pipeline": 2, "sequence": 1, "data": "auto"}, 8)


def test_ranks_of_a_tensor_group_are_neighbours_and_stages_lie_apart() -> None:
    assert EIGHT.size == {"pipeline": 2, "data": 2, "sequence": 1, "tensor": 2}
    assert EIGHT.groups("tensor") == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert EIGHT.groups("pipeline") == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert EIGHT.groups("data") == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert EIGHT.groups("data", "sequence") == EIGHT.groups("data")
    assert EIGHT.groups("pipeline", "tensor") == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert [EIGHT.place(rank, "data") for rank in range(8)] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert EIGHT.divided == {"tensor": 2, "pipeline": 2}


def test_without_the_block_all_ranks_are_data_parallel() -> None:
    for block in ({}, {"tensor": None}, {"tensor": 1, "data": 4}):
        layout = RankLayout(block, 4)
        assert layout.divided == {}
        assert layout.groups("data") == [[0, 1, 2, 3]]
        assert [layout.place(rank, "data") for rank in range(4)] == [0, 1, 2, 3]


def test_ranks_that_a_copy_of_the_model_does_not_divide_are_refused() -> None:
    with pytest.raises(UsageError, match="4 ranks hold one copy of the model"):
        RankLayout({"tensor": 4}, 6)
