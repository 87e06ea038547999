"""The node that an agent is on, where its step was started on several."""

from __future__ import annotations

import argparse

import pytest

from hpcrun.run import agent


@pytest.mark.parametrize(
    ("nodes", "ranks", "slurms", "expected"),
    [
        ("n7", "7", "", ("n7", 7)),
        ("local0", "0", "n9", ("local0", 0)),
        ("n7,n9,n10", "7,9,10", "n9", ("n9", 9)),
        ("n7,n9,n10", "7,9,10", "n10", ("n10", 10)),
        ("n7,n9,n10", "7,9,10", "n8", None),
    ],
)
def test_an_agent_finds_its_node(
    nodes: str,
    ranks: str,
    slurms: str,
    expected: tuple[str, int] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", slurms)
    arguments = argparse.Namespace(node=nodes, node_rank=ranks)
    if expected is None:
        with pytest.raises(SystemExit, match="node n8 is none of those"):
            agent.find_node(arguments)
        return
    agent.find_node(arguments)
    assert (arguments.node, arguments.node_rank) == expected
