"""What a step logs: averaged between real ranks of gloo, and written by rank 0."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from hpcrun.errors import HpcrunError, UsageError
from hpcrun.run.node.rendezvous_port import PortReservation
from hpcrun.run.protocol.attempt_fence import AttemptFence
from hpcrun.run.rank import metrics, process_groups
from hpcrun.run.rank.metrics import MetricsLog
from hpcrun.state import files
from hpcrun.state.layout import AttemptPaths
from tests.support.nursery import nursery
from tests.support.operators import PATH
from tests.support.place import REPOSITORY

PROGRAM = """
import os, sys, time
from pathlib import Path
import torch
from hpcrun.run.protocol.attempt_fence import AttemptFence
from hpcrun.run.rank.metrics import MetricsLog
from hpcrun.state.layout import AttemptPaths

rank, directory, flag = int(os.environ["RANK"]), Path(sys.argv[1]), Path(sys.argv[1], "stop")
torch.distributed.init_process_group("gloo")
log = MetricsLog(
    directory / "metrics.jsonl",
    rank,
    2,
    AttemptFence(AttemptPaths(directory / "attempts" / "1")),
    told_to_stop=flag.exists,
)
left = None
for step in range(1, 41):
    log.log({"loss": torch.tensor(float(step + rank)), "lr": 0.5}, step)
    if log.stop_agreed(step):
        left = step
        break
    time.sleep(0.01)
    if step == 20 and rank == 1:
        BODY
AFTER
began = time.monotonic()
log.leave(0.5)
(directory / f"left-{rank}").write_text(f"{left} {time.monotonic() - began}")
os._exit(0)
"""


def _fence(directory: Path) -> AttemptFence:
    return AttemptFence(AttemptPaths(directory / "attempts" / "1"))


def _two_ranks(directory: Path, body: str = "pass", after: str = "") -> list[dict[str, Any]]:
    """Two ranks run the program; the lines that came of it."""
    program = PROGRAM.replace("BODY", body).replace("AFTER", after)
    port = PortReservation(os.getpid())
    port.release()
    world = {
        **{"PATH": PATH, "PYTHONPATH": str(REPOSITORY), "WORLD_SIZE": "2"},
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port.port), "GLOO_SOCKET_IFNAME": "lo"},
    }
    ranks = [
        nursery().start(["-c", program, str(directory)], env={**world, "RANK": str(rank)}, output=2)
        for rank in (0, 1)
    ]
    try:
        for rank in ranks:
            rank.wait(timeout=60)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return list(files.read_lines(directory / "metrics.jsonl"))


def test_every_step_is_averaged_over_the_ranks(tmp_path: Path) -> None:
    lines = _two_ranks(tmp_path, after="log.flush()")
    assert [line["step"] for line in lines] == list(range(1, 41))
    assert [line["loss"] for line in lines] == [step + 0.5 for step in range(1, 41)]
    assert {line["lr"] for line in lines} == {0.5}


def test_a_loop_that_just_ends_loses_no_line(tmp_path: Path) -> None:
    lines = _two_ranks(tmp_path)
    assert [line["loss"] for line in lines] == [step + 0.5 for step in range(1, 41)]


def test_a_loop_that_destroys_its_group_first_keeps_what_rank_0_knew(tmp_path: Path) -> None:
    lines = _two_ranks(tmp_path, after="torch.distributed.destroy_process_group()")
    assert [line["step"] for line in lines] == list(range(1, 41))
    for line in lines:
        assert line["loss"] == line["step"] + (0.0 if "ranks" in line else 0.5)
    assert lines[-1]["ranks"] == 1


def test_a_rank_that_died_is_not_waited_for(tmp_path: Path) -> None:
    """Rank 0 finds its peer gone at the latest when it leaves."""
    after = "assert left is None"
    program = "os._exit(1)"
    body = f"{program}\n    if step == 20 and rank == 0:\n        break"
    lines = _two_ranks(tmp_path, body, after)
    assert [line["step"] for line in lines] == list(range(1, 21))
    waited = float((tmp_path / "left-0").read_text().split()[1])
    assert waited < 30


def test_a_rank_that_fails_sends_nothing_that_its_peer_would_take_for_a_step(
    tmp_path: Path,
) -> None:
    """It has logged more of step 21 than its peer when it leaves; neither is aborted."""
    body = (
        "log.log({'loss': torch.tensor(0.0), 'eval': torch.tensor(0.0)}, 21)\n"
        "        log.leave(0.5, failing=True)\n"
        "        Path(directory, 'failed').touch()\n"
        "        os._exit(3)\n"
        "    if step == 20 and rank == 0:\n        break"
    )
    lines = _two_ranks(tmp_path, body)
    assert (tmp_path / "failed").exists()
    assert (tmp_path / "left-0").exists()
    for line in lines:
        assert line["loss"] == line["step"] + (0.0 if "ranks" in line else 0.5)


@pytest.mark.parametrize("name", ["step", "time", "ranks"])
def test_a_metric_cannot_have_the_name_of_a_lines_own_field(tmp_path: Path, name: str) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl", 0, 1, _fence(tmp_path))
    with pytest.raises(ValueError, match=f"no metric can be named {name}"):
        log.log({"loss": 1.0, name: 2.0}, 1)


def test_one_rank_that_is_told_to_stop_stops_both_at_the_same_step(tmp_path: Path) -> None:
    _two_ranks(tmp_path, "flag.touch()")
    steps = {(tmp_path / f"left-{rank}").read_text().split()[0] for rank in (0, 1)}
    assert len(steps) == 1
    assert 20 < int(steps.pop()) <= 20 + 2 * (metrics.MOST_STEPS + 1)


def test_several_logs_of_a_step_are_one_line(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl", 0, 1, _fence(tmp_path))
    log.log({"loss": torch.tensor([2.5]), "lr": 1}, 1)
    log.log({"eval": torch.tensor(0.25, dtype=torch.float64)}, 1)
    assert not (tmp_path / "metrics.jsonl").exists()
    log.log({"loss": torch.tensor(1.5)}, 2)
    log.flush()
    log.flush()
    first, second = files.read_lines(tmp_path / "metrics.jsonl")
    assert (first["step"], first["loss"], first["lr"], first["eval"]) == (1, 2.5, 1.0, 0.25)
    assert (second["step"], second["loss"]) == (2, 1.5)


def test_the_user_s_value_counts_wherever_it_is_logged(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl", 0, 1, _fence(tmp_path))
    log.log({"learning_rate": 1.0}, 1)
    log.log({"learning_rate": 2.0, "mfu": 0.5, "gradient_norm": torch.tensor(4.0)}, 1, spare=True)
    log.log({"gradient_norm": 3.0}, 1)
    log.flush()
    (line,) = files.read_lines(tmp_path / "metrics.jsonl")
    found = (line["learning_rate"], line["mfu"], line["gradient_norm"])
    assert found == (1.0, 0.5, 3.0)


def test_what_is_spare_is_in_no_average(tmp_path: Path) -> None:
    """Where the user logs that name on rank 0 alone, its part would be shorter than the others'."""
    for rank, kept in ((0, {"gradient_norm": 4.0}), (1, {})):
        log = MetricsLog(tmp_path / "metrics.jsonl", rank, 2, _fence(tmp_path))
        log.log({"gradient_norm": torch.tensor(4.0)}, 1, spare=True)
        assert (log._steps[-1].plain, log._steps[-1].averaged) == (kept, {})


