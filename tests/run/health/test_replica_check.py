"""The comparison of replicas: how differences are told, and how often it is made.

Real ranks that differ: tests/run/parallel/test_training_ways.py and tests/run/test_replicas.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hpcrun.errors import ReplicasDifferError
from hpcrun.run.health import replica_check
from hpcrun.run.health.replica_check import MOST_COST, ReplicaCheck, difference, digests
from hpcrun.run.parallel.rank_layout import RankLayout
from hpcrun.run.rank.collectives import Collectives

torch = pytest.importorskip("torch")


def held(*sums: int, name: str = "weights stage 0 tensor 0 ") -> list[tuple[str, dict[str, int]]]:
    """Make the checksums of ranks, two on a node."""
    return [(f"n{rank // 2 + 1}", {name: each}) for rank, each in enumerate(sums)]


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        (held(1, 1, 1), None),
        (held(1, 1, 2), "the weights of rank 2 (n2) are not those of 2 other ranks"),
        (held(1, 2), "the weights of ranks that should hold the same differ: rank 0 (n1), rank 1"),
        (held(3, 3, 4, 4), "rank 0 (n1) and rank 1 (n1), rank 2 (n2) and rank 3 (n2); at step 40"),
        (held(*[1] * 9, 2, 3), "rank 9 (n5) and rank 10 (n6) are not those of 9 other ranks"),
        (held(*[1] * 9, *range(2, 8)), "and rank 12 (n7) and 2 more are not those"),
        (held(1, 2, name="moments stage 0 tensor 0 "), "the moments of ranks"),
    ],
)
def test_those_that_are_few_are_named(ranks: list[Any], said: str | None) -> None:
    found = difference(ranks, 40)
    assert said in found if said and found else found is None and said is None


def test_others_hold_something_else() -> None:
    """Ranks of another stage are not compared with these."""
    first, second = held(1, 2)
    assert difference([first, ("n1", {"weights stage 1 tensor 0 ": 2})], 0) is None
    assert "they never agreed" in str(difference([first, second], 0))


class _Engine:
    """For what is summed; a mock of DeepSpeed's engine at ZeRO 0."""

    has_moe_layers = False

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.module = torch.nn.Linear(3, 2)
        self.optimizer = torch.optim.AdamW(self.module.parameters())
        self.module(torch.ones(3)).sum().backward()
        self.optimizer.step()

    def zero_optimization_stage(self) -> int:
        return 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "uint8", "complex64"])
def test_one_bit_changes_the_sum(dtype: str) -> None:
    engine, layout = _Engine(), RankLayout({}, 2)
    engine.module.extra = torch.nn.Parameter(
        torch.ones(5, dtype=getattr(torch, dtype)), requires_grad=False
    )
    before = digests(engine, layout, 0)
    assert digests(engine, layout, 1) == before
    engine.module.extra.data.view(torch.uint8)[3] ^= 4
    after = digests(engine, layout, 0)
    assert [name for name in before if before[name] != after[name]] == ["weights stage 0 tensor 0 "]


def test_moments_and_places_count() -> None:
    engine, layout = _Engine(), RankLayout({}, 2)
    before = digests(engine, layout, 0)
    weight, bias = engine.module.parameters()
    engine.optimizer.state[weight]["exp_avg"] += 1
    moved = digests(engine, layout, 0)
    assert moved["moments stage 0 tensor 0 "] != before["moments stage 0 tensor 0 "]
    assert moved["weights stage 0 tensor 0 "] == before["weights stage 0 tensor 0 "]
    weight.data.fill_(1.0)
    bias.data.fill_(2.0)
    one = digests(engine, layout, 0)
    weight.data.fill_(2.0)
    bias.data.fill_(1.0)
    assert digests(engine, layout, 0) != one


class _Peers(Collectives):
    """Ranks that answer alike, but for what is set; a mock of three."""

    def __init__(self) -> None:
        super().__init__(0, 3)
        self.calls = 0
        self.change = 0

    def reduce(self, value: Any, merge: Callable[[Any, Any], Any]) -> Any:
        self.calls += 1
        ((node, own),), *rest = value
        other = {name: each + self.change for name, each in own.items()}
        return merge(merge(value, ([(node, other)], *rest)), value)

    def from_rank_0(self, ask: Callable[[], Any], what: str) -> Any:
        return ask()


def test_it_costs_a_thousandth_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(replica_check.time, "perf_counter", lambda: clock[0])
    peers = _Peers()
    reduce = peers.reduce

    def slow(value: Any, merge: Callable[[Any, Any], Any]) -> Any:
        clock[0] += 0.05
        return reduce(value, merge)

    peers.reduce = slow  # type: ignore[method-assign]
    check, engine = ReplicaCheck(peers, RankLayout({}, 3), "n1", "auto"), _Engine()
    for step in range(1, 2001):
        clock[0] += 0.1
        check.after_step(engine, step, 0.1)
    assert peers.calls >= 3
    # The first is due in any case, and the second is planned without its cost.
    assert (peers.calls - 2) * 0.05 <= MOST_COST * 2000 * 0.1 + 0.05


@pytest.mark.parametrize(("every", "calls"), [(3, 4), (None, 0)])
def test_as_often_as_it_is_asked_to(every: int | None, calls: int) -> None:
    peers = _Peers()
    check = ReplicaCheck(peers, RankLayout({}, 3), "n1", every)
    for step in range(1, 11):
        check.after_step(_Engine(), step)
    check.compare(_Engine(), 10)
    assert peers.calls == calls


def test_all_ranks_are_told_of_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    peers, engine = _Peers(), _Engine()
    check = ReplicaCheck(peers, RankLayout({}, 3), "n1", 1)
    check.after_step(engine, 1)
    peers.change = 1
    with pytest.raises(ReplicasDifferError, match=r"step 2: the weights of rank 1 \(n1\)") as told:
        check.after_step(engine, 2)
    assert "at step 1 they agreed" in str(told.value)


@pytest.mark.parametrize("change", [{"has_moe_layers": True}, {"fixed_size": "own weights"}])
def test_what_the_layout_does_not_know_is_not_compared(change: dict[str, Any]) -> None:
    peers, engine = _Peers(), _Engine()
    vars(engine).update(change)
    ReplicaCheck(peers, RankLayout({}, 3), "n1", 1).after_step(engine, 1)
    assert not peers.calls
