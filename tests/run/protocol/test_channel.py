"""Messages over a channel, once both sides are known. Who is not known: `test_switchboard`."""

from __future__ import annotations

import ctypes
import json
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest

from hpcrun.errors import HpcrunError
from hpcrun.run.protocol.channel import Channel, listen
from hpcrun.run.protocol.job_secret import JobSecret
from tests.support.waiting import until

MINE, THEIRS = b"1" * 32, b"2" * 32


@pytest.fixture
def pair() -> Iterator[tuple[Channel, Channel]]:
    first, second = socket.socketpair()
    ends = Channel(first, MINE, THEIRS), Channel(second, THEIRS, MINE)
    yield ends
    for end in ends:
        end.close()


def _line(place: int, message: Any, key: bytes = THEIRS) -> bytes:
    """The line that a peer sends with a key, taken from a channel of our own."""
    out, end = socket.socketpair()
    with out, end:
        channel = Channel(end, key, MINE)
        channel._sent = place
        channel.send(message)
        found = out.recv(65536)
        channel.close()
    return found


@pytest.fixture
def raw() -> Iterator[tuple[socket.socket, Channel]]:
    """A peer that writes whatever it wants, and the channel that reads it."""
    peer, mine = socket.socketpair()
    channel = Channel(mine, MINE, THEIRS)
    yield peer, channel
    channel.close()
    peer.close()


def test_both_ways(pair: tuple[Channel, Channel]) -> None:
    agent, supervisor = pair
    for place in range(3):
        assert agent.send({"type": "ready", "place": place})
        assert supervisor.receive(5) == [{"type": "ready", "place": place}]
        assert supervisor.send({"type": "prepare", "text": "line\nbreak ü"})
        assert agent.receive(5) == [{"type": "prepare", "text": "line\nbreak ü"}]


def test_a_message_in_pieces_is_one_message(raw: tuple[socket.socket, Channel]) -> None:
    peer, channel = raw
    line = _line(0, {"type": "a", "text": "b" * 40})
    for index in range(0, len(line), 7):
        assert channel.receive(0) == []
        peer.sendall(line[index : index + 7])
    assert [message["type"] for message in channel.receive(5)] == ["a"]


def test_several_messages_in_one_piece_are_several(raw: tuple[socket.socket, Channel]) -> None:
    peer, channel = raw
    peer.sendall(_line(0, {"type": "a"}) + _line(1, {"type": "b"}) + b"torn")
    assert [message["type"] for message in channel.receive(5)] == ["a", "b"]
    assert not channel.closed


@pytest.mark.parametrize(
    "lines",
    [
        [_line(0, {"type": "a"}), _line(0, {"type": "a"})],
        [_line(0, {"type": "a"}), _line(2, {"type": "b"})],
        [_line(0, {"type": "a"}), _line(1, {"type": "b"}, MINE)],
        [_line(0, {"type": "a"}), _line(1, {"type": "b"}).replace(b'"b"', b'"c"')],
        [_line(0, {"type": "a"}), b'{"type":"b"}\n'],
        [_line(0, {"type": "a"}), b"\n"],
        [_line(0, {"type": "a"}), _line(1, ["type"])],
        [_line(0, {"type": "a"}), _line(1, {"no": "type"})],
        [_line(0, {"type": "a"}), _line(1, {"type": 7})],
    ],
    ids=[
        *("repeated", "left out", "reflected", "changed", "put in", "empty"),
        *("no object", "no type", "a number as type"),
    ],
)
def test_what_the_peer_has_not_said_ends_the_channel(
    raw: tuple[socket.socket, Channel], lines: list[bytes]
) -> None:
    peer, channel = raw
    peer.sendall(b"".join(lines))
    assert channel.receive(5) == [{"type": "a"}]
    assert channel.closed


