"""The supervisor's end of all channels: it listens, and lets the agents of its job in.

Whoever can reach the port may connect, so a connection costs little until it is known: a bounded
number, size and time, in which it can do nothing but prove itself. Where there are too many, those
go first that have not shown to know the secret, the oldest of the host that has the most of them:
so many strangers keep no agent out.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import selectors
import socket
import time
from collections import Counter
from collections.abc import Collection
from typing import Any

from hpcrun.run.protocol.channel import (
    ACCEPTED,
    AGENT,
    GREETING_MOST,
    GREETING_TIMEOUT,
    PROOF,
    REFUSED,
    SUPERVISOR,
    Channel,
    endpoint,
    listen,
)
from hpcrun.run.protocol.job_secret import JobSecret
from hpcrun.run.protocol.output import say

STRANGERS_MOST = 256
# What `Switchboard.poll` reports itself; no agent can say this very object.
GONE: dict[str, Any] = {"type": "gone"}
# Connections that are taken in one turn, so that agents have theirs between them.
_AT_ONCE = 64
# Seconds for which an agent that takes nothing may hold up the others.
_PATIENCE = 1.0
# Nodes beyond which messages are gathered for so many seconds; seconds between looks for channels
# that could not be sent to.
_FEW, _GATHER, _SWEEP = 16, 0.02, 0.5


class _Stranger:
    """A connection that is not known yet; ``greeted`` once it has shown to know the secret."""

    def __init__(self, connection: socket.socket, host: str) -> None:
        self.socket, self.host = connection, host
        self.deadline = time.monotonic() + GREETING_TIMEOUT
        self.line = b""
        # The node, its number and ours.
        self.greeted: tuple[str, str, str] | None = None


class Switchboard:
    """One channel for each of these nodes, once its agent has proved itself."""

    def __init__(self, address: str, secret: JobSecret, nodes: Collection[str]) -> None:
        self._secret, self._nodes = secret, frozenset(nodes)
        self._server = listen(address, backlog=1024)
        self._server.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)
        # Numbers of agents, each of which is good for one greeting.
        self._used: set[str] = set()
        # The oldest first.
        self._strangers: dict[socket.socket, _Stranger] = {}
        self._has_warned = False
        self._sweep_at = 0.0
        self.channels: dict[str, Channel] = {}
        self.address = endpoint(address, self._server.getsockname()[1])

    def poll(self, timeout: float) -> list[tuple[str, dict[str, Any]]]:
        """Return the (node, message) pairs that arrive within ``timeout`` seconds.

        A channel that closed gives ``(node, GONE)`` once.
        """
        found: list[tuple[str, dict[str, Any]]] = []
        if len(self.channels) > _FEW and not self._strangers:
            # Each turn costs something, so that messages of many nodes are taken in together.
            time.sleep(min(_GATHER, timeout))
        heard: list[str] = []
        for key, _ in self._selector.select(max(0.0, timeout - _GATHER)):
            if key.fileobj is self._server:
                self._accept()
            elif isinstance(key.data, _Stranger):
                # It may have been dropped for another in this very turn.
                if key.data.socket in self._strangers:
                    self._listen(key.data)
            elif self.channels.get(key.data) is key.fileobj:
                channel = self.channels[key.data]
                heard.append(key.data)
                found.extend((key.data, message) for message in channel.receive(timeout=0))
        now = time.monotonic()
        for stranger in [*self._strangers.values()]:
            if stranger.deadline > now:
                break
            self._drop(stranger)
        if now >= self._sweep_at:
            # One that takes nothing any more cannot be read, and is heard of no more.
            self._sweep_at, heard = now + _SWEEP, [*self.channels]
        for node in heard:
            channel = self.channels[node]
            if channel.closed:
                del self.channels[node]
                self._selector.unregister(channel)
                channel.close()
                found.append((node, GONE))
        return found

    def send(self, node: str, message: dict[str, Any]) -> bool:
        """Send to one node's agent; return False if it is gone."""
        channel = self.channels.get(node)
        return channel is not None and channel.send(message)

    def unacknowledged(self, node: str) -> float:
        """Return `Channel.unacknowledged` of a node's; 0 without a channel."""
        channel = self.channels.get(node)
        return 0.0 if channel is None else channel.unacknowledged()

    def broadcast(self, message: dict[str, Any]) -> None:
        """Send to every agent, from any thread."""
        text = json.dumps(message).encode()
        for channel in list(self.channels.values()):
            channel.send_text(text)

    def close(self) -> None:
        for stranger in [*self._strangers.values()]:
            self._drop(stranger)
        for channel in self.channels.values():
            channel.close()
        self._selector.close()
        self._server.close()

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, (host, *_) = self._server.accept()
            except BlockingIOError:
                return
            except OSError:
                # There may be no descriptor left.
                self._make_room()
                return
            if len(self._strangers) >= STRANGERS_MOST:
                self._make_room()
            connection.setblocking(False)
            stranger = self._strangers[connection] = _Stranger(connection, host)
            self._selector.register(connection, selectors.EVENT_READ, stranger)
            # An agent's first words are there by now.
            self._listen(stranger)

    def _make_room(self) -> None:
        """Drop one of the strangers, if there are any."""
        waiting = [one for one in self._strangers.values() if one.greeted is None]
        waiting = waiting or [*self._strangers.values()]
        if waiting:
            host = Counter(one.host for one in waiting).most_common(1)[0][0]
            self._drop(next(one for one in waiting if one.host == host))

    def _drop(self, stranger: _Stranger) -> None:
        self._selector.unregister(stranger.socket)
        del self._strangers[stranger.socket]
        stranger.socket.close()

    def _listen(self, stranger: _Stranger) -> None:
        """Take in what a stranger says, answer or let it in, and drop it if it is no agent."""
        try:
            data = stranger.socket.recv(GREETING_MOST + 1 - len(stranger.line))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        stranger.line += data
        if data and b"\n" not in data and len(stranger.line) <= GREETING_MOST:
            return
        line, stranger.line = stranger.line, b""
        if data and line.find(b"\n") == len(line) - 1:
            words = line[:-1].decode("ascii", "replace").split(" ")
            with contextlib.suppress(OSError):
                if stranger.greeted is not None and self._proves(stranger, words):
                    self._let_in(stranger)
                    return
                if stranger.greeted is None and self._knows(stranger, words):
                    return
        if data and not self._has_warned:
            self._has_warned = True
            say(f"a connection from {stranger.host} that is no agent's was closed, as others are")
        self._drop(stranger)

    def _knows(self, stranger: _Stranger, words: list[str]) -> bool:
        """Answer a first line, if it is by somebody who knows the secret, and no repetition."""
        if len(words) != 4 or words[0] != AGENT or words[1] not in self._nodes:
            return False
        _, node, theirs, digest = words
        right = _same(digest, self._secret.digest(AGENT, node, theirs))
        if not right or theirs in self._used:
            return False
        self._used.add(theirs)
        mine = secrets.token_hex(16)
        stranger.greeted = node, theirs, mine
        answer = f"{SUPERVISOR} {mine} {self._secret.digest(SUPERVISOR, *stranger.greeted)}\n"
        # A new connection has room for it.
        return stranger.socket.send(answer.encode()) == len(answer)

    def _proves(self, stranger: _Stranger, words: list[str]) -> bool:
        """Check the second line, which nobody can have recorded."""
        assert stranger.greeted is not None
        proof = self._secret.digest(PROOF, *stranger.greeted)
        return len(words) == 2 and words[0] == PROOF and _same(words[1], proof)

    def _let_in(self, stranger: _Stranger) -> None:
        """Make a channel of it; a second one for a node only hears that there is one."""
        assert stranger.greeted is not None
        node = stranger.greeted[0]
        channel = Channel(
            stranger.socket,
            self._secret.key(SUPERVISOR, *stranger.greeted),
            self._secret.key(AGENT, *stranger.greeted),
            _PATIENCE,
        )
        self._selector.unregister(stranger.socket)
        del self._strangers[stranger.socket]
        if node in self.channels:
            channel.send(REFUSED)
            channel.close()
        elif channel.send(ACCEPTED):
            self._selector.register(channel, selectors.EVENT_READ, node)
            self.channels[node] = channel
        else:
            channel.close()


def _same(given: str, right: str) -> bool:
    return hmac.compare_digest(given.encode(), right.encode())
