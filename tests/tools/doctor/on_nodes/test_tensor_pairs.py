"""Pairs of nodes in the tensor test: who is in which group, and who is slow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hpcrun.run.check_in import pairing
from hpcrun.tools.doctor.on_nodes import tensor_pairs

NODES = ["n1", "n2", "n3", "n4", "n5"]


def test_ranks_of_pairs() -> None:
    assert tensor_pairs.rounds(["n1", "n2"], 2) == [[[0, 1, 2, 3]]]
    rounds = tensor_pairs.rounds(["n1", "n2", "n3", "n4"], 8)
    assert [len(pairs) for pairs in rounds] == [2, 2, 2]
    for pairs in rounds:
        every = sorted(rank for ranks in pairs for rank in ranks)
        assert every == [*range(32)]
    assert tensor_pairs.rounds(["n1"], 8) == []


def _found(busbw: Callable[[tuple[str, str]], float]) -> list[tuple[list[str], float]]:
    """The findings where each rank of each node reports its pairs."""
    ranks: dict[str, list[dict[str, Any]]] = {node: [{"gemm": 1.0}] * 2 for node in NODES}
    for node in NODES:
        rows = [
            [number, place, busbw(pair)]
            for number, pairs in enumerate(pairing.rounds_of(NODES))
            for place, pair in enumerate(pairs)
            if node in pair
        ]
        ranks[node] = [{"pairs": rows}, {"pairs": rows}]
    return [(one["nodes"], one["rate"]) for one in tensor_pairs.findings(NODES, ranks)]


def test_who_is_slow() -> None:
    assert _found(lambda pair: 4e10) == []
    assert _found(lambda pair: 3.2e10 if "n2" in pair else 4e10) == []
    assert _found(lambda pair: 5e9 if "n2" in pair else 4e10) == [(["n2"], 5e9)]
    assert _found(lambda pair: 5e9 if {*pair} == {"n1", "n2"} else 4e10) == [(["n1", "n2"], 5e9)]


@pytest.mark.parametrize("ranks", [{}, {"n1": [{"error": "CUDA"}]}])
def test_nothing_measured(ranks: dict[str, list[dict[str, Any]]]) -> None:
    assert tensor_pairs.findings(NODES, ranks) == []
