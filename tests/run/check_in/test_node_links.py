"""The interfaces of a job's nodes, as agents tell of them."""

from __future__ import annotations

from typing import Any

import pytest

from hpcrun.run.check_in import node_links
from hpcrun.run.check_in.node_links import NodeLinks
from hpcrun.run.protocol.messages import BadMessage


def _hello(*names: str, down: Any = ()) -> dict[str, Any]:
    own = [[name, "10.0.0.1", "name" if name.startswith("ib") else ""] for name in names]
    return {"type": "hello", "interfaces": own, "down": list(down)}


def test_what_is_up_and_what_is_down() -> None:
    links = NodeLinks()
    links.greet("n1", _hello("ib0", "eth0"))
    links.greet("n2", _hello("ib0", "eth0", down=["ib0", "ib1"]))
    links.greet("n3", {"type": "hello", "interfaces": []})
    assert links.up == {"n1": ["ib0", "eth0"], "n2": ["eth0"], "n3": []}
    assert links.down == {"n1": [], "n2": ["ib0", "ib1"], "n3": []}


def test_fast_interfaces_that_are_up_on_all() -> None:
    links = NodeLinks()
    links.greet("n1", _hello("ib0", "ib1", "eth0"))
    links.greet("n2", _hello("ib0", "ib1", "eth0", down=["ib1"]))
    assert links.fast_on_all(["n1", "n2"]) == {"ib0"}
    assert links.fast_on_all(["n1"]) == {"ib0", "ib1"}
    assert links.fast_on_all(["n1", "n3"]) == set()


@pytest.mark.parametrize("down", [7, [7], ["a b"], [""], ["x"] * 101])
def test_a_wrong_hello_changes_nothing(down: Any) -> None:
    links = NodeLinks()
    with pytest.raises(BadMessage):
        links.greet("n1", {**_hello("ib0"), "down": down})
    assert links.up == {}


def test_all_nodes_are_told_the_interface_that_they_agree_on() -> None:
    links = NodeLinks()
    links.greet("n1", _hello("ib0", "eth0"))
    links.greet("n2", _hello("ib0", "eth0"))
    found = links.choose({"management_interface": "eth0"}, ["n1", "n2"])
    assert found["n2"] == {"management_interface": "eth0", "fast_interface": "ib0"}
    assert "ranks talk over ib0" in str(links.notice)
    assert links.choose({"fast_interface": "ib1"}, ["n1"]) == {"n1": {"fast_interface": "ib1"}}
    assert links.notice is None


def test_a_node_is_cut_off_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    links = NodeLinks()
    links.note("n1", "ib0 has no carrier")
    assert links.cut_off(["n1", "n2"]) == ([], "")
    monkeypatch.setattr(node_links, "SILENCE", -1.0)
    found = (["n1"], "cut off from the fabric: n1: ib0 has no carrier")
    assert links.cut_off(["n1", "n2"]) == found
    assert links.cut_off(["n2"]) == ([], "")
    links.note("n1", None)
    assert links.cut_off(["n1"]) == ([], "")