def test_brackets_of_a_peer_that_is_known_end_its_channel(
    pair: tuple[Channel, Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, supervisor = pair
    monkeypatch.setattr(json, "dumps", lambda message: "[" * 50_000)
    assert agent.send({})
    while not supervisor.closed:
        assert supervisor.receive(5) == []


def test_a_line_without_end_is_not_kept(raw: tuple[socket.socket, Channel]) -> None:
    peer, channel = raw
    peer.setblocking(False)
    sent = 0
    while not channel.closed and sent < 8 << 20:
        try:
            sent += peer.send(b"x" * 65536)
        except BlockingIOError:
            assert channel.receive(0) == []
    assert channel.closed


def test_who_takes_nothing_is_given_up_in_bounded_time() -> None:
    peer, end = socket.socketpair()
    with peer:
        channel = Channel(end, MINE, THEIRS, patience=0.2)
        began = time.monotonic()
        while channel.send({"type": "a", "text": "b" * 100_000}):
            assert time.monotonic() - began < 20
        assert channel.closed
        channel.close()


def test_hanging_up_is_seen(pair: tuple[Channel, Channel]) -> None:
    agent, supervisor = pair
    supervisor.close()
    assert agent.receive(5) == []
    assert agent.closed


def test_a_dismissal_is_read_although_a_send_has_failed(pair: tuple[Channel, Channel]) -> None:
    """The supervisor leaves without reading what the agent says at that moment."""
    agent, supervisor = pair
    supervisor.send({"type": "dismiss"})
    supervisor.close()
    deadline = time.monotonic() + 5
    while not agent.closed and time.monotonic() < deadline:
        agent.send({"type": "alive"})
    assert agent.closed
    assert agent.receive(timeout=0) == [{"type": "dismiss"}]


def test_an_agent_at_work_sees_that_it_was_hung_up_on(pair: tuple[Channel, Channel]) -> None:
    agent, supervisor = pair
    assert not agent.hung_up()
    supervisor.send({"type": "prepare"})
    assert not agent.hung_up()
    assert agent.receive(5) == [{"type": "prepare"}]
    assert not agent.hung_up()
    supervisor.send({"type": "dismiss"})
    assert agent.hung_up()
    supervisor.close()
    assert agent.hung_up()


def test_receive_waits_no_longer_than_it_is_told(pair: tuple[Channel, Channel]) -> None:
    began = time.monotonic()
    assert pair[0].receive(0.1) == []
    assert 0.05 < time.monotonic() - began < 20
    assert not pair[0].closed


def test_where_nobody_answers_the_address_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(HpcrunError, match=f"supervisor at 127.0.0.1:{port} cannot be reached") as e:
        Channel.connect(f"127.0.0.1:{port}", "n1", JobSecret.new(), timeout=0.1)
    assert "management_interface" in str(e.value)


def _hear_nothing(peer: socket.socket) -> None:
    """Have a peer's kernel drop what arrives, as that of a node without power: a filter of it."""
    drop_all = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
    so_attach_filter = 26
    program = struct.pack("HP", 1, ctypes.addressof(drop_all))
    peer.setsockopt(socket.SOL_SOCKET, so_attach_filter, program)


def test_what_the_peers_kernel_acknowledges_is_known() -> None:
    server = listen("127.0.0.1", backlog=1)
    peer = socket.create_connection(server.getsockname())
    channel = Channel(server.accept()[0], MINE, THEIRS)
    assert channel.unacknowledged() == 0.0
    assert channel.send({"type": "alive"})
    # The peer reads nothing, as one that is stopped; its kernel has it.
    until(lambda: channel.unacknowledged() == 0.0, "an acknowledgement")
    time.sleep(0.3)
    assert channel.unacknowledged() == 0.0
    _hear_nothing(peer)
    assert channel.send({"type": "alive"})
    until(lambda: channel.unacknowledged() > 0.5, "what a lost peer does not acknowledge")
    for one in (channel, peer, server):
        one.close()
    assert channel.unacknowledged() == 0.0
