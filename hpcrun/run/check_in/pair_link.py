"""The bandwidth and latency of TCP between two nodes, over addresses that the caller names.

A node listens with `PairListener` on its own address of the fast interface, another one measures
with `measure`. Both know the job's secret, and prove it before a byte of the measurement is sent.
It takes about a second, the standard library alone and one processor, so that a check at a job's
start can use it as well. One TCP stream does not fill a fast fabric: compare nodes by it.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import socket
import struct
import threading
import time

from hpcrun.run.protocol.channel import listen
from hpcrun.run.protocol.job_secret import JobSecret
from hpcrun.shared_dataclass import dataclass

# Seconds to reach a peer, and of the whole proof; of one direction, and after which it is given up.
REACH, SECONDS, MOST_SECONDS = 4.0, 0.4, 6.0
_CHUNK = 1 << 18
_PINGS = 30
_WORD = "hpcrun-pair"
_NUMBER, _PROOF = 32, 64
# Connections at once that have not proved themselves.
_STRANGERS = 16


@dataclass(frozen=True)
class LinkSpeed:
    """What was measured from one node to another."""

    sends: float
    """Bytes per second from this node to the peer."""
    receives: float
    latency: float
    """Seconds of a round trip of one byte, the least of many."""


class PairListener:
    """Serves measurements of peers at ``address``, until it is closed; ``port`` is free to choose.

    ``seconds`` are those of a direction. Raises OSError if the address is not this node's.
    """

    def __init__(self, address: str, secret: JobSecret, seconds: float = SECONDS) -> None:
        self._secret, self._seconds = secret, seconds
        self._server = listen(address, backlog=16)
        self.port = int(self._server.getsockname()[1])
        self._room = threading.Semaphore(_STRANGERS)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            # An `accept` that waits would take one more, though the descriptor is closed.
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            if not self._room.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, contextlib.suppress(OSError):
                until = _prepare(connection)
                theirs = _exactly(connection, _NUMBER, until)
                mine = os.urandom(16).hex().encode()
                connection.sendall(mine + _digest(self._secret, "server", theirs, mine))
                proof = _exactly(connection, _PROOF, until)
                if not hmac.compare_digest(proof, _digest(self._secret, "client", theirs, mine)):
                    return
                connection.settimeout(REACH)
                _answer_pings(connection)
                rate = _receive(connection)
                connection.sendall(struct.pack("!d", rate))
                _send(connection, self._seconds)
                # The other side has read all of it before this end is closed.
                _drain(connection)
        finally:
            self._room.release()


def measure(
    peer: tuple[str, int], own: str, secret: JobSecret, seconds: float = SECONDS
) -> LinkSpeed:
    """Measure the way to a `PairListener` from the address ``own``, in both directions.

    Raises OSError if the peer cannot be reached, or falls silent; PermissionError if what answers
    there does not know the secret.
    """
    with socket.create_connection(peer, timeout=REACH, source_address=(own, 0)) as connection:
        until = _prepare(connection)
        mine = os.urandom(16).hex().encode()
        connection.sendall(mine)
        answer = _exactly(connection, _NUMBER + _PROOF, until)
        theirs, proof = answer[:_NUMBER], answer[_NUMBER:]
        if not hmac.compare_digest(proof, _digest(secret, "server", mine, theirs)):
            raise PermissionError("what answers there does not know the job's secret")
        connection.settimeout(REACH)
        connection.sendall(_digest(secret, "client", mine, theirs))
        latency = _ping(connection, seconds)
        _send(connection, seconds)
        # The peer counts until its own deadline, which is that of `_receive`.
        connection.settimeout(SECONDS + MOST_SECONDS + REACH)
        (sends,) = struct.unpack("!d", _exactly(connection, 8))
        return LinkSpeed(sends, _receive(connection), latency)


def _digest(secret: JobSecret, side: str, client: bytes, server: bytes) -> bytes:
    numbers = (client.decode("ascii", "replace"), server.decode("ascii", "replace"))
    return secret.digest(_WORD, side, *numbers).encode()


def _prepare(connection: socket.socket) -> float:
    """Prepare a new connection; return the time at which the proof has to be there."""
    connection.settimeout(REACH)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return time.monotonic() + REACH


def _exactly(connection: socket.socket, size: int, until: float | None = None) -> bytes:
    """Return so many bytes; by a time, or each after no more than the connection's timeout."""
    found = b""
    while len(found) < size:
        if until is not None:
            _limit(connection, until)
        part = connection.recv(size - len(found))
        if not part:
            raise ConnectionResetError("the peer hung up")
        found += part
    return found


def _limit(connection: socket.socket, until: float) -> None:
    """Set the socket's timeout to what is left until a time; raise TimeoutError if none is."""
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    connection.settimeout(left)


def _drain(connection: socket.socket) -> None:
    """Read until the peer hangs up, for REACH seconds."""
    until = time.monotonic() + REACH
    while True:
        _limit(connection, until)
        if not connection.recv(_CHUNK):
            return


def _ping(connection: socket.socket, seconds: float) -> float:
    best, until = float("inf"), time.monotonic() + seconds
    for _ in range(_PINGS):
        began = time.perf_counter()
        connection.sendall(b"p")
        _exactly(connection, 1)
        best = min(best, time.perf_counter() - began)
        if time.monotonic() > until:
            break
    connection.sendall(b"e")
    return best


def _answer_pings(connection: socket.socket) -> None:
    while _exactly(connection, 1) == b"p":
        connection.sendall(b"p")


def _send(connection: socket.socket, seconds: float) -> None:
    """Send chunks for so many seconds; the first byte of each says whether another one follows."""
    chunk, last = b"\1" + bytes(_CHUNK - 1), bytes(_CHUNK)
    connection.settimeout(MOST_SECONDS)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        connection.sendall(chunk)
    connection.sendall(last)


def _receive(connection: socket.socket) -> float:
    """Return the bytes per second of what `_send` sends, without the time until it begins.

    A direction that does not come to its end in time has the rate that it had until then. Raises
    TimeoutError where nothing came at all.
    """
    buffer = memoryview(bytearray(_CHUNK))
    deadline = time.monotonic() + SECONDS + MOST_SECONDS
    began, received, goes_on = 0.0, 0, True
    try:
        while goes_on:
            place = 0
            while place < _CHUNK:
                _limit(connection, deadline)
                got = connection.recv_into(buffer[place:])
                if not got:
                    raise ConnectionResetError("the peer hung up")
                if not began:
                    began = time.perf_counter()
                place += got
                received += got
            goes_on = buffer[0] == 1
    except TimeoutError:
        if not received:
            raise
    # A whole chunk arrived after the clock began, but for its first part.
    return received / max(time.perf_counter() - began, 1e-6)
