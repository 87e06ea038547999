"""Values of many ranks, up and down a tree: what each gets, in how many rounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from hpcrun.errors import CheckpointError, HpcrunError
from hpcrun.run.rank.collectives import Collectives
from tests.run.thread_ranks import Wire, in_turn

pytest.importorskip("torch")

WORLDS = [1, 2, 3, 5, 8, 13, 64, 200]
LONG = "x" * 100_000


def _all(world: int, act: Callable[[Collectives], Any]) -> tuple[list[Any], Wire]:
    wire = Wire(world)
    return in_turn(wire, lambda rank: act(Collectives(rank, world, wire))), wire


def _rounds(world: int) -> int:
    return math.ceil(math.log2(world))


def _lists(ranks: Collectives) -> Any:
    return ranks.reduce([ranks.rank], lambda lower, higher: lower + higher)


@pytest.mark.parametrize("world", WORLDS)
def test_values_are_merged_in_the_order_of_ranks(world: int) -> None:
    found, wire = _all(world, _lists)
    assert found == [list(range(world)), *[None] * (world - 1)]
    assert max(wire.clock) <= _rounds(world)


@pytest.mark.parametrize(
    ("world", "padding"), [*((world, "") for world in WORLDS), (5, LONG), (13, LONG)]
)
def test_each_rank_gets_its_own_and_rank_0_sends_each_once(world: int, padding: str) -> None:
    values = [f"{padding}{rank}" for rank in range(world)]

    def act(ranks: Collectives) -> Any:
        return ranks.scatter_from_rank_0(lambda: values, "values")

    found, wire = _all(world, act)
    assert found == values
    assert max(wire.clock) <= _rounds(world)
    assert wire.bytes[0] <= sum(map(len, values)) + 2048 * (max(wire.clock) + 1)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(
    "failing", [[], [0], [1], [2, 1], [12, 4, 7]], ids=lambda ranks: str(ranks)
)
def test_the_lowest_failing_rank_is_what_all_raise(world: int, failing: list[int]) -> None:
    present = [rank for rank in failing if rank < world]

    def act(ranks: Collectives) -> None:
        ranks.agree(f"disk {ranks.rank} is full" if ranks.rank in present else None, "no save")

    found, wire = _all(world, act)
    if not present:
        assert found == [None] * world
    else:
        first = min(present)
        assert {str(each) for each in found} == {f"no save: rank {first}: disk {first} is full"}
        assert all(type(each) is CheckpointError for each in found)
    assert max(wire.clock) <= 2 * _rounds(world)


@pytest.mark.parametrize(
    ("error", "message", "hint"),
    [
        (OSError("no such place"), "manifests: no such place", None),
        (CheckpointError("it is damaged", hint="use --new"), "it is damaged", "use --new"),
    ],
)
def test_what_rank_0_cannot_find_out_is_an_error_of_all(
    error: Exception, message: str, hint: str | None
) -> None:
    def fail() -> Any:
        raise error

    found, _ = _all(5, lambda ranks: ranks.from_rank_0(fail, "manifests"))
    assert [(each.message, each.hint) for each in found] == [(message, hint)] * 5


class Mail:
    """A gloo group of two ranks, whose messages lie there until they are fetched."""

    def __init__(self) -> None:
        self.parts: list[Any] = []

    def send(self, tensors: list[Any], *_: int) -> Mail:
        self.parts += tensors
        return self

    def recv(self, tensors: list[Any], *_: int) -> Mail:
        tensors[0].copy_(self.parts.pop(0))
        return self

    def wait(self) -> None:
        pass


def test_ranks_that_do_different_things_are_told_apart() -> None:
    """Without that, what one rank says of one thing is taken for its answer to another."""
    mail = Mail()
    lower, higher = Collectives(0, 2, mail), Collectives(1, 2, mail)
    lower.doing = higher.doing = "saving step 20"
    assert _lists(higher) is None
    assert _lists(lower) == [0, 1]
    higher.doing = "about to save step 19"
    assert _lists(higher) is None
    apart = "rank 1 is about to save step 19, rank 0 saving step 20"
    with pytest.raises(HpcrunError, match=apart):
        _lists(lower)
