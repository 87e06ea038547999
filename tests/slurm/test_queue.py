"""The state of jobs: what real Slurms of both versions printed, and a Slurm that is half there."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from hpcrun.errors import ClusterUnreachable
from hpcrun.slurm import client, queue
from hpcrun.slurm.queue import JobMark, JobState
from tests.support.slurm_shim import Shim

RECORDED = Path(__file__).parent / "recorded"
RUNNING = "7|RUNNING|None|n1|1795179394\n"
ENDED = "7|FAILED|None|n1|1795179394|3:0|1795179999\n"
DOWN = {"err": "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n"}
NO_DATABASE = {"err": "sacct: error: Problem talking to the database: Connection refused\n"}
SLOW = {"err": "slurm_load_jobs error: Socket timed out on send/recv operation\n", "code": 1}


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_PAUSES", (0.0, 0.0))


@pytest.fixture(params=["22.05", "24.11"])
def recorded(request: pytest.FixtureRequest) -> Path:
    return RECORDED / str(request.param)


def _ids(recorded: Path) -> dict[str, str]:
    ids: dict[str, str] = json.loads((recorded / "ids.json").read_text())
    return ids


def test_squeue_of_a_cluster(recorded: Path) -> None:
    ids = _ids(recorded)
    states = queue.parse_squeue((recorded / "squeue.txt").read_text())
    assert states[ids["ok"]].state == "COMPLETED"
    assert states[ids["bad"]].state == "FAILED"
    assert states[ids["bad"]].reason == "NonZeroExitCode"
    running = states[ids["long"]]
    assert (running.state, running.nodes) == ("RUNNING", "n1")
    assert running.start is None
    waiting = states[ids["array"] + "_7"]
    assert (waiting.state, waiting.nodes, waiting.start) == ("PENDING", "", None)
    assert waiting.reason == "JobArrayTaskLimit"
    assert states[ids["cancelled"]].state == "CANCELLED"
    assert len([key for key in states if key.startswith(ids["big"] + "_")]) == 400


def test_sacct_of_a_cluster(recorded: Path) -> None:
    ids = _ids(recorded)
    states = queue.parse_sacct((recorded / "sacct.txt").read_text())
    assert states[ids["ok"]].exit_code == 0
    assert states[ids["bad"]].exit_code == 3
    assert states[ids["killed"]].exit_code == 0
    assert states[ids["cancelled"]].state == "CANCELLED"
    assert states[ids["array"] + "_9"].state == "PENDING"
    assert len([key for key in states if key.startswith(ids["big"] + "_")]) == 400
    assert states[ids["dependent"]].nodes == ""


def test_both_together(recorded: Path) -> None:
    ids = _ids(recorded)
    waiting = queue.parse_squeue((recorded / "squeue.txt").read_text())
    past = queue.parse_sacct((recorded / "sacct.txt").read_text())
    merged = queue.merge(waiting, past, controller_answered=True)
    assert merged[ids["bad"]].exit_code == 3
    assert merged[ids["long"]].exit_code is None
    assert not any(state.state == queue.UNKNOWN for state in merged.values())


@pytest.mark.parametrize(
    ("printed", "state"),
    [("CANCELLED by 1000", "CANCELLED"), ("CANCELLED+", "CANCELLED"), ("", "UNKNOWN")],
)
def test_words_are_normalised(printed: str, state: str) -> None:
    line = f"5|{printed}|None|n1|1795179394|0:15|Unknown"
    assert queue.parse_sacct(line)["5"].state == state


def test_when_a_waiting_job_is_expected_to_start() -> None:
    line = "5|PENDING|Priority||1795179394\n6|PENDING|Priority||N/A\n7|RUNNING|None|n1|1795179394"
    states = queue.parse_squeue(line)
    assert [states[job].start for job in ("5", "6", "7")] == [1795179394, None, None]


@pytest.mark.parametrize(
    ("first", "further", "reason"),
    [("None", "Resources", "Resources"), ("Priority", "Resources", "Priority")],
)
def test_a_heterogeneous_job_is_its_first_part(first: str, further: str, reason: str) -> None:
    line = f"5+1|PENDING|{further}||N/A\n5+0|PENDING|{first}||1795179394\n8+1|RUNNING|None|n3|1\n"
    (found,) = queue.parse_squeue(line).values()
    assert (found.job_id, found.reason, found.start) == ("5", reason, 1795179394)


def _state(state: str, **fields: Any) -> JobState:
    return dataclasses.replace(JobState("5", state), **fields)


@pytest.mark.parametrize(
    ("current", "past", "controller", "expected"),
    [
        (_state("RUNNING"), _state("FAILED"), True, "RUNNING"),
        (_state("FAILED"), _state("FAILED", exit_code=1), True, "FAILED"),
        (None, _state("RUNNING"), True, "UNKNOWN"),
        (None, _state("RUNNING"), False, "RUNNING"),
        (None, _state("COMPLETED"), True, "COMPLETED"),
        (_state("PENDING"), _state("PREEMPTED"), True, "PENDING"),
        (_state("COMPLETED"), _state("RUNNING"), True, "COMPLETED"),
    ],
)
def test_who_is_right(
    current: JobState | None, past: JobState, controller: bool, expected: str
) -> None:
    mine = {"5": current} if current else {}
    merged = queue.merge(mine, {"5": past}, controller_answered=controller)
    assert merged["5"].state == expected


OURS = JobMark(Path("/root/study/submissions/3"))


@pytest.mark.parametrize(
    ("told", "began", "ours"),
    [
        ("50 U /root/study/submissions/3", None, True),
        # The same directory, as another host mounts it.
        ("50 U /mnt/nfs 1/root/study/submissions/3", None, True),
        ("50 U /root/study/submissions/4", None, False),
        ("50 U /home/me", None, False),
        ("50 12345 /root/study/submissions/3", None, False),
        # In an allocation `hpcrun run` may be used anywhere, after it was made.
        ("50 U /home/me", 60.0, True),
        ("50 12345 /home/other", 60.0, False),
        ("9000 U /home/me", 60.0, False),
        # Slurm does not tell; accounts of a job that ended before it could start tell root.
        ("", None, True),
        ("50 0", None, True),
    ],
)
def test_a_job_is_ours_by_its_number_and_its_mark(
    told: str, began: float | None, ours: bool
) -> None:
    told = told.replace("U", str(os.getuid()))
    mark = dataclasses.replace(OURS, began=began)
    (queued,) = queue.parse_squeue(f"7|RUNNING|None|n1|40 N/A {told}").values()
    head, _, path = told.partition(" /")
    row = "|".join([*head.split(" "), f"/{path}" if path else ""]) if head else ""
    (past,) = queue.parse_sacct(f"7|RUNNING|None|n1|40|0:0|Unknown|{row}").values()
    for state in (queued, past):
        assert (mark.problem(state) is None) is ours
        checked = mark.checked(state)
        assert checked.is_alive is ours
        assert ours or "given the number 7 to another" in checked.reason


def test_the_largest_task_of_each_of_my_jobs(shim: Shim) -> None:
    """Of all starts and steps of a requeued job; a number that is another's by its mark is none."""
    mine, other = f"{os.getuid()}|/mnt/study/submissions/3", "12345|/root/study/submissions/3"
    rows = [
        f"7||e|{mine}",
        *("7.batch|2G|batch||", "7.extern|0|extern||", "7.0|1.50G|hpcrun-workers-1||"),
        *("7.2|3G|hpcrun-agent||", "7.3|4G|hpcrun-beside||", f"7||e|{mine}"),
        *("7.batch|2M|batch||", "7.0||hpcrun-workers-2||", "7.1|812.50M|hpcrun-workers-3||"),
        f"7||e|{other}",
        *("7.0|90G|w||", f"9_4||e|{mine}", "9_4.0|7K|w||", f"9_5||e|{mine}", "9_5.0|80G|w||"),
        *(f"5+0||e|{mine}", "5+0.0|3M|w||", f"5+1||e|{mine}", "5+1.0|70G|w||"),
        *(f"6||e|{os.getuid()}|/home/me", "6.0|60G|w||", f"4||e|{os.getuid()}|", "4.0|50G|w||"),
        f"3||e|{mine} | 4",
    ]
    shim.answer("sacct", {"out": "\n".join(rows)})
    found = queue.largest_tasks(dict.fromkeys(("7", "9_4", "5", "6", "4", "3", "local:8"), OURS))
    assert found == {"7": (3 << 29, "7.0"), "9_4": (7 << 10, "9_4.0"), "5": (3 << 20, "5+0.0")}
    (asked,) = shim.calls
    assert "--jobs=3,4,5,6,7,9_4" in asked
    assert queue.largest_tasks({"local:8": OURS}) == {}
    assert len(shim.calls) == 1


