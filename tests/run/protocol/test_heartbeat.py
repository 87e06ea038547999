"""Signs of life: those that are sent, those that are left out, and what a kernel acknowledges."""

from __future__ import annotations

import time
from typing import Any

import pytest

from hpcrun.run.protocol import heartbeat
from hpcrun.run.protocol.heartbeat import SILENCE, UNACKNOWLEDGED, PeerLiveness

# Seconds without a word, seconds without an acknowledgement -> it is given up.
TABLE = {
    (UNACKNOWLEDGED + 0.5, UNACKNOWLEDGED + 0.5): True,
    # Its kernel acknowledges: the process is stopped, or has no processor.
    (SILENCE - 0.5, 0.0): False,
    (UNACKNOWLEDGED + 0.5, UNACKNOWLEDGED - 0.5): False,
    # Something was heard: it lives, whatever is not acknowledged.
    (1.0, SILENCE): False,
    (SILENCE + 0.5, 0.0): True,
}


@pytest.mark.parametrize(("quiet", "unacknowledged"), TABLE)
def test_a_peer_is_given_up_after(
    quiet: float, unacknowledged: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: now[0])
    peer = PeerLiveness()
    for _ in range(round(quiet * 2)):
        assert not peer.silent()
        now[0] += 0.5
    assert peer.silent(lambda: unacknowledged) == TABLE[quiet, unacknowledged]


def test_time_in_which_this_process_did_not_run_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: now[0])
    peer = PeerLiveness()
    now[0] += SILENCE + 5
    assert not peer.silent(lambda: SILENCE + 5)


@pytest.mark.parametrize(
    ("reports_every", "least", "most"),
    [(None, 3, 11), (0.05, 0, 0), (0.5, 1, 9)],
    ids=["nothing else is sent", "reports", "reports that are rare"],
)
def test_a_report_is_a_sign_of_life(
    reports_every: float | None, least: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longest silence is `LONGEST` in any case."""
    monkeypatch.setattr(heartbeat, "INTERVAL", 0.1)
    monkeypatch.setattr(heartbeat, "LONGEST", 0.125)
    sent = [time.monotonic()]
    alive: list[dict[str, Any]] = []

    def send(message: dict[str, Any]) -> None:
        alive.append(message)
        sent.append(time.monotonic())

    quiet = (lambda: time.monotonic() - sent[-1],) if reports_every else ()
    heart, until = heartbeat.Heartbeat(send, *quiet), time.monotonic() + 1.05
    while time.monotonic() < until:
        time.sleep(min(reports_every or 1.05, max(0.0, until - time.monotonic())))
        sent.append(time.monotonic())
    heart.stop()
    assert least <= len(alive) <= most
