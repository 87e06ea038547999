"""Messages of agents: those that a supervisor takes, and those that it refuses."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from hpcrun.run.health.program_hangs import NodeTraffic, RankActivity
from hpcrun.run.health.progress import RankProgress
from hpcrun.run.protocol import messages
from hpcrun.run.protocol.launch import LaunchNode
from hpcrun.run.protocol.messages import BadMessage
from tests.security.broken_agent import nonsense

START = "0123456789ab"
SCRATCH = f"/tmp/hpcrun-{START}/attempt-2"
NODE: dict[str, Any] = {
    **{"name": "n1", "code": f"{SCRATCH}/code", "scratch": SCRATCH, "interface": "ib0"},
    **{"address": "10.9.0.1", "hca": "=mlx5_0:1,mlx5_1", "extensions": None},
}
PROGRESS = {
    **{"pid": 7, "step": 3, "phase": 1, "moves": 2, "looks": 5, "state": "S"},
    **{"processor": 12, "waits": 1, "loads": 0},
}
ACTIVITY = {"output": 5, "processor": 7, "io": 9, "state": "D"}
RANKS = range(4, 8)


def _ready(**changes: Any) -> tuple[LaunchNode, int | None]:
    message = {"node": {**NODE, **changes}, "port": 10_000}
    return messages.ready(message, "n1", START, 2, first=True)


def test_what_sound_agents_say() -> None:
    assert _ready(ports=11_000)[0].ports == 11_000
    node, port = _ready(extensions=f"{SCRATCH}/torch_extensions")
    assert (node.name, node.scratch, node.address, port) == ("n1", SCRATCH, "10.9.0.1", 10_000)
    assert (node.code, node.extensions) == (f"{SCRATCH}/code", f"{SCRATCH}/torch_extensions")
    assert messages.ready({"node": NODE}, "n1", START, 2, first=False)[1] is None
    pulse = {"ranks": {"5": PROGRESS}, "logs": {"7": 100}, "fabric": "ib0 has no carrier"}
    assert messages.progress(pulse, RANKS) == {5: RankProgress(**PROGRESS)}  # type: ignore[arg-type]
    assert messages.log_sizes(pulse, RANKS) == {7: 100}
    assert messages.link_trouble(pulse) == "ib0 has no carrier"
    assert messages.imported(pulse) is None
    assert messages.imported({"imported": 12}) == 12
    assert messages.link_trouble({}) is None
    pulse = {"programs": {"5": ACTIVITY}, "traffic": {"fabric": 3, "storage": 4, "gpu": 5}}
    assert messages.activity(pulse, RANKS) == {5: RankActivity(5, 7, 9, "D")}
    assert messages.traffic(pulse) == NodeTraffic(3, 4, 5)
    assert (messages.activity({}, RANKS), messages.traffic({})) == ({}, None)
    assert messages.locks({"locks": {"4": "/home/me/lock"}}, RANKS) == {4: "/home/me/lock"}
    assert messages.locks({}, RANKS) == {}
    assert messages.gone({"gone": [4, 7]}, RANKS) == [4, 7]
    assert messages.ends({"ranks": {"4": None, "7": 255}}, RANKS) == {4: None, 7: 255}
    assert messages.stacks({"ranks": {"4": "Thread"}}, RANKS) == {4: "Thread"}
    assert messages.signal_name({"signal": "SIGUSR2"}) == "SIGUSR2"
    assert messages.extensions({"extensions": "0123456789abcdef0123"}) == "0123456789abcdef0123"
    assert messages.extensions({}) is None
    assert (messages.room({"room": [5, 7]}), messages.room({})) == ((5, 7), None)
    assert messages.interfaces({}) == []
    assert messages.interfaces({"interfaces": [["ib0", "10.9.0.1", "type"]]})[0].name == "ib0"
    assert str(messages.directory({"directory": f"/tmp/hpcrun-{START}-n1"}, START)).endswith("-n1")
    assert messages.failed_files({"failed": ["a: No space left"]}) == ["a: No space left"]
    assert messages.writes({"files": {"a": [4, 7]}}, RANKS) == [("a", 4), ("a", 7)]


LINKS: dict[str, Any] = {
    **{"source": "node", "ports": [["mlx5_0:1", "InfiniBand", "400 Gb/sec (4X NDR)"]]},
    "findings": [{"port": "mlx5_1:1", "kind": "down", "message": "mlx5_1:1 is DOWN"}],
}


def test_the_links_of_a_node() -> None:
    assert _ready()[0].adapters is None
    assert _ready(adapters=LINKS)[0].adapters == LINKS


@pytest.mark.parametrize(
    "changes",
    [
        *({"source": "rumour"}, {"more": 1}, {"ports": None}, {"ports": [["mlx5_0:1"]]}),
        *({"ports": [["a", "b", 7]]}, {"ports": [["a", "b", "c"]] * 129}, {"findings": [{}]}),
        {"findings": [{"kind": "down", "message": "x" * 401}]},
        {"findings": [{"kind": "unheard", "message": "x"}]},
        {"findings": [{"kind": ["down"], "message": "x"}]},
        {"findings": [{"kind": "down", "message": "x", "node": "n2"}]},
        {"findings": [{"kind": "down", "message": "x"}] * 21},
    ],
    ids=lambda changes: str(changes)[:40],
)
def test_links_that_no_sound_agent_reports(changes: dict[str, Any]) -> None:
    with pytest.raises(BadMessage, match="adapters"):
        _ready(adapters={**LINKS, **changes})


@pytest.mark.parametrize(
    "directory", [None, "/tmp/hpcrun-another", f"hpcrun-{START}", f"/a/../hpcrun-{START}", "\0"]
)
def test_a_directory_that_is_no_agents(directory: Any) -> None:
    with pytest.raises(BadMessage):
        messages.directory({"directory": directory}, START)


@pytest.mark.parametrize("files", [None, [], {"a": 4}, {"a": [9]}, {"a": [True]}])
def test_files_that_none_of_a_nodes_ranks_writes(files: Any) -> None:
    with pytest.raises(BadMessage):
        messages.writes({"files": files}, RANKS)


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "n2"},
        {"scratch": "/home/user"},
        {"scratch": f"/tmp/hpcrun-{START}/../attempt-2"},
        {"scratch": f"/tmp/hpcrun-{START}/attempt-1"},
        {"scratch": "/tmp/hpcrun-another0id/attempt-2"},
        {"scratch": "attempt-2"},
        {"scratch": None},
        {"code": "/home/user/code"},
        {"extensions": "/tmp/else"},
        {"interface": "ib0; rm"},
        {"address": "attacker.example"},
        {"address": "10.9.0.1\0"},
        {"hca": "mlx5_0"},
        {"devices": "0"},
        {"ports": 80},
        {"ports": "11000"},
    ],
    ids=str,
)
def test_a_node_is_in_its_own_directory_and_has_an_address(changes: dict[str, Any]) -> None:
    with pytest.raises(BadMessage):
        _ready(**changes)


@pytest.mark.parametrize("port", [None, 0, 65536, -1, True, "10000", 1e4])
def test_the_rendezvous_has_a_port(port: Any) -> None:
    with pytest.raises(BadMessage, match="port"):
        messages.ready({"node": NODE, "port": port}, "n1", START, 2, first=True)


@pytest.mark.parametrize(
    "ranks",
    [
        *({"3": PROGRESS}, {"8": PROGRESS}, {"-4": PROGRESS}, {"04": PROGRESS}, {"x": PROGRESS}),
        *({"4": {**PROGRESS, "phase": 5}}, {"4": {**PROGRESS, "step": 1 << 63}}, {"4": {}}),
        *({"4": {**PROGRESS, "step": 1.0}}, {"4": {**PROGRESS, "more": 1}}, {"4": None}, [], None),
    ],
    ids=str,
)
def test_progress_is_of_the_nodes_own_ranks_and_of_whole_numbers(ranks: Any) -> None:
    with pytest.raises(BadMessage):
        messages.progress({"ranks": ranks}, RANKS)


@pytest.mark.parametrize(
    "programs",
    [
        *({"3": ACTIVITY}, {"4": {**ACTIVITY, "io": -1}}, {"4": {**ACTIVITY, "output": 1.0}}),
        *({"4": {**ACTIVITY, "state": "DD"}}, {"4": {**ACTIVITY, "more": 1}}, {"4": {}}, [], None),
    ],
    ids=str,
)
def test_activity_is_of_the_nodes_own_ranks_and_of_counts(programs: Any) -> None:
    with pytest.raises(BadMessage):
        messages.activity({"programs": programs}, RANKS)


@pytest.mark.parametrize("traffic", [{}, {"fabric": 1}, {"fabric": -1, "storage": 2}, [], 3])
def test_traffic_is_of_counts(traffic: Any) -> None:
    with pytest.raises(BadMessage):
        messages.traffic({"traffic": traffic})


def test_nonsense_is_never_an_exception_of_another_kind() -> None:
    chance = random.Random(17)
    taken = refused = 0
    for _ in range(3000):
        message = json.loads(json.dumps(nonsense(chance, 2)))
        for check in (
            *(messages.progress, messages.log_sizes, messages.stacks, messages.gone),
            *(messages.activity, messages.traffic, messages.locks),
            *(messages.signal_name, messages.extensions, messages.link_trouble),
            *(messages.interfaces, messages.failed_files, messages.room, messages.writes),
            lambda said, _: messages.directory(said, START),
            lambda said, _: messages.ready(said, "n1", START, 2, first=True),
        ):
            arguments = (message, RANKS)[: 1 + (check.__code__.co_argcount > 1)]
            try:
                check(*arguments)  # type: ignore[operator]
                taken += 1
            except BadMessage:
                refused += 1
    assert refused > taken
