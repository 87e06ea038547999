"""Steps that carry agents of several nodes; processes of this machine stand in for srun."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from hpcrun.run.job import agent_steps
from hpcrun.run.job.agents import Agents
from hpcrun.run.job.rank_places import NodesLost, NodesUnusable
from hpcrun.state.layout import AttemptPaths, SubmissionPaths
from tests.run.job.test_agents import _Launcher, run_of
from tests.support.place import REPOSITORY

# The agents of all nodes of a step, in one process; "silent" ones do not say that they are alive.
STEP = """
import sys, time
from hpcrun.run.protocol.channel import Channel
from hpcrun.run.protocol.job_secret import JobSecret
address, nodes, silent = sys.argv[1], sys.argv[2].split(","), sys.argv[3].split(",")
secret, channels = JobSecret.take(), {}
for node in nodes:
    channel = channels[node] = Channel.connect(address, node, secret)
    home = f"/tmp/hpcrun-{secret.start}"
    channel.send({"type": "hello", "directory": home, "extensions": None, "interfaces": []})
while channels:
    time.sleep(0.02)
    for node, channel in [*channels.items()]:
        for message in channel.receive(timeout=0):
            kind = message["type"]
            if kind in ("dismiss",):
                channel.close()
                del channels[node]
                break
            if kind == "prepare":
                scratch = f"{home}/attempt-{attempt}"
                found = {"name": node, "scratch": scratch, "code": f"{scratch}/code"}
                found |= {"interface": "lo", "address": "127.0.0.1"}
                health = {"findings": [], "gpus": None, "clock": time.time()}
                channel.send({"type": "ready", "node": found, "port": 20000, "health": health,
                              "attempt": attempt})
            if kind == "attempt":
                attempt = message["number"]
            if node not in silent:
                channel.send({"type": "alive"})
        else:
            if channel.closed:
                del channels[node]
"""


class _Grouped(_Launcher):
    """Starts the agents of each group in one process."""

    def __init__(self, *groups: tuple[str, ...], silent: str = "") -> None:
        super().__init__({node: ("ready", 0) for group in groups for node in group})
        self._groups, self._silent = groups, silent
        self.begun: list[tuple[str, ...]] = []

    def agent_groups(self) -> list[tuple[str, ...]]:
        return [*self._groups]

    def start_agents(
        self, nodes: Sequence[str], attempt: AttemptPaths, command: Sequence[str]
    ) -> subprocess.Popen[bytes]:
        self.begun.append(tuple(nodes))
        address = command[command.index("--supervisor") + 1]
        argv = [sys.executable, "-c", STEP, address, ",".join(nodes), self._silent]
        return subprocess.Popen(argv, cwd=REPOSITORY, stdin=subprocess.PIPE)


GROUPS = ("n1",), ("n2", "n3", "n4"), ("n5", "n6")


@pytest.fixture
def launcher() -> _Grouped:
    return _Grouped(*GROUPS, silent="n3")


@pytest.fixture
def crew(tmp_path: Path, launcher: _Grouped) -> Agents:
    paths = SubmissionPaths(tmp_path), run_of(5), AttemptPaths(tmp_path / "1")
    return Agents(launcher, *paths)  # type: ignore[arg-type]


def _turns(crew: Agents, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        crew.turn(0.05)


NODES = ("n1", "n2", "n3", "n4", "n5")


def test_a_lost_node_costs_its_group_nothing(crew: Agents, launcher: _Grouped) -> None:
    try:
        crew.prepare(1, NODES, lambda: None)
        crew._listeners["n3"]._last -= 60  # its power is off
        with pytest.raises(NodesLost) as caught:
            _turns(crew, 3)
        assert caught.value.nodes == ("n3",)
        seats = crew.seats(5)
        assert seats == ("n1", "n2", "n4", "n5", "n6")
        found, _ = crew.prepare(2, seats, lambda: None)
        assert [node.name for node in found] == [*seats]
        assert launcher.begun == [*GROUPS]
    finally:
        crew.dismiss()


def test_a_step_that_ends_is_started_again_once(crew: Agents, launcher: _Grouped) -> None:
    """A node does not answer as it begins, or the kernel ends its srun."""
    try:
        crew.prepare(1, NODES, lambda: None)
        for attempt, blamed in ((1, ()), (2, ("n2",))):
            step = crew._steps.step_of("n2")
            step.process.kill()
            with pytest.raises(NodesUnusable) as caught:
                _turns(crew, 5)
            assert set(caught.value.nodes) <= {*blamed}
            if attempt == 1:
                found, _ = crew.prepare(2, NODES, lambda: None)
                assert len(found) == 5
        assert launcher.begun == [*GROUPS, ("n2",), ("n3",), ("n4",)]
        assert crew.usable == ["n1", "n3", "n4", "n5", "n6"]
    finally:
        crew.dismiss()


def test_a_step_that_does_not_begin_is_started_again(crew: Agents, launcher: _Grouped) -> None:
    crew._steps.step_of("n5").process.kill()
    try:
        found, _ = crew.prepare(1, NODES, lambda: None)
        assert len(found) == 5
        assert launcher.begun in ([*GROUPS, ("n5",), ("n6",)], [*GROUPS])
    finally:
        crew.dismiss()


@pytest.mark.parametrize(
    ("count", "sizes"),
    [
        (1, [1]),
        (16, [1] * 16),
        (17, [1, *[2] * 8]),
        (65, [1, *[5] * 12, 4]),
        (1025, [1, *[69] * 14, 58]),
    ],
)
def test_groups_are_few_and_the_batch_host_is_alone(count: int, sizes: list[int]) -> None:
    nodes = [f"n{number}" for number in range(count)]
    found = agent_steps.groups(nodes, dict.fromkeys(nodes, 0))
    assert [len(group) for group in found] == sizes
    assert [node for group in found for node in group] == nodes


def test_nodes_of_two_parts_are_in_no_group_together() -> None:
    nodes = [f"n{number}" for number in range(32)]
    found = agent_steps.groups(nodes, {node: index < 9 for index, node in enumerate(nodes)})
    assert [len(group) for group in found] == [1, 3, 3, 2, *[3] * 7, 2]
