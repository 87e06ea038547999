"""Whose fault it is where nodes could not do what they were asked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from hpcrun.run.check_in.node_failures import EXIT_STORAGE, NodeFailures, have_built
from hpcrun.run.job.rank_places import NodesUnusable, NotBuilt, StorageUnseen

# Node -> what its failure is about; the nodes that have answered; the error, and its nodes.
CASES: dict[str, tuple[dict[str, str], list[str], type[NodesUnusable] | None, list[str]]] = {
    "a node": ({"n1": ""}, ["n2"], None, ["n1"]),
    "storage, while others see it": ({"n1": "storage"}, ["n2"], StorageUnseen, ["n1"]),
    "storage that nobody sees": ({"n1": "storage", "n2": "storage"}, [], StorageUnseen, []),
    "a node beside one without storage": ({"n1": "storage", "n2": ""}, ["n3"], None, ["n2"]),
    "a build": ({"n1": "build"}, [], NotBuilt, ["n1"]),
    "a build beside one without storage": ({"n1": "storage", "n2": "build"}, [], NotBuilt, ["n2"]),
    "a build beside a node": ({"n1": "build", "n2": ""}, [], None, ["n2"]),
}


@pytest.mark.parametrize("case", CASES)
def test_whose_fault_it_is(case: str) -> None:
    found, answered, error, nodes = CASES[case]
    failures = NodeFailures()
    for node, about in found.items():
        failures.add(node, f"{node}: why", about)
    if error is None:
        failures.check_shared(answered, lambda _: None)
        assert failures.at_fault == nodes
    else:
        with pytest.raises(error) as caught:
            failures.check_shared(answered, lambda _: None)
        assert list(caught.value.nodes) == nodes
    failures.clear()
    failures.check_shared(answered, lambda _: None)
    assert not failures.nodes


@pytest.mark.parametrize(
    ("code", "said", "is_at_fault"),
    [
        (EXIT_STORAGE, "", False),
        (1, "python: Error … (ModuleNotFoundError: No module named 'hpcrun')\n", False),
        (1, "MemoryError\n", True),
        (1, None, True),
        (-9, "", True),
    ],
)
def test_an_agent_that_does_not_see_its_submission_is_gone_without_fault(
    tmp_path: Path, code: int, said: str | None, is_at_fault: bool
) -> None:
    failures, gone, log = NodeFailures(), list[str](), tmp_path / "agent-n1.log"
    if said is not None:
        log.write_text(said)
    failures.add_ended("n1", code, log)
    assert failures.message == f"the agent on node n1 ended with exit code {code}; see agent-n1.log"
    if is_at_fault:
        failures.check_shared(["n2"], gone.extend)
        assert (failures.at_fault, gone) == (["n1"], [])
    else:
        with pytest.raises(StorageUnseen) as caught:
            failures.check_shared(["n2"], gone.extend)
        assert (caught.value.nodes, gone) == (("n1",), ["n1"])


# Node -> its key and whether it compiles there; in a container; who is asked in turn, and the nodes
# of the error (None: it is built).
BUILDS: dict[str, tuple[dict[str, tuple[str | None, bool]], bool, list[str], list[str] | None]] = {
    "one node compiles": ({"n1": ("a", True), "n2": ("a", True)}, False, ["n1"], None),
    "two kinds of nodes": (
        {"n1": ("a", True), "n2": ("a", True), "n3": ("b", True)},
        *(False, ["n1 n3"], None),
    ),
    "nothing to compile": ({"n1": (None, True)}, False, [], None),
    "another node can": (
        {"n1": ("a", False), "n2": ("a", True), "n3": ("a", True)},
        *(False, ["n1", "n2"], None),
    ),
    "two cannot": (
        {"n1": ("a", False), "n2": ("a", False), "n3": ("a", True)},
        *(False, ["n1", "n2"], ["n1", "n2"]),
    ),
    "the only node of its kind cannot": (
        {"n1": ("a", True), "n2": ("a", True), "n3": ("b", False)},
        *(False, ["n1 n3"], ["n3"]),
    ),
    "one node alone": ({"n1": ("a", False)}, False, ["n1"], ["n1"]),
    "both kinds, and one is asked again": (
        {"n1": ("a", False), "n2": ("b", True), "n3": ("a", True)},
        *(False, ["n1 n2", "n3"], None),
    ),
    "an image without a compiler": (
        {"n1": ("a", False), "n2": ("a", False), "n3": ("a", False)},
        *(True, ["n1"], []),
    ),
}


@pytest.mark.parametrize("case", BUILDS)
def test_one_node_compiles_and_another_where_it_cannot(case: str) -> None:
    nodes, is_anywhere, asked, error = BUILDS[case]
    turns: list[str] = []

    def build(names: Sequence[str], waiting: Sequence[str]) -> None:
        assert {*names} <= {*waiting}
        turns.append(" ".join(names))
        if failed := [name for name in names if not nodes[name][1]]:
            raise NotBuilt("no compiler", failed)

    keys = {node: key for node, (key, _) in nodes.items()}
    if error is None:
        have_built(keys, list(nodes), build, is_anywhere=is_anywhere)
    else:
        with pytest.raises(NotBuilt) as caught:
            have_built(keys, list(nodes), build, is_anywhere=is_anywhere)
        assert list(caught.value.nodes) == error
    assert turns == asked
