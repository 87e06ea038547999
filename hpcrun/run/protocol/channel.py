"""Channels between supervisor and agents: authenticated JSON lines over TCP.

Both know the job's secret (`hpcrun.run.protocol.job_secret`) and prove it without sending it, with
an HMAC over fresh numbers of both, the node's name, and who speaks::

    agent       hpcrun-agent NODE NUMBER DIGEST       it knows the secret; others are hung up on
    supervisor  hpcrun-supervisor NUMBER DIGEST       it answers to the agent's number
    agent       hpcrun-proof DIGEST                   it answers to the supervisor's number

Every later line is ``MAC JSON``. The MAC covers the line's place in its direction, with a key of
this connection and direction: a line that was changed, repeated or put in ends the channel. The
lines are not encrypted.
"""

from __future__ import annotations

import hmac
import json
import os
import socket
import struct
import threading
import time
from typing import Any

from hpcrun.errors import HpcrunError
from hpcrun.run.protocol.job_secret import JobSecret

# Bytes of a line before a peer is known, and after.
GREETING_MOST = 512
_MOST = 2 << 20
# Seconds for the greetings.
GREETING_TIMEOUT = 10.0
_MAC_LENGTH = 32
# Of `struct tcp_info`: segments without an acknowledgement, milliseconds since the last one.
_TCP_INFO = struct.Struct("=24xI28xI")

AGENT, SUPERVISOR, PROOF = "hpcrun-agent", "hpcrun-supervisor", "hpcrun-proof"
ACCEPTED: dict[str, Any] = {"type": "accepted"}
REFUSED: dict[str, Any] = {"type": "refused"}


class RefusedError(HpcrunError):
    """The supervisor is the right one, and has an agent of this node already."""


def listen(address: str, *, backlog: int) -> socket.socket:
    """Listen on a port of an IPv4 or IPv6 address, which the kernel chooses.

    Raises OSError if the address is not this node's.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, 0), family=family, backlog=backlog)


def endpoint(address: str, port: int) -> str:
    """Return ``HOST:PORT``, an IPv6 address in brackets."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


