"""Nodes of which some cannot be prepared; the agents are stand-ins that speak the protocol."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcrun.run.check_in import node_links
from hpcrun.run.copies.copy_reports import CopyReports
from hpcrun.run.job import agents
from hpcrun.run.job.agents import Agents
from hpcrun.run.job.rank_places import NodesLost, NodesUnusable, NotBuilt, StorageUnseen
from hpcrun.state.layout import AttemptPaths, SubmissionPaths
from hpcrun.state.plan import Entry
from tests.support.place import REPOSITORY
from tests.support.waiting import until

AGENT = """
import sys, time
from hpcrun.run.protocol.channel import Channel
from hpcrun.run.protocol.job_secret import JobSecret
address, node, fate, after = sys.argv[1:]
if fate == "mute":
    time.sleep(60)
secret = JobSecret.take()
channel = Channel.connect(address, node, secret)
# Such as "ib0 eth0": it has these interfaces, and fails with the one that it is told to take.
names = fate.split() if "0" in fate else []
own = [[name, "127.0.0.1", "name" if name.startswith("ib") else ""] for name in names]
hello = {"type": "hello", "directory": f"/tmp/hpcrun-{secret.start}"}
builds = fate in ("compiles", "no compiler")
channel.send({**hello, "extensions": "a" * 20 if builds else None, "interfaces": own})
while fate == "cut off" and not channel.closed:
    words = "ib0 has no carrier"
    channel.send({"type": "pulse", "attempt": 1, "ranks": {}, "logs": {}, "fabric": words})
    channel.receive(timeout=0.1)
while not channel.closed:
    for message in channel.receive(timeout=0.1):
        if message["type"] == "build":
            failed = {"type": "failed", "message": "no compiler", "about": "build", "attempt": 1}
            channel.send(failed if fate == "no compiler" else {"type": "built", "attempt": 1})
        if message["type"] == "copy":
            report = {"files": 1, "bytes": 1, "copied": 1, "seconds": 0.5, "notes": []}
            answers = {
                "copies": {"type": "copied", "report": report},
                "full": {"type": "failed", "message": "no room", "about": ""},
                "blind": {"type": "failed", "message": "no such file", "about": "storage"},
            }
            channel.send({**answers[fate], "attempt": 1})
        if message["type"] == "prepare":
            time.sleep(float(after))
            if fate == "dies":
                sys.exit(7)
            if fate == "unseen":
                failed = {"type": "failed", "message": "[Errno 2] ROOT/work", "about": "storage"}
                channel.send({**failed, "attempt": 1})
                continue
            if fate == "ready":
                scratch = f"/tmp/hpcrun-{secret.start}/attempt-1"
                found = {"name": node, "scratch": scratch, "code": f"{scratch}/code"}
                found |= {"interface": "lo", "address": "127.0.0.1"}
                health = {"findings": [], "gpus": None, "clock": time.time()}
                channel.send({"type": "ready", "node": found, "port": 20000, "attempt": 1,
                              "health": health})
                continue
            words = message["fabric"].get("fast_interface") if own else "no space left"
            channel.send({"type": "failed", "message": str(words), "attempt": 1})
