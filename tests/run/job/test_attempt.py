"""Parts of one attempt, as its supervisor runs it; tests/run/test_supervisor runs whole ones."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from hpcrun.run.fabric import adapters, link_check
from hpcrun.run.job import attempt
from hpcrun.run.job.attempt import RunningAttempt
from hpcrun.run.job.stop_request import EndNow
from hpcrun.run.protocol.launch import Launch, LaunchNode
from hpcrun.state import ledger
from tests.support import sysfs_tree
from tests.support.place import launch_of
from tests.support.sysfs_tree import rails


class Turn:
    """A part of the loop that ends the attempt, or lets the search go on, when it is told."""

    def __init__(self, released: threading.Event, *, ends: bool) -> None:
        self._released, self._ends, self.count = released, ends, 0

    def turn(self) -> None:
        self.count += 1
        if self._ends:
            raise EndNow("the time is over")
        if self.count == 3:
            self._released.set()


@pytest.mark.parametrize("ends", [True, False])
def test_a_long_search_for_what_to_resume_from(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    ends: bool,
) -> None:
    """It held up the end of a supervisor that was asked to leave, without a word."""
    released = threading.Event()

    def decided(launch: Launch) -> Launch:
        released.wait()
        return launch

    monkeypatch.setattr(attempt, "decided", decided)
    monkeypatch.setattr(attempt, "SEARCH_IS_LONG", 0.0)
    running = RunningAttempt.__new__(RunningAttempt)
    running._always = (Turn(released, ends=ends),)
    launch = launch_of(tmp_path, attempt=2)
    try:
        if ends:
            with pytest.raises(EndNow):
                running._resumed(launch)
            waited_for = [one for one in threading.enumerate() if not one.daemon]
            assert waited_for == [threading.main_thread()]
        else:
            assert running._resumed(launch) is launch
            assert capfd.readouterr().out.count("looks for what attempt 2 resumes from") == 1
    finally:
        released.set()


def test_what_nodes_say_of_their_links_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NCCL_IB_HCA", raising=False)
    rails(tmp_path / "n1", 2)
    rails(tmp_path / "n2", 2).port("mlx5_1", state=sysfs_tree.INIT)
    nodes = []
    for name, hca in (("n1", "=mlx5_0:1,mlx5_1:1"), ("n2", "=mlx5_0:1")):
        report = link_check.report({}, adapters.read(tmp_path / name, patience=60))
        nodes.append(LaunchNode(name, "/c", "/s", "ib0", "10.9.0.1", hca, adapters=report))
    running = RunningAttempt.__new__(RunningAttempt)
    running._paths = launch_of(tmp_path).paths
    running._record_fabric([LaunchNode("n3", "/c", "/s", "eth0", "10.9.0.3")])
    assert not running._paths.run.ledger.exists()
    running._record_fabric(nodes)
    (found,) = ledger.read(running._paths.run)
    assert found.fabric is not None
    assert found.fabric["choices"][1].startswith("n2: NCCL_IB_HCA is =mlx5_0:1, as read there")
    kinds = [(one["node"], one["kind"]) for one in found.fabric["findings"]]
    assert kinds == [("n2", "no_subnet_manager"), ("n2", "differs")]
    assert found.fabric["count"] == 2
    said = capfd.readouterr().out
    assert "fabric: node n2: mlx5_1:1 is in INIT" in said
    assert "fabric: n1: NCCL_IB_HCA is =mlx5_0:1,mlx5_1:1" in said
