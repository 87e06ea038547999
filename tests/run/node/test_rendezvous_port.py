"""The port of the rendezvous, with real sockets."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from hpcrun.errors import HpcrunError
from hpcrun.run.node import rendezvous_port
from hpcrun.run.node.rendezvous_port import PortReservation, port_range


@pytest.fixture
def start(request: pytest.FixtureRequest) -> int:
    """Where to look for ports, far from those of runs on this machine."""
    return hash((request.node.nodeid, id(request))) % 10**9


def test_a_port_is_never_one_that_the_kernel_hands_out(start: int) -> None:
    words = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    first, last = map(int, words)
    low, high = port_range()
    assert 1024 < low < high <= 65536
    assert high <= first or low > last
    for offset in range(0, 5000, 977):
        reservation = PortReservation(start + offset)
        assert low <= reservation.port < high
        reservation.release()


def test_two_jobs_that_begin_at_the_same_place_get_different_ports(start: int) -> None:
    first, second = PortReservation(start), PortReservation(start)
    try:
        assert first.port != second.port
    finally:
        first.release()
        second.release()


def test_a_released_port_can_be_had_again(start: int) -> None:
    first = PortReservation(start)
    first.release()
    second = PortReservation(start)
    second.release()
    assert second.port == first.port


def test_the_reservation_does_not_keep_the_rendezvous_off(start: int) -> None:
    reservation = PortReservation(start)
    with closing(socket.create_server(("127.0.0.1", reservation.port))):
        pass
    reservation.release()


def test_a_port_that_somebody_listens_on_is_skipped(start: int) -> None:
    first = PortReservation(start)
    first.release()
    with closing(socket.create_server(("127.0.0.1", first.port))):
        second = PortReservation(start)
    second.release()
    assert second.port != first.port


def test_a_reservation_dies_with_its_process(start: int) -> None:
    program = (
        "import sys, time; from hpcrun.run.node.rendezvous_port import PortReservation\n"
        f"held = PortReservation({start}); print(held.port, flush=True); time.sleep(100)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        port = int(holder.stdout.readline())
        meanwhile = PortReservation(start)
        meanwhile.release()
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    after = PortReservation(start)
    after.release()
    assert meanwhile.port != port
    assert after.port == port


def test_when_every_port_is_taken_the_message_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    held = PortReservation(1)
    monkeypatch.setattr(rendezvous_port, "port_range", lambda: (held.port, held.port + 1))
    with (
        closing(socket.create_server(("127.0.0.1", held.port))),
        pytest.raises(HpcrunError, match=f"no TCP port between {held.port} and {held.port + 1}"),
    ):
        PortReservation(1)
    held.release()


def test_ports_one_after_the_other_for_ranks(start: int) -> None:
    first, second = PortReservation(start, 64), PortReservation(start, 64)
    try:
        assert list(first.ports) == list(range(first.port, first.port + 64))
        assert not set(first.ports) & set(second.ports)
        # Each of them is kept from those who look for one.
        alone = [PortReservation(start) for _ in range(8)]
        assert not {each.port for each in alone} & {*first.ports, *second.ports}
        for each in alone:
            each.release()
    finally:
        first.release()
        second.release()


def test_a_port_is_in_use_until_a_while_after_its_connections(start: int) -> None:
    reservation = PortReservation(start)
    port = reservation.port
    assert not rendezvous_port.in_use([port])
    with closing(socket.create_server(("127.0.0.1", port))) as server:
        assert rendezvous_port.in_use([port - 1, port])
        client = socket.create_connection(("127.0.0.1", port))
        served, _ = server.accept()
        client.close()
        served.close()
    assert rendezvous_port.in_use([port])
    assert not rendezvous_port.in_use([])
    reservation.release()
    # Where ranks of other nodes would be taken to have met.
    assert PortReservation(start).port != port


def test_ports_of_which_nobody_asks_are_free_all_the_same(
    start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    preferred = PortReservation(start)
    preferred.release()
    monkeypatch.setattr(rendezvous_port, "_ports_of_sockets", lambda: {preferred.port})
    assert PortReservation(start, meets=False).port == preferred.port
    with closing(socket.create_server(("127.0.0.1", preferred.port))):
        assert PortReservation(start, meets=False).port != preferred.port