"""


class _Launcher:
    """Starts a stand-in a node, with the fate that the test gives it."""

    job_id, port_seed, restart_count, requeues = "1", 1, 0, False
    compiles_alike = False

    def __init__(self, fates: dict[str, tuple[str, float]]) -> None:
        self.fabric = {"management_interface": "lo"}
        self._fates = fates
        self.nodes = tuple(fates)
        self.host = self.nodes[0]
        self.places = {node: place for place, node in enumerate(self.nodes)}

    def devices(self, node: str, run: object) -> None:
        return None

    def agent_groups(self) -> list[tuple[str, ...]]:
        return [(node,) for node in self.nodes]

    def start_agents(
        self, nodes: Sequence[str], attempt: AttemptPaths, command: Sequence[str]
    ) -> subprocess.Popen[bytes]:
        (node,) = nodes
        fate, after = self._fates[node]
        address = command[command.index("--supervisor") + 1]
        argv = [sys.executable, "-c", AGENT, address, node, fate, str(after)]
        return subprocess.Popen(argv, cwd=REPOSITORY, stdin=subprocess.PIPE)


def run_of(nodes: int) -> Any:
    """What agents look at of a run."""
    return SimpleNamespace(
        number=3,
        nodes=nodes,
        ranks_per_node=1,
        role_plans=(),
        entry=Entry("command"),
        block=lambda _: SimpleNamespace(paths=()),
        environment=SimpleNamespace(is_frozen=False),
    )


def _crew(tmp_path: Path, nodes: int, **fates: tuple[str, float]) -> Agents:
    paths = SubmissionPaths(tmp_path), run_of(nodes), AttemptPaths(tmp_path / "1")
    return Agents(_Launcher(fates), *paths)  # type: ignore[arg-type]


def _refusal(tmp_path: Path, nodes: int = 0, **fates: tuple[str, float]) -> NodesUnusable:
    nodes = nodes or len(fates)
    found = _crew(tmp_path, nodes, **fates)
    try:
        with pytest.raises(NodesUnusable) as caught:
            found.prepare(1, tuple(fates)[:nodes], lambda: None)
        left = [node for node in fates if node not in caught.value.nodes]
        assert found.seats(nodes) == tuple(left)[:nodes]
    finally:
        found.lost.extend(fates)
        found.dismiss()
    return caught.value


@pytest.mark.parametrize(
    ("fate", "message"),
    [
        ("fails", "node n2 cannot be used: no space left"),
        ("dies", "the agent on node n2 was ended; see agent-n2.log"),
    ],
)
def test_the_one_that_is_worse_than_the_others_is_named(
    tmp_path: Path, fate: str, message: str
) -> None:
    refused = _refusal(tmp_path, n1=("fails", 30), n2=(fate, 0), n3=("fails", 30))
    assert refused.nodes == ("n2",)
    assert refused.message == message


def test_files_are_kept_in_less_time_once_slurm_signals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody acted on a preemption for as long as the files of the attempt before were copied."""
    monkeypatch.setattr(agents, "HURRY", 0.2)
    found = _crew(tmp_path, 1, n1=("fails", 0.0))
    try:
        found.working = ("n1",)
        found.signals.append("SIGTERM")
        assert found.keep(8.0) == ["n1: not done in 0 s"]
        assert found.signals == ["SIGTERM"], "the next turn of the loop acts on it"
        found.signals.clear()
        assert found.keep(1.0) == ["n1: not done in 1 s"]
    finally:
        found.lost.append("n1")
        found.dismiss()


SLEEPER = """
import sys
from hpcrun.errors import HpcrunError
from hpcrun.run.protocol import heartbeat
heartbeat.INTERVAL, heartbeat.SILENCE = 0.1, 1.0
heart = heartbeat.Heartbeat(lambda message: None)
for _ in sys.stdin:
    try:
        heart.check()
        print("ran", flush=True)
    except HpcrunError as error:
        print(error.message, flush=True)
"""


def test_a_supervisor_that_was_stopped_blames_no_node_for_having_left() -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(
        [sys.executable, "-c", SLEEPER], text=True, cwd=REPOSITORY, **pipes
    ) as one:
        assert one.stdin is not None
        assert one.stdout is not None

        def told() -> str:
            one.stdin.write("?\n")
            one.stdin.flush()
            return one.stdout.readline()

        assert told() == "ran\n"
        one.send_signal(signal.SIGSTOP)
        time.sleep(2.2)
        one.send_signal(signal.SIGCONT)
        assert re.match(r"the supervisor did not run for [2-9] s \(it was stopped", told())


def test_what_is_wrong_with_all_is_no_nodes_fault(tmp_path: Path) -> None:
    refused = _refusal(tmp_path, n1=("fails", 1.0), n2=("fails", 0))
    assert refused.nodes == ()
    assert refused.message == "node n2 cannot be used: no space left (and 1 more)"


@pytest.mark.parametrize(("second", "told"), [("ib0 eth0", "ib0"), ("eth0", "lo")])
def test_all_nodes_are_told_the_same_interface(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], second: str, told: str
) -> None:
    refused = _refusal(tmp_path, n1=("ib0 eth0", 0), n2=(second, 0.5))
    assert refused.message == f"node n1 cannot be used: {told} (and 1 more)"
    said = capfd.readouterr()
    assert "fabric.fast_interface in the cluster profile decides" in said.out + said.err


def test_one_that_never_speaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "START_TIMEOUT", 2.0)
    began = time.monotonic()
    refused = _refusal(tmp_path, n1=("mute", 0), n2=("fails", 0))
    assert time.monotonic() - began < 30
    assert refused.nodes == ("n1",)
    assert refused.message == "no answer within 2 s from the agents on n1"


def test_the_only_node_is_blamed_where_another_can_take_its_place(tmp_path: Path) -> None:
    assert _refusal(tmp_path, 1, n1=("fails", 0), n2=("fails", 30)).nodes == ("n1",)
    assert _refusal(tmp_path, 1, n1=("fails", 0)).nodes == ()


def test_what_is_wrong_with_all_is_not_tried_on_spares(tmp_path: Path) -> None:
    refused = _refusal(tmp_path, 2, n1=("fails", 0), n2=("fails", 0), n3=("fails", 30))
    assert refused.nodes == ()