def test_lines_of_short_steps_are_written_together(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path, 0, 1, _fence(tmp_path))
    for step in range(1, 6):
        log.log({"loss": step}, step)
    log._behind.wait()
    assert [line["step"] for line in files.read_lines(path)] == [1]
    log._written -= metrics.WINDOW
    log.log({"loss": 6}, 6)
    log._behind.wait()
    assert [line["step"] for line in files.read_lines(path)] == [1, 2, 3, 4, 5]
    log.leave(1.0)
    assert [line["step"] for line in files.read_lines(path)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("value", ["good", None, torch.ones(3), [1.0, 2.0]])
def test_what_is_not_one_number_is_refused(tmp_path: Path, value: Any) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl", 0, 1, _fence(tmp_path))
    with pytest.raises(UsageError, match=r"session.log: 'note' is .*accepted are numbers and ten"):
        log.log({"loss": 1.0, "note": value}, 1)


@pytest.mark.parametrize("name", ["loss", "other"])
def test_tensors_that_one_rank_alone_logs_are_an_error(tmp_path: Path, name: str) -> None:
    """Their all-reduce would hang, or average one thing with another."""
    log = f"log.log({{'{name}': torch.tensor(1.0)}}, 41 if rank else 40); "
    body = "pass\n    if step == 40:\n        said = Path(directory, f'said-{rank}')\n"
    body += f"        try:\n            {log}log.flush()\n"
    body += "        except Exception as error:\n            said.write_text(str(error))"
    _two_ranks(tmp_path, body)
    for rank in (0, 1):
        said = (tmp_path / f"said-{rank}").read_text()
        assert "averaged over all ranks, which gave different ones; this rank gave" in said


def test_a_rank_that_fails_in_its_first_step_forms_no_group_as_it_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its peers are busy elsewhere: forming one would hang until the group's timeout."""
    formed: list[bool] = []
    monkeypatch.setattr(process_groups, "own_group", lambda name: formed.append(True))
    log = MetricsLog(tmp_path / "metrics.jsonl", 0, 2, _fence(tmp_path))
    log.log({"loss": torch.tensor(1.0)}, 1)
    log.leave(0.5)
    (line,) = files.read_lines(tmp_path / "metrics.jsonl")
    assert (line["loss"], line["ranks"]) == (1.0, 1)
    assert formed == []


def test_ranks_without_a_process_group_are_told_what_is_missing(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl", 0, 2, _fence(tmp_path))
    log.log({"loss": torch.tensor(1.0)}, 1)
    with pytest.raises(HpcrunError, match="no process group"):
        log.flush()
    log.leave(1.0)
    (line,) = files.read_lines(tmp_path / "metrics.jsonl")
    assert (line["loss"], line["ranks"]) == (1.0, 1)
