"""The parsers, on what real Slurms of both versions printed."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from hpcrun.slurm import parse
from hpcrun.slurm.parse import JobState

RECORDED = Path(__file__).parent / "recorded"


@pytest.fixture(params=["22.05", "24.11"])
def recorded(request: pytest.FixtureRequest) -> Path:
    return RECORDED / str(request.param)


def _ids(recorded: Path) -> dict[str, str]:
    ids: dict[str, str] = json.loads((recorded / "ids.json").read_text())
    return ids


def test_squeue_of_a_cluster(recorded: Path) -> None:
    ids = _ids(recorded)
    states = parse.parse_squeue((recorded / "squeue.txt").read_text())
    assert states[ids["ok"]].state == "COMPLETED"
    assert states[ids["bad"]].state == "FAILED"
    assert states[ids["bad"]].comment == "a|b"
    assert states[ids["bad"]].reason == "NonZeroExitCode"
    running = states[ids["long"]]
    assert (running.state, running.nodes, running.comment) == ("RUNNING", "n1", "one|two")
    assert running.start is not None
    assert running.end == running.start + 3600
    waiting = states[ids["array"] + "_7"]
    assert (waiting.state, waiting.nodes, waiting.start) == ("PENDING", "", None)
    assert waiting.reason == "JobArrayTaskLimit"
    assert states[ids["cancelled"]].state == "CANCELLED"
    assert len([key for key in states if key.startswith(ids["big"] + "_")]) == 400


def test_sacct_of_a_cluster(recorded: Path) -> None:
    ids = _ids(recorded)
    states = parse.parse_sacct((recorded / "sacct.txt").read_text())
    assert states[ids["ok"]].exit_code == 0
    assert (states[ids["bad"]].exit_code, states[ids["bad"]].comment) == (3, "a|b")
    assert (states[ids["killed"]].exit_code, states[ids["killed"]].signal) == (0, 9)
    assert states[ids["cancelled"]].state == "CANCELLED"
    assert states[ids["cancelled"]].elapsed == 6
    assert states[ids["array"] + "_9"].state == "PENDING"
    assert len([key for key in states if key.startswith(ids["big"] + "_")]) == 400
    assert states[ids["dependent"]].nodes == ""


def test_both_together(recorded: Path) -> None:
    ids = _ids(recorded)
    queue = parse.parse_squeue((recorded / "squeue.txt").read_text())
    past = parse.parse_sacct((recorded / "sacct.txt").read_text())
    merged = parse.merge(queue, past, controller_answered=True)
    assert merged[ids["bad"]].exit_code == 3
    assert merged[ids["long"]].source == "squeue"
    assert not any(state.state == parse.UNKNOWN for state in merged.values())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("123", ["123"]),
        ("123_4", ["123_4"]),
        ("123_[4]", ["123_4"]),
        ("123_[4-6,9%2]", ["123_4", "123_5", "123_6", "123_9"]),
        ("123_[0-8:4]", ["123_0", "123_4", "123_8"]),
        ("123.batch", []),
        ("123_4.0", []),
        ("123_[1,3...]", []),
        ("", []),
    ],
)
def test_job_ids(text: str, expected: list[str]) -> None:
    assert parse.expand_job_id(text) == expected


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0:06", 6), ("01:00", 60), ("1:00:00", 3600), ("2-03:04:05", 183845), ("INVALID", None)],
)
def test_elapsed(text: str, seconds: float | None) -> None:
    assert parse.parse_elapsed(text) == seconds


@pytest.mark.parametrize("text", ["N/A", "Unknown", "", "0", "NONE"])
def test_a_time_that_is_not_there(text: str) -> None:
    assert parse.parse_time(text) is None


def test_times_in_both_forms() -> None:
    assert parse.parse_time("1795179394") == 1795179394
    assert parse.parse_time("2026-11-20T12:00:00") is not None


@pytest.mark.parametrize(
    ("printed", "state"),
    [("CANCELLED by 1000", "CANCELLED"), ("CANCELLED+", "CANCELLED"), ("", "UNKNOWN")],
)
def test_words_are_normalised(printed: str, state: str) -> None:
    line = f"5|{printed}|None|n1|1795179394|Unknown|00:01:00|0:15|"
    assert parse.parse_sacct(line)["5"].state == state


def _state(state: str, **fields: Any) -> JobState:
    return dataclasses.replace(JobState("5", state), **fields)


@pytest.mark.parametrize(
    ("queue", "past", "controller", "expected"),
    [
        (_state("RUNNING"), _state("FAILED"), True, "RUNNING"),
        (_state("FAILED"), _state("FAILED", source="sacct"), True, "FAILED"),
        (None, _state("RUNNING"), True, "UNKNOWN"),
        (None, _state("RUNNING"), False, "RUNNING"),
        (None, _state("COMPLETED"), True, "COMPLETED"),
        (_state("PENDING"), _state("PREEMPTED"), True, "PENDING"),
        (_state("COMPLETED"), _state("RUNNING"), True, "COMPLETED"),
    ],
)
def test_who_is_right(
    queue: JobState | None, past: JobState, controller: bool, expected: str
) -> None:
    mine = {"5": queue} if queue else {}
    merged = parse.merge(mine, {"5": past}, controller_answered=controller)
    assert merged["5"].state == expected


def test_rubbish_is_passed_over() -> None:
    assert parse.parse_squeue("slurm_load_jobs: notice\n\n1|2\n") == {}
    assert parse.parse_sacct("garbage\n|||\n") == {}


def test_recordings_hold_no_path_of_a_machine(recorded: Path) -> None:
    for path in recorded.iterdir():
        assert not re.search(r"(?<![\w|])/(work|var|home|tmp)/", path.read_text()), path
