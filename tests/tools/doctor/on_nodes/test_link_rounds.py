"""Rounds on made-up fabrics: what is slow once is measured again, at last alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hpcrun.run.check_in.pairing import PairRates
from hpcrun.tools.doctor.on_nodes.link_rounds import LinkRounds

FAST, SLOW = 2e9, 6e6
Rate = Callable[[str, str, int, int], float]


class Nodes:
    """Nodes that answer; ``rate`` is of sender, receiver, the time of asking and pairs at once."""

    def __init__(self, rate: Rate, silent: str = "") -> None:
        self.rate, self.silent = rate, silent
        self.asked: list[set[tuple[str, str]]] = []
        self.told: list[str] = []

    def ask(
        self, questions: Mapping[str, dict[str, Any]], patience: float
    ) -> dict[str, dict[str, Any]]:
        pairs = {(one, str(question["address"])) for one, question in questions.items()}
        self.asked.append(pairs)
        busy = [node for pair in pairs for node in pair]
        assert len(busy) == len(set(busy))
        answers = {}
        for one, other in pairs:
            if self.silent == one:
                continue
            if self.silent == other:
                answers[one] = {"error": "timed out"}
                continue
            time = sum({one, other} in [{*pair} for pair in now] for now in self.asked)
            sends, receives = (
                self.rate(*way, time, len(pairs)) for way in ((one, other), (other, one))
            )
            answers[one] = {"sends": sends, "receives": receives, "latency": 2e-5}
        return answers

    def test(self, count: int) -> PairRates:
        names = [f"n{number}" for number in range(1, count + 1)]
        rates = PairRates(names)
        ports = {name: (name, 1) for name in names}
        LinkRounds("links over ib0", ports, rates, self.ask, self.told.append).measure()
        return rates


def test_healthy_nodes_take_the_rounds_alone() -> None:
    nodes = Nodes(lambda *_: FAST)
    assert nodes.test(4).findings() == []
    assert len(nodes.asked) == 3
    assert nodes.told[-1] == "measuring links over ib0, round 3 of 3"


def test_noise_is_measured_again() -> None:
    nodes = Nodes(lambda one, other, time, _: SLOW if (one, time) == ("n2", 1) else FAST)
    assert nodes.test(4).findings() == []
    assert any(told.startswith("measuring once more what was slow: n") for told in nodes.told)


def test_what_is_slow_only_beside_other_pairs_is_well() -> None:
    nodes = Nodes(lambda one, other, _, pairs: FAST if pairs == 1 or "n4" in (one, other) else SLOW)
    assert nodes.test(4).findings() == []
    assert {len(pairs) for pairs in nodes.asked[-2:]} == {1}


def test_a_slow_sender_and_a_silent_node() -> None:
    nodes = Nodes(lambda one, *_: SLOW if one == "n2" else FAST, silent="n3")
    found = {(one["kind"], *one["nodes"]) for one in nodes.test(5).findings()}
    assert found == {("slow_sender", "n2"), ("unreached", "n3")}