def test_rubbish_is_passed_over() -> None:
    assert queue.parse_squeue("slurm_load_jobs: notice\n\n1|2\n") == {}
    assert queue.parse_sacct("garbage\n|||\n") == {}


def test_recordings_hold_no_path_of_a_machine(recorded: Path) -> None:
    for path in recorded.iterdir():
        assert not re.search(r"(?<![\w|])/(work|var|home|tmp)/", path.read_text()), path


def test_a_living_job_costs_one_call(shim: Shim) -> None:
    shim.answer("squeue", {"out": RUNNING})
    states = queue.query(["7", "local:12"])
    assert states["7"].state == "RUNNING"
    assert not states.problems
    assert [call[0] for call in shim.calls] == ["squeue"]


def test_thousands_of_elements_are_one_question(shim: Shim) -> None:
    lines = "".join(f"7_{n}|PENDING|Priority||N/A\n" for n in range(1, 1001))
    shim.answer("squeue", {"out": lines})
    states = queue.query([f"7_{n}" for n in range(1, 1001)])
    assert len(states) == 1000
    assert len(shim.calls) == 1
    assert "--jobs=7" in shim.calls[0]


def test_an_ended_job_is_asked_of_accounting(shim: Shim) -> None:
    shim.answer("squeue", {"err": "slurm_load_jobs error: Invalid job id specified\n", "code": 1})
    shim.answer("sacct", {"out": ENDED})
    states = queue.query(["7"])
    assert states["7"].exit_code == 3
    assert not states.problems


