"""Channels between supervisor and agents: JSON lines over TCP, with a token."""

from __future__ import annotations

import json
import selectors
import socket
import threading
import time
from typing import Any

from hpcrun.errors import HpcrunError

TOKEN_VARIABLE = "HPCRUN_TOKEN"
_LONGEST = 1 << 20


class Channel:
    """One end of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # A second descriptor with its own timeout: heartbeats are sent from a thread.
        self._sender = connection.dup()
        self._sender.settimeout(10)
        self._sending = threading.Lock()
        self._buffer = b""
        self.closed = False

    @classmethod
    def connect(cls, address: str, *, timeout: float = 60.0) -> Channel:
        """Connect to ``HOST:PORT``, with retries until the timeout (seconds) has passed.

        A supervisor listens before it starts agents, so a refusal means that it has ended. Raises
        HpcrunError if nobody answers there.
        """
        host, _, port = address.rpartition(":")
        deadline = time.monotonic() + timeout
        while True:
            try:
                return cls(socket.create_connection((host, int(port)), timeout=10))
            except OSError as error:
                if time.monotonic() > deadline or isinstance(error, ConnectionRefusedError):
                    raise HpcrunError(
                        f"the supervisor at {address} cannot be reached: {error}",
                        hint="name the management network in the profile's "
                        "fabric.management_interface",
                    ) from error
                time.sleep(0.5)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: dict[str, Any]) -> bool:
        """Send a message, from any thread; return False if the other side is gone."""
        try:
            with self._sending:
                self._sender.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self.closed = True
            return False
        return True

    def receive(self, timeout: float | None = None) -> list[dict[str, Any]]:
        """Return the messages that arrive within ``timeout`` seconds (None: wait for ever).

        Sets ``closed`` when the other side is gone.
        """
        if b"\n" not in self._buffer:
            self._read(timeout)
        *lines, self._buffer = self._buffer.split(b"\n")
        if len(self._buffer) > _LONGEST:
            self.closed = True
            return []
        return [message for line in lines if (message := _parse(line)) is not None]

    def hung_up(self) -> bool:
        """Check whether the other side is gone or dismisses this one; messages stay unread."""
        self._read(0)
        return self.closed or b'"dismiss"' in self._buffer

    def _read(self, timeout: float | None) -> None:
        try:
            self._socket.settimeout(timeout)
            data = self._socket.recv(65536)
        except (TimeoutError, BlockingIOError):
            return
        except OSError:
            data = b""
        self._buffer += data
        if not data:
            self.closed = True

    def close(self) -> None:
        self.closed = True
        self._sender.close()
        self._socket.close()


class Switchboard:
    """The supervisor's end: listens, checks tokens, keeps one channel for each node."""

    def __init__(self, address: str, token: str) -> None:
        self._token = token
        self._server = socket.create_server((address, 0), backlog=1024)
        self._server.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)
        self._strangers: list[Channel] = []
        self.channels: dict[str, Channel] = {}
        self.address = f"{address}:{self._server.getsockname()[1]}"

    def poll(self, timeout: float) -> list[tuple[str, dict[str, Any]]]:
        """Return the (node, message) pairs that arrive within ``timeout`` seconds.

        A channel that closed gives ``(node, {"type": "gone"})`` once.
        """
        found: list[tuple[str, dict[str, Any]]] = []
        for key, _ in self._selector.select(timeout):
            if key.fileobj is self._server:
                connection, _ = self._server.accept()
                channel = Channel(connection)
                self._selector.register(channel, selectors.EVENT_READ, channel)
                self._strangers.append(channel)
                continue
            channel = key.data
            for message in channel.receive(timeout=0):
                node = self._sender(channel, message)
                if node is not None:
                    found.append((node, message))
            if channel.closed:
                found.extend((node, {"type": "gone"}) for node in self._forget(channel))
        return found

    def send(self, node: str, message: dict[str, Any]) -> bool:
        """Send to one node's agent; return False if it is gone."""
        channel = self.channels.get(node)
        return channel is not None and channel.send(message)

    def broadcast(self, message: dict[str, Any]) -> None:
        """Send to every agent, from any thread."""
        for channel in list(self.channels.values()):
            channel.send(message)

    def close(self) -> None:
        for channel in [*self._strangers, *self.channels.values()]:
            channel.close()
        self._selector.close()
        self._server.close()

    def _sender(self, channel: Channel, message: dict[str, Any]) -> str | None:
        """Return the node that a message is from; the first of a channel must carry the token."""
        if channel in self._strangers:
            self._strangers.remove(channel)
            node = message.get("node")
            if message.get("token") != self._token or not isinstance(node, str):
                self._selector.unregister(channel)
                channel.close()
                return None
            self.channels[node] = channel
            return node
        return next((node for node, known in self.channels.items() if known is channel), None)

    def _forget(self, channel: Channel) -> list[str]:
        """Drop a closed channel and return its nodes."""
        if channel in self._strangers:
            self._strangers.remove(channel)
        gone = [node for node, known in self.channels.items() if known is channel]
        for node in gone:
            del self.channels[node]
        if channel.fileno() >= 0:
            self._selector.unregister(channel)
            channel.close()
        return gone


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) else None
