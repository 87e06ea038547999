"""Messages between a supervisor and its agents, over real sockets."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from hpcrun.errors import HpcrunError
from hpcrun.run.protocol.channel import Channel, Switchboard

TOKEN = "right"

Messages = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def board() -> Iterator[Switchboard]:
    switchboard = Switchboard("127.0.0.1", TOKEN)
    yield switchboard
    switchboard.close()


def _connect(board: Switchboard) -> Channel:
    return Channel.connect(board.address, timeout=5)


def _raw(board: Switchboard) -> socket.socket:
    host, _, port = board.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=5)


def _hello(node: str, token: str = TOKEN) -> dict[str, str]:
    return {"type": "hello", "node": node, "token": token}


def _poll(board: Switchboard, count: int, timeout: float = 5.0) -> Messages:
    """Messages until there are so many."""
    found: Messages = []
    deadline = time.monotonic() + timeout
    while len(found) < count:
        assert time.monotonic() < deadline, found
        found += board.poll(0.05)
    return found


def _quiet(board: Switchboard, rounds: int = 4) -> Messages:
    """Whatever else comes."""
    return [message for _ in range(rounds) for message in board.poll(0.05)]


def _hung_up(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_both_ways(board: Switchboard) -> None:
    agent = _connect(board)
    assert agent.send(_hello("n1"))
    assert _poll(board, 1) == [("n1", _hello("n1"))]
    assert board.send("n1", {"type": "prepare", "text": "line\nbreak ü"})
    assert agent.receive(5) == [{"type": "prepare", "text": "line\nbreak ü"}]
    agent.send({"type": "ready"})
    assert _poll(board, 1) == [("n1", {"type": "ready"})]
    agent.close()


def test_a_wrong_token_is_hung_up_on(board: Switchboard) -> None:
    for first in (_hello("n1", "wrong"), {"type": "hello", "node": "n1"}, {"type": "ready"}):
        with _raw(board) as stranger:
            stranger.sendall(json.dumps(first).encode() + b"\n" + b'{"type":"ready"}\n')
            assert _quiet(board) == []
            assert _hung_up(stranger)
    assert board.channels == {}


def test_a_token_without_a_node_is_hung_up_on(board: Switchboard) -> None:
    with _raw(board) as stranger:
        stranger.sendall(json.dumps({"token": TOKEN, "node": 7}).encode() + b"\n")
        assert _quiet(board) == []
        assert _hung_up(stranger)


def test_after_a_stranger_agents_are_still_heard(board: Switchboard) -> None:
    with _raw(board) as stranger:
        stranger.sendall(b'{"token":"wrong","node":"n1"}\n')
        agent = _connect(board)
        agent.send(_hello("n2"))
        assert _poll(board, 1) == [("n2", _hello("n2"))]
        agent.close()


def test_a_message_in_pieces_is_one_message(board: Switchboard) -> None:
    line = json.dumps(_hello("n1")).encode() + b"\n"
    with _raw(board) as agent:
        for index in range(0, len(line), 7):
            agent.sendall(line[index : index + 7])
            early = board.poll(0.01)
            if early:
                assert index + 7 >= len(line)
        found = early or _poll(board, 1)
    assert found == [("n1", _hello("n1"))]


def test_several_messages_in_one_piece_are_several(board: Switchboard) -> None:
    with _raw(board) as agent:
        lines = [_hello("n1"), {"type": "a"}, {"type": "b"}]
        agent.sendall(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
        found = _poll(board, 3)
    assert [message["type"] for _, message in found] == ["hello", "a", "b"]


def test_lines_that_are_not_messages_are_passed_over(board: Switchboard) -> None:
    with _raw(board) as agent:
        agent.sendall(json.dumps(_hello("n1")).encode() + b'\n{torn\n[1]\n\n"x"\n{"type":"a"}\n')
        assert [message["type"] for _, message in _poll(board, 2)] == ["hello", "a"]


def test_who_leaves_is_reported_once(board: Switchboard) -> None:
    agent = _connect(board)
    agent.send(_hello("n1"))
    _poll(board, 1)
    agent.send({"type": "last"})
    agent.close()
    assert _poll(board, 2) == [("n1", {"type": "last"}), ("n1", {"type": "gone"})]
    assert _quiet(board) == []
    assert not board.send("n1", {"type": "prepare"})


def test_a_torn_last_message_is_no_message(board: Switchboard) -> None:
    with _raw(board) as agent:
        agent.sendall(json.dumps(_hello("n1")).encode() + b'\n{"type":"torn"')
        _poll(board, 1)
    assert _poll(board, 1) == [("n1", {"type": "gone"})]


def test_a_stranger_that_leaves_is_nobody(board: Switchboard) -> None:
    with _raw(board):
        assert _quiet(board) == []
    assert _quiet(board) == []


def test_a_line_without_end_is_not_kept(board: Switchboard) -> None:
    """Whoever fills the supervisor's memory is hung up on, and the others are heard."""
    flood = _raw(board)
    flood.sendall(json.dumps(_hello("n1")).encode() + b"\n")
    _poll(board, 1)
    flood.setblocking(False)
    sent = 0
    found: Messages = []
    deadline = time.monotonic() + 20
    while not found and time.monotonic() < deadline:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            sent += flood.send(b"x" * 65536)
        found = board.poll(0.001)
    flood.close()
    assert found == [("n1", {"type": "gone"})]
    assert sent < 8 << 20
    agent = _connect(board)
    agent.send(_hello("n2"))
    assert _poll(board, 1) == [("n2", _hello("n2"))]
    agent.close()


