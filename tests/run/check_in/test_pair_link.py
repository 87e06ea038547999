"""Measuring between two ends on this machine, and who may."""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from hpcrun.run.check_in import pair_link
from hpcrun.run.check_in.pair_link import PairListener, measure
from hpcrun.run.protocol.job_secret import JobSecret

HERE = "127.0.0.1"


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_link, "REACH", 1.0)


@pytest.fixture
def secret() -> JobSecret:
    return JobSecret.new()


@pytest.fixture
def listener(secret: JobSecret) -> Iterator[PairListener]:
    one = PairListener(HERE, secret, 0.1)
    yield one
    one.close()


def test_both_directions_and_the_round_trip(listener: PairListener, secret: JobSecret) -> None:
    speed = measure((HERE, listener.port), HERE, secret, 0.1)
    # Loopback, on any machine.
    assert speed.sends > 1e7
    assert speed.receives > 1e7
    assert 0 < speed.latency < 0.1
    # Again, as rounds do.
    assert measure((HERE, listener.port), HERE, secret, 0.1).sends > 1e7


def test_who_does_not_know_the_secret_measures_nothing(
    listener: PairListener, secret: JobSecret
) -> None:
    with pytest.raises(PermissionError):
        measure((HERE, listener.port), HERE, JobSecret.new())
    with socket.create_connection((HERE, listener.port), timeout=5) as stranger:
        stranger.sendall(secrets.token_hex(16).encode())
        assert len(stranger.recv(200)) > 0
        stranger.sendall(b"x" * 64)
        assert _is_closed(stranger)
    assert measure((HERE, listener.port), HERE, secret, 0.1).sends > 0


def test_silent_strangers_are_bounded(listener: PairListener) -> None:
    with contextlib.ExitStack() as stack:
        there = [
            stack.enter_context(socket.create_connection((HERE, listener.port), timeout=5))
            for _ in range(pair_link._STRANGERS + 4)
        ]
        # More than those that may wait are hung up on at once, the others after REACH.
        assert all(map(_is_closed, there))


def test_a_stranger_who_dribbles_is_hung_up_on(listener: PairListener) -> None:
    """After REACH in all, not after REACH of silence."""
    began = time.monotonic()
    with socket.create_connection((HERE, listener.port), timeout=5) as stranger:
        stranger.settimeout(0.2)
        with contextlib.suppress(OSError):
            while time.monotonic() - began < 4:
                stranger.sendall(b"x")
                with contextlib.suppress(TimeoutError):
                    if not stranger.recv(1):
                        break
    assert time.monotonic() - began < 3


def test_what_dribbles_instead_of_a_proof_is_given_up(secret: JobSecret) -> None:
    with socket.create_server((HERE, 0)) as server:

        def dribble() -> None:
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                for _ in range(20):
                    connection.sendall(b"x")
                    time.sleep(0.2)

        thread = threading.Thread(target=dribble)
        thread.start()
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            measure((HERE, server.getsockname()[1]), HERE, secret, 0.1)
        assert time.monotonic() - began < 3
        thread.join()


def _is_closed(connection: socket.socket) -> bool:
    connection.settimeout(5)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_nobody_there(secret: JobSecret) -> None:
    with socket.create_server((HERE, 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        measure((HERE, port), HERE, secret, 0.1)


def test_a_peer_that_hangs_is_given_up(secret: JobSecret) -> None:
    with socket.create_server((HERE, 0)) as silent:
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            measure((HERE, silent.getsockname()[1]), HERE, secret, 0.1)
        assert time.monotonic() - began < 10


def test_a_slow_receiver_is_told_from_a_fast_one(secret: JobSecret) -> None:
    """The rate is what arrived, not what was handed to the kernel."""
    one, other = socket.socketpair()
    with one, other:
        one.settimeout(5)

        def slowly() -> None:
            pair_link._send(other, 0.1)

        thread = threading.Thread(target=slowly)
        thread.start()
        real = one.recv_into

        class Slow:
            reads = 0

            def settimeout(self, seconds: float) -> None:
                one.settimeout(seconds)

            def recv_into(self, buffer: memoryview) -> int:
                time.sleep(0.005)
                self.reads += 1
                return real(buffer[: 1 << 14])

        slow = Slow()
        rate = pair_link._receive(slow)  # type: ignore[arg-type]
        thread.join()
    # The clock begins with what is read first, which counts.
    assert rate < slow.reads / (slow.reads - 1) * (1 << 14) / 0.005


def test_a_direction_that_does_not_end_has_the_rate_until_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pair_link, "SECONDS", 0.1)
    monkeypatch.setattr(pair_link, "MOST_SECONDS", 0.4)
    one, other = socket.socketpair()
    with one, other:
        other.sendall(bytes(10_000))
        assert 1000 < pair_link._receive(one) < 10_000 / 0.3
        # Nothing at all is no rate.
        with pytest.raises(TimeoutError):
            pair_link._receive(one)


def test_a_slow_way_has_a_rate(
    listener: PairListener, secret: JobSecret, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though what was sent does not arrive in time: it still lies in buffers."""
    monkeypatch.setattr(pair_link, "MOST_SECONDS", 1.5)
    rate = 1_000_000
    with socket.create_server((HERE, 0)) as server:

        def carry(one: socket.socket, other: socket.socket, limit: int | None) -> None:
            with contextlib.suppress(OSError):
                while data := one.recv(1 << 14):
                    other.sendall(data)
                    time.sleep(len(data) / limit if limit else 0)
                other.shutdown(socket.SHUT_WR)

        def serve() -> None:
            with socket.create_connection((HERE, listener.port)) as there, server.accept()[0] as us:
                back = threading.Thread(target=carry, args=(there, us, None))
                back.start()
                carry(us, there, rate)
                back.join()

        thread = threading.Thread(target=serve)
        thread.start()
        speed = measure((HERE, server.getsockname()[1]), HERE, secret, 0.1)
        thread.join()
    assert 0.02 * rate < speed.sends < 1.5 * rate
    assert speed.receives > 5 * rate
