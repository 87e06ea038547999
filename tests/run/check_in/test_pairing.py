"""Which nodes meet, and which are found slow, on made-up fabrics."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping

import pytest

from hpcrun.run.check_in.pairing import SLOW_PAIR, Pair, PairRates, ring, rounds_of

FAST = 2e9


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6, 7, 8, 17, 64])
def test_few_rounds(count: int) -> None:
    nodes = [f"n{number}" for number in range(count)]
    rounds = rounds_of(nodes)
    assert len(rounds) == {2: 1, 3: 3}.get(count, 3 + count % 2)
    for pairs in rounds:
        busy = [node for pair in pairs for node in pair]
        assert len(busy) == len(set(busy)), "nobody is in two pairs at a time"
    met = {frozenset(pair) for pairs in rounds for pair in pairs}
    for node in nodes:
        others = min(3, count - 1)
        # Of an odd number, one has nobody far away.
        assert others - count % 2 <= sum(node in pair for pair in met) <= others


def test_no_ring_of_one() -> None:
    assert rounds_of([]) == rounds_of(["n1"]) == []


class Fabric:
    """What measuring would give: slow senders, slow receivers, nodes without a link, slow ways."""

    def __init__(
        self,
        slow_senders: Collection[str] = (),
        slow_receivers: Collection[str] = (),
        dead: Collection[str] = (),
        slow_ways: Collection[Pair] = (),
        late: Mapping[str, float] | None = None,
    ) -> None:
        self.slow = slow_senders, slow_receivers
        self.dead, self.ways, self.late = dead, slow_ways, late or {}
        self.random = random.Random(1)

    def rate(self, sender: str, receiver: str) -> float:
        is_slow = sender in self.slow[0] or receiver in self.slow[1]
        is_slow = is_slow or (sender, receiver) in self.ways
        # TCP alone makes links differ by a third.
        return (6e6 if is_slow else FAST) * self.random.uniform(0.7, 1.0)

    def test(self, count: int, baseline: float | None = None) -> tuple[PairRates, int]:
        """Go through all rounds as the conductor does; return also how many these were."""
        nodes = [f"n{number}" for number in range(1, count + 1)]
        rates, rounds = PairRates(nodes, baseline), rounds_of(nodes)
        for pairs in rounds:
            self.measure(pairs, rates)
        for _ in range(3):
            pairs = rates.further_round()
            if not pairs:
                break
            rounds.append(pairs)
            busy = [node for pair in pairs for node in pair]
            assert len(busy) == len(set(busy))
            self.measure(pairs, rates)
        return rates, len(rounds)

    def measure(self, pairs: Collection[Pair], rates: PairRates) -> None:
        for one, other in pairs:
            if {one, other} & {*self.dead}:
                rates.fail((one, other), "timed out")
            else:
                latency = 2e-5 + self.late.get(one, 0) + self.late.get(other, 0)
                sends, receives = self.rate(one, other), self.rate(other, one)
                rates.add((one, other), sends, receives, latency)


def found(rates: PairRates) -> set[tuple[str, tuple[str, ...]]]:
    return {(one["kind"], tuple(one["nodes"])) for one in rates.findings()}


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 33])
def test_a_healthy_fabric_takes_no_further_round(count: int) -> None:
    rates, rounds = Fabric().test(count)
    assert found(rates) == set()
    assert rounds == len(rounds_of(rates.nodes))


@pytest.mark.parametrize("count", [3, 4, 5, 8, 33])
def test_one_slow_sender_one_slow_receiver_one_dead_node(count: int) -> None:
    assert found(Fabric(["n2"]).test(count)[0]) == {("slow_sender", ("n2",))}
    assert found(Fabric((), ["n2"]).test(count)[0]) == {("slow_receiver", ("n2",))}
    assert found(Fabric(["n2"], ["n2"]).test(count)[0]) == {
        ("slow_sender", ("n2",)),
        ("slow_receiver", ("n2",)),
    }
    rates = Fabric(dead=["n2"]).test(count)[0]
    assert found(rates) == {("unreached", ("n2",))}
    assert rates.findings()[0]["error"] == "timed out"


def test_a_slow_node_beside_a_dead_one() -> None:
    assert found(Fabric(["n2"], dead=["n3"]).test(4)[0]) == {
        ("slow_sender", ("n2",)),
        ("unreached", ("n3",)),
    }


@pytest.mark.parametrize("bad", [("n1", "n3"), ("n1", "n4"), ("n2", "n5"), ("n1", "n3", "n5")])
def test_several_slow_nodes_of_eight_need_further_rounds(bad: tuple[str, ...]) -> None:
    """Both neighbours of n2 may be slow, and it is well all the same."""
    for fabric in (Fabric(bad), Fabric((), bad), Fabric(bad, bad), Fabric(dead=bad)):
        rates, rounds = fabric.test(8)
        assert {node for _, nodes in found(rates) for node in nodes} == {*bad}
        assert rounds <= 6


def test_opposite_nodes_of_four() -> None:
    """In the ring all ways are slow; that of the other two is fast."""
    rates, rounds = Fabric(["n1", "n3"], ["n1", "n3"]).test(4)
    assert {node for _, nodes in found(rates) for node in nodes} == {"n1", "n3"}
    assert rounds == 3


def test_of_two_nodes_nobody_knows() -> None:
    assert found(Fabric(["n1"]).test(2)[0]) == {("slow_pair", ("n1", "n2"))}
    assert found(Fabric(dead=["n1"]).test(2)[0]) == {("slow_pair", ("n1", "n2"))}


def test_a_way_that_is_slow_while_its_ends_do_well() -> None:
    assert found(Fabric(slow_ways=[("n1", "n2")]).test(8)[0]) == {("slow_pair", ("n1", "n2"))}


def test_a_baseline_is_stricter_and_noise_only_makes_slower() -> None:
    nodes = ["n1", "n2", "n3"]
    rates = PairRates(nodes, FAST)
    for pairs in rounds_of(nodes):
        for pair in pairs:
            rates.add(pair, 0.95 * FAST, 0.85 * FAST, 2e-5)
    assert rates.doubtful_pairs() == [("n1", "n2"), ("n1", "n3"), ("n2", "n3")]
    for pair in rates.doubtful_pairs():
        rates.add(pair, 0.92 * FAST, 0.93 * FAST, 2e-5)
    assert rates.doubtful_pairs() == []
    # A failure of the second time is no worse than the first measurement.
    rates.fail(("n1", "n2"), "timed out")
    assert rates.doubtful_pairs() == []
    assert rates.errors == {}


def test_a_node_that_answers_late() -> None:
    (one,) = Fabric(late={"n3": 0.003}).test(8)[0].findings()
    assert (one["kind"], one["nodes"]) == ("late", ["n3"])
    assert found(Fabric(late={"n3": 0.0001}).test(8)[0]) == set()


def test_thousands_of_nodes_are_judged_at_once() -> None:
    nodes = [f"n{number}" for number in range(4096)]
    rates = PairRates(nodes)
    for pairs in ring(nodes):
        for one, other in pairs:
            slow = "n7" in (one, other)
            rates.add((one, other), FAST / 10 if slow else FAST, FAST, 1e-5)
    assert rates.doubtful_pairs() == [("n6", "n7"), ("n7", "n8")]
    found = [one["nodes"] for one in rates.findings() if one["kind"] == SLOW_PAIR]
    assert found == [["n6", "n7"], ["n7", "n8"]]