def test_many_agents(board: Switchboard) -> None:
    agents = {f"n{number}": _connect(board) for number in range(200)}
    for node, agent in agents.items():
        agent.send(_hello(node))
    assert {node for node, _ in _poll(board, 200)} == set(agents)
    for node in agents:
        assert board.send(node, {"type": "prepare", "node": node})
    for node, agent in agents.items():
        assert agent.receive(5) == [{"type": "prepare", "node": node}]
    for agent in agents.values():
        agent.close()
    assert {node for node, message in _poll(board, 200) if message["type"] == "gone"} == set(agents)


def test_hanging_up_is_seen_by_the_agents(board: Switchboard) -> None:
    agent = _connect(board)
    agent.send(_hello("n1"))
    _poll(board, 1)
    board.close()
    assert agent.receive(5) == []
    assert agent.closed
    agent.close()


def test_a_dismissal_is_read_although_a_send_has_failed(board: Switchboard) -> None:
    """The supervisor leaves without reading what the agent says at that moment."""
    agent = _connect(board)
    agent.send(_hello("n1"))
    _poll(board, 1)
    agent.send({"type": "alive"})
    board.broadcast({"type": "dismiss"})
    board.close()
    deadline = time.monotonic() + 5
    while not agent.closed and time.monotonic() < deadline:
        agent.send({"type": "alive"})
    assert agent.closed
    assert agent.receive(timeout=0) == [{"type": "dismiss"}]
    agent.close()


def test_an_agent_at_work_sees_that_it_was_hung_up_on(board: Switchboard) -> None:
    agent = _connect(board)
    agent.send(_hello("n1"))
    _poll(board, 1)
    assert not agent.hung_up()
    board.send("n1", {"type": "prepare"})
    assert not agent.hung_up()
    assert agent.receive(5) == [{"type": "prepare"}]
    assert not agent.hung_up()
    board.close()
    time.sleep(0.1)
    assert agent.hung_up()
    agent.close()


def test_receive_waits_no_longer_than_it_is_told(board: Switchboard) -> None:
    agent = _connect(board)
    began = time.monotonic()
    assert agent.receive(0.1) == []
    assert 0.05 < time.monotonic() - began < 20
    assert not agent.closed
    agent.close()


def test_where_nobody_answers_the_address_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(HpcrunError, match=f"supervisor at 127.0.0.1:{port} cannot be reached") as e:
        Channel.connect(f"127.0.0.1:{port}", timeout=0.1)
    assert "management_interface" in str(e.value)
