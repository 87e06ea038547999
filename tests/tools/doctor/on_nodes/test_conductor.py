"""The tensor test's all-reduce where nodes die; the whole job: tests/cluster/test_doctor.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from hpcrun.run.check_in import pairing
from hpcrun.run.check_in.pairing import PairRates
from hpcrun.tools.doctor.on_nodes import conductor
from hpcrun.tools.doctor.on_nodes.conductor import Conductor, LinkRounds

Questions = Mapping[str, dict[str, Any]]
NODES = ["n1", "n2", "n3"]


class _Nodes(Conductor):
    """Nodes that answer by themselves; ``dying`` are gone as soon as they are asked for a port."""

    def __init__(self, dying: set[str], silent: set[str]) -> None:
        facts = {"libraries": {"torch": "2"}, "gpus": None}
        self.nodes = list(NODES)
        self.answers = {
            name: {"facts": {**facts, "interfaces": [["ib0", f"10.0.0.{name[1]}", "InfiniBand"]]}}
            for name in NODES
        }
        self._fabric, self._seed, self._gone = {}, 1, set()
        self._dying, self._silent = dying, silent
        self.places: dict[str, dict[str, Any]] = {}

    def _progress(self, doing: str) -> None:
        pass

    def _ask(self, questions: Questions, patience: float) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for node, question in questions.items():
            if question["type"] == "ports":
                if node in self._dying:
                    self._lose(node, "it fell silent")
                elif node not in self._silent:
                    found[node] = {"port": 4711}
            else:
                self.places[node] = question["places"][0]
                found[node] = {"ranks": [{"devices": 0, "gemm": 1e11, "allreduce": [{}]}]}
        return found


def test_the_first_node_dies_before_the_all_reduce() -> None:
    nodes = _Nodes({"n1"}, set())
    found = nodes._tensor("ib0", PairRates(NODES))
    assert (found["nodes"], found["ranks"]) == (["n2", "n3"], 2)
    assert "omitted" not in found
    assert nodes.answers["n1"]["error"] == "it fell silent"
    assert "tensor" not in nodes.answers["n1"]
    assert {name: place["rank"] for name, place in nodes.places.items()} == {"n2": 0, "n3": 1}
    assert all(place["address"] == "10.0.0.2" for place in nodes.places.values())


@pytest.mark.parametrize(
    ("dying", "silent", "left"),
    [({"n1", "n2"}, set(), ["n3"]), (set(), {"n1"}, []), (set(NODES[:1]), {"n2"}, [])],
)
def test_an_all_reduce_that_is_left_out(dying: set[str], silent: set[str], left: list[str]) -> None:
    """The products of the others are kept."""
    nodes = _Nodes(dying, silent)
    found = nodes._tensor("ib0", PairRates(NODES))
    assert found["nodes"] == left
    assert "omitted" in found
    assert set(nodes.places) == set(NODES) - dying
    assert all(place["world_size"] == 1 for place in nodes.places.values())


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


FIVE = ["n1", "n2", "n3", "n4", "n5"]


def test_ranks_of_pairs() -> None:
    assert conductor.rank_rounds(["n1", "n2"], 2) == [[[0, 1, 2, 3]]]
    rounds = conductor.rank_rounds(["n1", "n2", "n3", "n4"], 8)
    assert [len(pairs) for pairs in rounds] == [2, 2, 2]
    for pairs in rounds:
        every = sorted(rank for ranks in pairs for rank in ranks)
        assert every == [*range(32)]
    assert conductor.rank_rounds(["n1"], 8) == []


def _found(busbw: Callable[[tuple[str, str]], float]) -> list[tuple[list[str], float]]:
    """The findings where each rank of each node reports its pairs."""
    ranks: dict[str, list[dict[str, Any]]] = {node: [{"gemm": 1.0}] * 2 for node in FIVE}
    for node in FIVE:
        rows = [
            [number, place, busbw(pair)]
            for number, pairs in enumerate(pairing.rounds_of(FIVE))
            for place, pair in enumerate(pairs)
            if node in pair
        ]
        ranks[node] = [{"pairs": rows}, {"pairs": rows}]
    return [(one["nodes"], one["rate"]) for one in conductor.slow_pairs(FIVE, ranks)]


def test_who_is_slow() -> None:
    assert _found(lambda pair: 4e10) == []
    assert _found(lambda pair: 3.2e10 if "n2" in pair else 4e10) == []
    assert _found(lambda pair: 5e9 if "n2" in pair else 4e10) == [(["n2"], 5e9)]
    assert _found(lambda pair: 5e9 if {*pair} == {"n1", "n2"} else 4e10) == [(["n1", "n2"], 5e9)]


@pytest.mark.parametrize("ranks", [{}, {"n1": [{"error": "CUDA"}]}])
def test_nothing_measured(ranks: dict[str, list[dict[str, Any]]]) -> None:
    assert conductor.slow_pairs(FIVE, ranks) == []
