"""Agents that are let in, over real sockets. The attacks are in tests/security/test_ports.py."""

from __future__ import annotations

import fcntl
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from hpcrun.run.protocol.channel import Channel, RefusedError
from hpcrun.run.protocol.job_secret import JobSecret
from hpcrun.run.protocol.switchboard import Switchboard

NODES = [f"n{number}" for number in range(200)]
SECRET = JobSecret.new()

Messages = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def board() -> Iterator[Switchboard]:
    switchboard = Switchboard("127.0.0.1", SECRET, NODES)
    yield switchboard
    switchboard.close()


def _connect(board: Switchboard, *nodes: str) -> list[Channel]:
    """The agents of these nodes, which connect while the supervisor turns."""
    found: list[Channel] = []

    def connect() -> None:
        found.extend(Channel.connect(board.address, node, SECRET, timeout=10) for node in nodes)

    thread = threading.Thread(target=connect)
    thread.start()
    while thread.is_alive():
        assert board.poll(0.01) == []
    assert len(found) == len(nodes)
    return found


def _poll(board: Switchboard, count: int, timeout: float = 5.0) -> Messages:
    """Messages until there are so many."""
    found: Messages = []
    deadline = time.monotonic() + timeout
    while len(found) < count:
        assert time.monotonic() < deadline, found
        found += board.poll(0.05)
    return found


def test_both_ways(board: Switchboard) -> None:
    (agent,) = _connect(board, "n1")
    assert agent.send({"type": "hello"})
    assert _poll(board, 1) == [("n1", {"type": "hello"})]
    assert board.send("n1", {"type": "prepare"})
    assert agent.receive(5) == [{"type": "prepare"}]
    agent.close()


def test_who_leaves_is_reported_once(board: Switchboard) -> None:
    (agent,) = _connect(board, "n1")
    agent.send({"type": "last"})
    agent.close()
    assert _poll(board, 2) == [("n1", {"type": "last"}), ("n1", {"type": "gone"})]
    assert board.poll(0.1) == []
    assert not board.send("n1", {"type": "prepare"})


def test_a_node_that_has_left_may_come_back(board: Switchboard) -> None:
    """One that was cut off, and asks whether the supervisor lives."""
    (agent,) = _connect(board, "n1")
    agent.close()
    assert _poll(board, 1) == [("n1", {"type": "gone"})]
    with closing(_connect(board, "n1")[0]) as again:
        assert board.send("n1", {"type": "dismiss"})
        assert again.receive(5) == [{"type": "dismiss"}]


def test_a_second_agent_of_a_node_hears_that_there_is_one(board: Switchboard) -> None:
    (agent,) = _connect(board, "n1")
    refused: list[RefusedError] = []

    def connect() -> None:
        try:
            Channel.connect(board.address, "n1", SECRET, timeout=10)
        except RefusedError as error:
            refused.append(error)

    thread = threading.Thread(target=connect)
    thread.start()
    while thread.is_alive():
        assert board.poll(0.01) == []
    assert str(refused[0]) == "the supervisor has an agent of node n1 already"
    assert board.send("n1", {"type": "prepare"})
    assert agent.receive(5) == [{"type": "prepare"}]
    agent.close()


def test_many_agents(board: Switchboard) -> None:
    agents = dict(zip(NODES, _connect(board, *NODES), strict=True))
    for node, agent in agents.items():
        assert board.send(node, {"type": "prepare", "node": node})
        assert agent.receive(5) == [{"type": "prepare", "node": node}]
    for agent in agents.values():
        agent.close()
    gone = [(node, {"type": "gone"}) for node in NODES]
    assert sorted(_poll(board, 200), key=str) == sorted(gone, key=str)


def test_an_agent_whose_descriptors_have_high_numbers(
    board: Switchboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2048)), hard))
    connect = socket.create_connection

    def high(*arguments: Any, **options: Any) -> socket.socket:
        with connect(*arguments, **options) as made:
            return socket.socket(fileno=fcntl.fcntl(made, fcntl.F_DUPFD_CLOEXEC, 1100))

    monkeypatch.setattr(socket, "create_connection", high)
    (agent,) = _connect(board, "n1")
    assert board.send("n1", {"type": "prepare"})
    assert agent.receive(5) == [{"type": "prepare"}]
    agent.close()


def test_hanging_up_is_seen_by_the_agents(board: Switchboard) -> None:
    (agent,) = _connect(board, "n1")
    board.close()
    assert agent.receive(5) == []
    assert agent.closed
    agent.close()
