"""When a job that lost a node may be requeued. Slurm's answers are what 22.05 says."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Sequence

import pytest

from hpcrun.slurm import client, lost_nodes

CONFIG = "SlurmdTimeout           = {timeout} sec\nSLURM_VERSION           = {version}\n"


class Controller:
    """Answers of scontrol; a node's states come in turn, the last one for ever."""

    def __init__(self, *states: str, version: str = "22.05.8", timeout: int = 300, port: int = 1):
        self.states, self.port = list(states), port
        self.config = CONFIG.format(version=version, timeout=timeout)
        self.asked: list[str] = []

    def __call__(self, argv: Sequence[str], *, timeout: float | None = None) -> str:
        self.asked.append(" ".join(argv))
        if "config" in argv:
            return self.config
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if not state:
            raise client.CommandFailed("Unable to contact slurm controller (connect failure)")
        return f"NodeName=n2 NodeAddr=127.0.0.1 Port={self.port} State={state} CPUs=8\n"


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(lost_nodes, "time", clock)
    return clock


@pytest.fixture
def slurmd() -> Iterator[int]:
    """A port that takes connections."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield server.getsockname()[1]


def _wait(monkeypatch: pytest.MonkeyPatch, controller: Controller, wanted: int = 10**6) -> None:
    monkeypatch.setattr(client, "command", controller)
    asked = iter(range(wanted))
    lost_nodes.wait_until_known(["n2"], lambda: next(asked, None) is not None)


def test_until_slurm_has_found_the_node_down(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    _wait(monkeypatch, Controller("ALLOCATED", "ALLOCATED*", "", "DOWN*+NOT_RESPONDING"))
    assert clock.now == 6


def test_not_for_a_node_that_lives(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, slurmd: int
) -> None:
    _wait(monkeypatch, Controller("ALLOCATED", port=slurmd))
    assert clock.now == 0


def test_not_for_ever(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    _wait(monkeypatch, Controller("ALLOCATED", timeout=20))
    assert clock.now == 80


def test_not_once_nobody_wants_it(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    _wait(monkeypatch, Controller("ALLOCATED"), wanted=3)
    assert clock.now == 6


@pytest.mark.parametrize("version", ["24.11.5", "25.05.0"])
def test_not_where_slurm_gives_everything_back(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, version: str
) -> None:
    controller = Controller("ALLOCATED", version=version)
    _wait(monkeypatch, controller)
    assert controller.asked == ["scontrol show config"]


def test_not_without_lost_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = Controller("ALLOCATED")
    monkeypatch.setattr(client, "command", controller)
    lost_nodes.wait_until_known([], lambda: True)
    assert controller.asked == []
