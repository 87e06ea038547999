"""Which fault is injected when; agents and ranks are stand-ins here."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcrun.policy import faults
from hpcrun.run.health.progress import STEPPING, RankProgress
from hpcrun.run.job import fault_injection
from hpcrun.run.job.fault_injection import FaultInjection, flip
from hpcrun.state import files, ledger
from hpcrun.state.layout import RunPaths


class Agents:
    places = SimpleNamespace(node_of=lambda rank: ("n1", "n2")[rank // 2])

    def __init__(self) -> None:
        self.pulses: dict[int, RankProgress] = {}
        self.sent: list[tuple[str, dict[str, Any]]] = []

    def at(self, step: int) -> None:
        for rank in range(4):
            self.pulses[rank] = RankProgress(1, step, STEPPING, 0, 0, "S", 0)

    def send(self, node: str, message: dict[str, Any]) -> None:
        self.sent.append((node, message))


@pytest.fixture(autouse=True)
def every_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fault_injection, "_LOOK_EVERY", 0.0)


def _injection(
    directory: Path, agents: Agents, wanted: list[str], attempt: int = 1
) -> tuple[FaultInjection, list[str]]:
    run: Any = SimpleNamespace(
        spec={faults.KEY: {"faults": wanted, "steps": 3}},
        entry=SimpleNamespace(kind="function"),
        world_size=4,
        main_ranks=4,
        ranks_per_node=2,
    )
    heard: list[str] = []
    paths = RunPaths(directory).attempt(attempt)
    paths.directory.mkdir(parents=True)
    return FaultInjection(run, paths, agents, heard.append), heard  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (faults.KILL_RANK, {"type": "hurt", "rank": 3, "signal": "SIGKILL"}),
        (faults.STOP_RANK, {"type": "hurt", "rank": 3, "signal": "SIGSTOP"}),
        (faults.LOSE_NODE, {"type": "fall_silent"}),
    ],
)
def test_the_last_rank_is_hurt_once_it_made_steps(
    tmp_path: Path, fault: str, message: dict[str, Any]
) -> None:
    agents = Agents()
    injection, heard = _injection(tmp_path / "3", agents, [fault])
    for step in (0, 7, 8, 9):
        agents.at(step)
        injection.turn()
        assert agents.sent == []
    agents.at(10)
    injection.turn()
    injection.turn()
    assert agents.sent == [("n2", message)]
    assert heard == []
    (done,) = ledger.faults(RunPaths(tmp_path / "3"))
    assert (done["fault"], done["rank"], done["node"]) == (fault, 3, "n2")


def test_a_program_without_a_session_is_stopped_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents = Agents()
    injection, _ = _injection(tmp_path / "3", agents, [faults.STOP_RANK])
    injection._run.entry.kind = "script"  # type: ignore[misc]
    injection.turn()
    assert agents.sent == []
    monkeypatch.setattr(fault_injection, "_BLIND", -1.0)
    injection.turn()
    assert agents.sent == [("n2", {"type": "hurt", "rank": 3, "signal": "SIGSTOP"})]


def test_a_program_that_shows_its_steps_is_hurt_after_so_many(tmp_path: Path) -> None:
    agents = Agents()
    injection, _ = _injection(tmp_path / "3", agents, [faults.STOP_RANK])
    injection._run.entry.kind = "script"  # type: ignore[misc]
    for step in (100, 101, 102):
        files.append(RunPaths(tmp_path / "3").attempt(1).metrics, {"step": step})
        injection.turn()
        assert agents.sent == []
    files.append(RunPaths(tmp_path / "3").attempt(1).metrics, {"step": 103})
    injection.turn()
    assert agents.sent == [("n2", {"type": "hurt", "rank": 3, "signal": "SIGSTOP"})]


def test_the_next_attempt_gets_the_next_fault(tmp_path: Path) -> None:
    agents, wanted = Agents(), [faults.KILL_RANK, faults.PREEMPT]
    agents.at(5)
    for attempt in (1, 2, 3):
        injection, heard = _injection(tmp_path / "3", agents, wanted, attempt)
        agents.at(5)
        injection.turn()
        agents.at(8)
        injection.turn()
        assert heard == (["SIGTERM"] if attempt == 2 else [])
    assert len(agents.sent) == 1


def test_a_bit_flips(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    path.write_bytes(b"\0" * 5)
    flip(path)
    assert path.read_bytes() == b"\0\0\4\0\0"
