"""Slurm's time, where this host's clock is wrong."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from hpcrun.slurm import client, clock
from hpcrun.slurm.clock import SlurmClock
from tests.support.waiting import until

ANSWER = "Configuration data as of {}\nAccountingStorageBackupHost = (null)\n"


@pytest.mark.parametrize("ahead", [-30, -1, 0, 1, 30])
def test_a_clock_that_is_wrong_is_put_right(monkeypatch: pytest.MonkeyPatch, ahead: int) -> None:
    told = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time()))
    monkeypatch.setattr(client, "answer", lambda argv: ANSWER.format(told))
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() + ahead)
    found = SlurmClock()
    until(lambda: found._call.wait(0), "Slurm's answer", 5)
    # It tells whole seconds: what is less wrong is left as it is.
    assert abs(found.now() - right()) < 1.7
    # A clock that somebody sets meanwhile changes nothing any more.
    monkeypatch.setattr(time, "time", lambda: right() + 999)
    assert abs(found.now() - right()) < 1.7


def test_without_an_answer_it_is_this_hosts_until_slurm_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Sequence[str]] = []

    def answer(argv: Sequence[str]) -> str:
        asked.append(argv)
        return ANSWER.format("2026-01-31T12:00:00") if len(asked) > 1 else ""

    monkeypatch.setattr(client, "answer", answer)
    found = SlurmClock()
    until(lambda: found._call.wait(0), "no answer", 5)
    for _ in range(2):
        assert abs(found.now() - time.time()) < 1
    assert len(asked) == 1
    monkeypatch.setattr(clock, "_ASK_EVERY", 0.0)
    found.now()
    until(lambda: found._call.wait(0), "Slurm's answer", 5)
    assert time.localtime(found.now())[:5] == (2026, 1, 31, 12, 0)