def test_storage_that_one_node_does_not_see_is_no_nodes_fault(tmp_path: Path) -> None:
    found = _crew(tmp_path, 3, n1=("ready", 0), n2=("unseen", 0), n3=("ready", 0))
    try:
        with pytest.raises(StorageUnseen) as caught:
            found.prepare(1, ("n1", "n2", "n3"), lambda: None)
        assert caught.value.nodes == ("n2",)
        assert caught.value.message == "node n2 cannot use shared storage: [Errno 2] ROOT/work"
        # All of them are used again in this allocation.
        assert found.seats(3) == ("n1", "n2", "n3")
    finally:
        found.lost.extend(found._launcher.nodes)
        found.dismiss()


def test_storage_that_no_node_sees(tmp_path: Path) -> None:
    refused = _refusal(tmp_path, n1=("unseen", 0), n2=("unseen", 1.0))
    assert isinstance(refused, StorageUnseen)
    assert refused.nodes == ()


def test_a_node_is_named_beside_one_that_does_not_see_storage(tmp_path: Path) -> None:
    refused = _refusal(tmp_path, n1=("unseen", 0), n2=("fails", 0), n3=("ready", 0))
    assert not isinstance(refused, StorageUnseen)
    assert refused.nodes == ("n2",)


@pytest.mark.parametrize(
    ("fates", "nodes"),
    [
        (["no compiler", "no compiler", "compiles"], ("n1", "n2")),
        (["no compiler", "fails"], ("n1",)),
    ],
    ids=["on two", "on the only one of its kind"],
)
def test_what_does_not_compile_is_no_nodes_fault(
    tmp_path: Path, fates: list[str], nodes: tuple[str, ...]
) -> None:
    crew = {f"n{number}": (fate, 0.0) for number, fate in enumerate(fates, 1)}
    found = _crew(tmp_path, len(crew), **crew)
    try:
        with pytest.raises(NotBuilt, match="no compiler") as caught:
            found.prepare(1, tuple(crew), lambda: None)
        assert caught.value.nodes == nodes
        assert found.seats(len(crew)) == tuple(crew)
    finally:
        found.lost.extend(crew)
        found.dismiss()


def test_where_one_node_cannot_compile_another_does(tmp_path: Path) -> None:
    # The attempt goes on, and ends for another reason.
    refused = _refusal(tmp_path, n1=("no compiler", 30), n2=("compiles", 0), n3=("ready", 0))
    assert refused.message == "node n2 cannot be used: no space left"


def test_spares_copy_ahead_and_are_idle_once_they_have(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """One that cannot is no more of use; one that does not see storage is asked again later."""
    fates = {"n1": "fails", "n2": "copies", "n3": "full", "n4": "blind"}
    found = _crew(tmp_path, 1, **{node: (fate, 0.0) for node, fate in fates.items()})
    found.copies = CopyReports(data=True)
    found.working = ("n1",)
    try:
        until(lambda: found.turn(0.1) or (found.usable != list(fates) and found.idle()))
        assert found.usable == ["n1", "n2", "n4"]
        (directory,) = found.idle().items()
        assert directory[0] == "n2"
        assert directory[1].name == "attempt-1"
        assert "the spare node n3 is of no more use: no room" in capfd.readouterr().out
    finally:
        found.lost.extend(fates)
        found.dismiss()


def _lost(found: Agents) -> NodesLost | NodesUnusable:
    found.working = found._launcher.nodes
    deadline = time.monotonic() + 30
    try:
        while time.monotonic() < deadline:
            found.turn(0.1)
    except (NodesLost, NodesUnusable) as lost:
        return lost
    finally:
        found.lost.extend(found.working)
        found.dismiss()
    pytest.fail("nothing was lost")


def test_a_node_that_has_lost_only_the_fabric(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_links, "SILENCE", 1.0)
    found = _crew(tmp_path, 2, n1=("fails", 0), n2=("cut off", 0))
    lost = _lost(found)
    assert lost.nodes == ("n2",)
    assert (
        str(lost)
        == getattr(lost, "cut_off", None)
        == "cut off from the fabric: n2: ib0 has no carrier"
    )
    assert found.seats(2) == ("n1",)


def test_a_fabric_that_is_away_everywhere_is_no_nodes_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_links, "SILENCE", 1.0)
    found = _crew(tmp_path, 2, n1=("cut off", 0), n2=("cut off", 0))
    assert _lost(found).nodes == ()
    assert found.seats(2) == ("n1", "n2")


def test_where_nobody_is_heard_because_the_own_link_is_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = _crew(tmp_path, 2, n1=("fails", 0), n2=("fails", 0), n3=("fails", 0))
    while len(found._listeners) < 3:
        found.turn(0.1)
    monkeypatch.setattr(agents.PeerLiveness, "silent", lambda self, unacknowledged: True)
    monkeypatch.setattr(agents.network, "trouble", lambda interface, hca: f"{interface} is down")
    lost = _lost(found)
    assert lost.nodes == ("n1",)
    assert str(lost) == "node n1 is cut off from the others: lo is down"