class Channel:
    """One end of a connection whose other end is known; made by `connect` or a switchboard.

    ``mine`` and ``theirs`` are the keys of the two directions, ``patience`` the seconds after which
    a peer that takes nothing is given up.
    """

    def __init__(
        self, connection: socket.socket, mine: bytes, theirs: bytes, patience: float = 10.0
    ) -> None:
        self._socket = connection
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # A second descriptor with its own timeout: heartbeats are sent from a thread.
        self._sender = connection.dup()
        self._sender.settimeout(patience)
        self._sending = threading.Lock()
        self._mine, self._theirs = mine, theirs
        self._sent = self._received = 0
        self._sent_at = 0.0
        self._timeout = connection.gettimeout()
        self._buffer = bytearray()
        self._messages: list[dict[str, Any]] = []
        self.closed = False

    @classmethod
    def connect(
        cls, address: str, node: str, secret: JobSecret, *, timeout: float = 60.0
    ) -> Channel:
        """Connect to ``HOST:PORT`` as a node's agent, with retries until the timeout has passed.

        A supervisor listens before it starts agents, so a refusal means that it has ended. Raises
        HpcrunError if nobody answers there, or not the supervisor.
        """
        deadline = time.monotonic() + timeout
        while True:
            try:
                return cls.open(address, node, secret)
            except OSError as error:
                if time.monotonic() > deadline or isinstance(error, ConnectionRefusedError):
                    raise HpcrunError(
                        f"the supervisor at {address} cannot be reached: {error}",
                        hint="name the management network in the profile's "
                        "fabric.management_interface",
                    ) from error
                time.sleep(0.5)

    @classmethod
    def open(
        cls,
        address: str,
        node: str,
        secret: JobSecret,
        *,
        reach: float = 10.0,
        patience: float = GREETING_TIMEOUT,
    ) -> Channel:
        """Connect once: within ``reach`` seconds, and be greeted within ``patience``.

        Raises OSError if nobody answers in time: PermissionError if it is not the supervisor,
        ConnectionError if it hung up; RefusedError if it has an agent of this node.
        """
        host, _, port = address.rpartition(":")
        connection = socket.create_connection((host.strip("[]"), int(port)), timeout=reach)
        try:
            return cls._introduce(connection, node, secret, time.monotonic() + patience)
        except BaseException:
            connection.close()
            raise

    @classmethod
    def _introduce(
        cls, connection: socket.socket, node: str, secret: JobSecret, deadline: float
    ) -> Channel:
        mine = os.urandom(16).hex()
        hello = f"{AGENT} {node} {mine} {secret.digest(AGENT, node, mine)}\n"
        connection.sendall(hello.encode())
        words = _greeting(connection, deadline).split(" ")
        theirs = words[1] if len(words) == 3 else ""
        numbers = node, mine, theirs
        if words != [SUPERVISOR, theirs, words[-1]] or not hmac.compare_digest(
            words[-1].encode(), secret.digest(SUPERVISOR, *numbers).encode()
        ):
            raise PermissionError("what answers there does not know the job's secret")
        connection.sendall(f"{PROOF} {secret.digest(PROOF, *numbers)}\n".encode())
        channel = cls(connection, secret.key(AGENT, *numbers), secret.key(SUPERVISOR, *numbers))
        try:
            while not channel._messages:
                channel._read(max(0.0, deadline - time.monotonic()))
                if channel.closed:
                    raise ConnectionResetError("it hung up")
                if time.monotonic() > deadline:
                    raise TimeoutError("it does not answer")
            if channel._messages.pop(0) != ACCEPTED:
                raise RefusedError(f"the supervisor has an agent of node {node} already")
        except BaseException:
            channel.close()
            raise
        return channel

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: dict[str, Any]) -> bool:
        """Send a message, from any thread; return False if the other side is gone."""
        return self.send_text(json.dumps(message).encode())

    def send_text(self, text: bytes) -> bool:
        """Send a message that is JSON already, as `send`: one that goes over many channels."""
        try:
            with self._sending:
                mac = _mac(self._mine, self._sent, text)
                self._sent += 1
                self._sender.sendall(b"%s %s\n" % (mac, text))
                self._sent_at = time.monotonic()
        except OSError:
            self.closed = True
            return False
        return True

    def quiet(self) -> float:
        """Return the seconds since the last message was sent."""
        return time.monotonic() - self._sent_at

    def receive(self, timeout: float | None = None) -> list[dict[str, Any]]:
        """Return the messages that arrive within ``timeout`` seconds (None: wait for ever).

        Each has a text as its ``type``. Sets ``closed`` when the other side is gone, or says what
        the other side of this channel cannot have said.
        """
        if not self._messages:
            self._read(timeout)
        found, self._messages = self._messages, []
        return found

    def unacknowledged(self) -> float:
        """Return the seconds in which the other side's kernel has not acknowledged what was sent.

        0 if it has, and where this kernel does not tell. See Linux's ``struct tcp_info``.
        """
        try:
            told = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
            waiting, last = _TCP_INFO.unpack(told)
        except (OSError, struct.error):
            return 0.0
        return last / 1000 if waiting else 0.0

    def hung_up(self) -> bool:
        """Check whether the other side is gone or dismisses this one; messages stay unread."""
        self._read(0)
        return self.closed or any(message["type"] == "dismiss" for message in self._messages)

    def _read(self, timeout: float | None) -> None:
        try:
            if timeout != self._timeout:
                self._socket.settimeout(timeout)
                self._timeout = timeout
            data = self._socket.recv(65536)
        except (TimeoutError, BlockingIOError):
            return
        except OSError:
            data = b""
        if not data:
            self.closed = True
        self._buffer += data
        if b"\n" in data:
            *lines, rest = self._buffer.split(b"\n")
            self._buffer = rest
            for line in lines:
                message = self._parse(bytes(line))
                if message is None:
                    self.closed = True
                    return
                self._messages.append(message)
        if len(self._buffer) > _MOST:
            self.closed = True

    def _parse(self, line: bytes) -> dict[str, Any] | None:
        """Return the message of the next line; None if it is none of the other side's."""
        mac, _, text = line.partition(b" ")
        if not hmac.compare_digest(mac, _mac(self._theirs, self._received, text)):
            return None
        self._received += 1
        try:
            message = json.loads(text)
        except (ValueError, RecursionError):
            return None
        valid = isinstance(message, dict) and isinstance(message.get("type"), str)
        return message if valid else None

    def close(self) -> None:
        self.closed = True
        with self._sending:
            self._sender.close()
        self._socket.close()


def _mac(key: bytes, place: int, text: bytes) -> bytes:
    return hmac.digest(key, b"%d %s" % (place, text), "sha256").hex()[:_MAC_LENGTH].encode()


def _greeting(connection: socket.socket, deadline: float) -> str:
    """Return a line of who is not known yet, byte by byte, so that nothing after it is lost."""
    line = b""
    while not line.endswith(b"\n"):
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            part = connection.recv(1)
        except TimeoutError as error:
            raise TimeoutError("it does not answer") from error
        if not part:
            raise ConnectionResetError("it hung up")
        line += part
        if len(line) > GREETING_MOST:
            raise PermissionError("what answers there is no supervisor")
    return line[:-1].decode("ascii", "replace")
