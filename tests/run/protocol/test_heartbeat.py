"""Liveness of a peer: silence, and what its kernel acknowledges."""

from __future__ import annotations

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
