"""Attention over sequences that are divided, without ranks: what is called, and what is told."""

from __future__ import annotations

import pytest

import hpcrun
from hpcrun.errors import UsageError
from hpcrun.run.parallel import ulysses


@pytest.fixture(autouse=True)
def unused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ulysses, "_is_used", False)


def test_without_a_sequence_group_it_is_the_program_s_own_attention() -> None:
    assert hpcrun.ulysses_attention(lambda q, k, v: (v, k, q), 1, 2, 3) == (3, 2, 1)


def test_heads_that_cannot_be_shared_out_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")

    class Group:
        def size(self) -> int:
            return 4

    monkeypatch.setattr(ulysses, "_group", Group())
    heads = torch.zeros(1, 2, 6, 8)
    with pytest.raises(UsageError, match=r"the query has 6 heads, and parallel\.sequence is 4"):
        ulysses.attention(lambda q, k, v: v, heads, heads, heads)


def test_a_step_that_divided_no_sequence_is_told() -> None:
    with pytest.raises(UsageError, match="took no part of one"):
        ulysses.check_use({"sequence": 2}, has_parts=False)
    with pytest.raises(UsageError, match="no attention of this model went through"):
        ulysses.check_use({"sequence": 2}, has_parts=True)
    ulysses.attention(lambda q, k, v: v, 1, 2, 3)
    ulysses.check_use({"sequence": 2}, has_parts=True)


def test_nothing_is_wanted_of_other_layouts() -> None:
    ulysses.check_use({}, has_parts=False)
    ulysses.check_use({"tensor": 2}, has_parts=False)
    ulysses.check_use({"sequence": 2, "pipeline": 2}, has_parts=False)
