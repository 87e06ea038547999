"""The tensor test's all-reduce where nodes die; the whole job: tests/cluster/test_doctor.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from hpcrun.run.check_in.pairing import PairRates
from hpcrun.tools.doctor.on_nodes.conductor import Conductor

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
