"""Which nodes a job can do without, by what Slurm 22.05 and 24.11 answered."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Sequence

import pytest

from hpcrun.slurm import client, requeue_nodes

NEVER = "allocation failure: Requested node configuration is not available"


class Site:
    """Nodes by name, with their states; Slurm finds a test submission startable on usable ones."""

    def __init__(self, needed: int, gpus: Sequence[str] = (), **states: str) -> None:
        self.needed, self.states, self.gpus = needed, states, gpus
        self.tried: list[str] = []

    def command(self, argv: Sequence[str], *, timeout: float | None = None) -> str:
        if argv[0] == "scontrol":
            return "JobId=7 Partition=main Command=/runs/a/script-0.sbatch\n"
        if argv[0] == "sinfo":
            return "".join(
                f"{node}|{state}|8|16000|{'gpu:2' if node in self.gpus else '(null)'}|(null)\n"
                for node, state in self.states.items()
            )
        assert argv[:4] == ["sbatch", "--test-only", "--partition=main", f"--nodes={self.needed}"]
        assert argv[-1] == "/runs/a/script-0.sbatch"
        excluded = argv[4].removeprefix("--exclude=")
        self.tried.append(excluded)
        free = [
            node
            for node, state in self.states.items()
            if state == "idle" and node not in excluded.split(",")
        ]
        if len(free) < self.needed:
            raise client.CommandFailed(NEVER)
        return ""


def excluded(
    site: Site, monkeypatch: pytest.MonkeyPatch, *nodes: str, kept: str | None = None
) -> tuple[str, ...]:
    monkeypatch.setattr(client, "command", site.command)
    said: list[str] = []
    left = requeue_nodes.without("7", nodes, site.needed, kept=kept, say=said.append)
    assert len(said) == len(nodes) - len(left)
    return left


def test_all_are_excluded_where_enough_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(2, n1="idle", n2="down*", n3="idle", n4="idle")
    assert excluded(site, monkeypatch, "n2", "n3") == ("n2", "n3")
    assert not site.tried


def test_a_node_that_is_there_is_given_back_before_one_that_is_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = Site(3, n1="idle", n2="down*", n3="idle", n4="idle")
    assert excluded(site, monkeypatch, "n2", "n3") == ("n2",)
    assert site.tried == ["n2,n3", "n2"]


def test_the_oldest_loss_is_given_back_first(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(3, n1="idle", n2="idle", n3="idle", n4="idle")
    assert excluded(site, monkeypatch, "n3", "n2") == ("n2",)


def test_none_is_excluded_where_all_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(4, n1="idle", n2="down*", n3="idle", n4="idle")
    assert excluded(site, monkeypatch, "n2") == ()


def test_nodes_that_are_down_for_now_do_not_bring_a_bad_one_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = Site(2, n1="idle", n2="idle", n3="down*", n4="drain")
    assert excluded(site, monkeypatch, "n2") == ("n2",)


def test_nodes_of_another_make_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(2, gpus=("n1", "n2"), n1="idle", n2="idle", n3="down*", n4="down*")
    assert excluded(site, monkeypatch, "n2") == ()


def test_the_specs_own_exclusions_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(2, n1="idle", n2="down*", n3="idle", n4="idle")
    assert excluded(site, monkeypatch, "n2", kept="n3,n4") == ()
    assert site.tried == ["n3,n4,n2"]


def test_all_are_excluded_where_slurm_does_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    def down(argv: Sequence[str], *, timeout: float | None = None) -> str:
        raise client.CommandFailed("Unable to contact slurm controller (connect failure)")

    monkeypatch.setattr(client, "command", down)
    assert requeue_nodes.without("7", ["n2"], 2, kept=None, say=pytest.fail) == ("n2",)


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
    monkeypatch.setattr(requeue_nodes, "time", clock)
    return clock


@pytest.fixture
def slurmd() -> Iterator[int]:
    """A port that takes connections."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield server.getsockname()[1]


def _wait(monkeypatch: pytest.MonkeyPatch, controller: Controller, wanted: int = 10**6) -> None:
    monkeypatch.setattr(client, "command", controller)
    asked = iter(range(wanted))
    requeue_nodes.wait_until_known(["n2"], lambda: next(asked, None) is not None)


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
    requeue_nodes.wait_until_known([], lambda: True)
    assert controller.asked == []


@pytest.mark.parametrize(("version", "kept"), [("22.05.8", True), ("24.11.5", False)])
def test_what_a_job_gets_back_that_lost_a_node(
    monkeypatch: pytest.MonkeyPatch, version: str, kept: bool
) -> None:
    monkeypatch.setattr(client, "command", Controller("IDLE", version=version))
    assert requeue_nodes.are_kept() is kept