def test_only_elements_asked_for_are_returned(shim: Shim) -> None:
    shim.answer("squeue", {"out": RUNNING.replace("7|", "7_1|") + RUNNING.replace("7|", "7_2|")})
    assert list(queue.query(["7_2"])) == ["7_2"]
    assert sorted(queue.query(["7"])) == ["7_1", "7_2"]


def test_slurmctld_down(shim: Shim) -> None:
    shim.answer("squeue", {**DOWN, "code": 1})
    shim.answer("sacct", {"out": ENDED})
    states = queue.query(["7", "8"])
    assert states["7"].state == "FAILED"
    assert states.controller_is_down
    assert "slurmctld does not answer" in states.problems[0]


def test_slurmdbd_down(shim: Shim) -> None:
    shim.answer("squeue", {"out": RUNNING})
    shim.answer("sacct", {**NO_DATABASE, "code": 1})
    states = queue.query(["7", "8"])
    assert list(states) == ["7"]
    assert states.problems
    assert not states.controller_is_down


def test_no_accounting_at_all_is_no_problem(shim: Shim) -> None:
    shim.answer("squeue", {"out": ""})
    shim.answer("sacct", {"err": "Slurm accounting storage is disabled\n", "code": 1})
    assert not queue.query(["7"]).problems


def test_both_down(shim: Shim) -> None:
    shim.answer("squeue", {**DOWN, "code": 1})
    shim.answer("sacct", {**NO_DATABASE, "code": 1})
    with pytest.raises(ClusterUnreachable, match=r"slurmctld does not answer.*sacct"):
        queue.query(["7"])


def test_a_pause_is_waited_out(shim: Shim) -> None:
    shim.answer("squeue", SLOW, SLOW, {"out": RUNNING})
    assert queue.query(["7"])["7"].state == "RUNNING"
    assert len(shim.calls) == 3


def test_a_command_that_hangs(shim: Shim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "TIMEOUT", 3)
    shim.answer("squeue", {"sleep": 30})
    shim.answer("sacct", {"out": ENDED})
    states = queue.query(["7"])
    assert states.controller_is_down
    assert states.problems == ("slurmctld has not answered for 3 s",)


def test_nothing_of_an_outer_job_reaches_slurm(shim: Shim, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_CPU_BIND", "SBATCH_PARTITION", "PMI_RANK", "PMIX_ID"):
        monkeypatch.setenv(name, "outer")
    for name in ("SQUEUE_USERS", "SACCT_FORMAT", "SLURM_CLUSTERS", "PMI2_X"):
        monkeypatch.setenv(name, "habit")
    monkeypatch.setenv("SLURM_CONF", "conf")
    monkeypatch.setenv("HOME_OF_SLURM_USERS", "kept")
    shim.answer("squeue", {"out": RUNNING})
    queue.query(["7"])
    seen = shim.environments[0]
    assert seen["SLURM_CONF"] == "conf"
    assert seen["HOME_OF_SLURM_USERS"] == "kept"
    assert not {"outer", "habit"} & set(seen.values())
