"""The ledger of a run and its intent."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from hpcrun.errors import BrokenFile
from hpcrun.state import files, ledger
from hpcrun.state.layout import RunPaths
from hpcrun.state.ledger import copies_sentence


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path / "7")
    paths.directory.mkdir()
    return paths


def _write_two_attempts(run: RunPaths) -> None:
    ledger.write(run, ledger.STARTED, 1, job_id="12_7", nodes=["n1"])
    ledger.write(run, ledger.WORKERS, 1)
    cause = {"kind": "rank_crash", "message": "rank 3 raised ValueError", "rank": 3}
    ledger.write(run, ledger.ENDED, 1, outcome="failed", exit_code=1, cause=cause)
    ledger.write(run, ledger.STARTED, 2, job_id="13_7", nodes=["n2"])


def test_a_run_that_never_started_has_no_attempts(run: RunPaths) -> None:
    assert ledger.read(run) == []


def test_attempts_in_order_with_what_is_known_of_each(run: RunPaths) -> None:
    before = time.time()
    _write_two_attempts(run)
    first, second = ledger.read(run)
    assert (first.number, first.outcome, first.started["nodes"]) == (1, "failed", ["n1"])
    assert first.cause is not None
    assert first.cause["rank"] == 3
    assert first.workers_started is not None
    assert before <= first.started["time"] <= first.workers_started <= time.time()
    assert (second.number, second.outcome, second.cause) == (2, None, {})
    assert second.workers_started is None
    assert second.ended is None


def test_two_attempts_may_write_in_turn(run: RunPaths) -> None:
    ledger.write(run, ledger.STARTED, 2)
    ledger.write(run, ledger.STARTED, 1)
    ledger.write(run, ledger.ENDED, 2, outcome="completed", exit_code=0, cause=None)
    ledger.write(run, ledger.ENDED, 1, outcome="cancelled", exit_code=1)
    found = [(each.number, each.outcome) for each in ledger.read(run)]
    assert found == [(1, "cancelled"), (2, "completed")]


def test_every_prefix_of_a_ledger_can_be_read(run: RunPaths) -> None:
    """A crash may cut the file anywhere; what was whole before the cut still counts."""
    _write_two_attempts(run)
    whole = run.ledger.read_bytes()
    ends = [index for index in range(len(whole)) if whole[index : index + 1] == b"\n"]
    for cut in range(len(whole)):
        run.ledger.write_bytes(whole[:cut])
        # A line that lacks only its newline is whole.
        lines = sum(end <= cut for end in ends)
        attempts = ledger.read(run)
        assert len(attempts) == (0, 1, 1, 1, 2)[lines]
        assert (attempts[0].outcome if attempts else None) == ("failed" if lines >= 3 else None)


def test_an_event_after_a_torn_line_is_kept(run: RunPaths) -> None:
    ledger.write(run, ledger.STARTED, 1)
    with open(run.ledger, "ab") as stream:
        stream.write(b'{"event":"attempt_en')
    ledger.write(run, ledger.STARTED, 2)
    assert [attempt.number for attempt in ledger.read(run)] == [1, 2]


def test_foreign_lines_are_passed_over(run: RunPaths) -> None:
    files.append(run.ledger, {"event": "attempt_started"})
    assert ledger.read(run) == []
    files.append(run.ledger, {"event": "of a later version", "attempt": 1})
    (attempt,) = ledger.read(run)
    assert (attempt.started, attempt.outcome) == ({}, None)


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ({"event": ledger.STARTED, "attempt": "1"}, "attempt is '1', not a whole number from 0"),
        ({"event": ledger.STARTED, "attempt": 10**10}, "attempt is 10000000000, not"),
        ({"event": [ledger.STARTED], "attempt": 1}, "event is ['attempt_started'], not text"),
        ({"event": ledger.STARTED, "attempt": 1, "nodes": [7]}, "nodes is [7], not a list of"),
        ({"event": ledger.STARTED, "attempt": 1, "time": 1e99}, "time is 1e+99, not a time"),
        ({"event": ledger.STARTED, "attempt": 1, "job_id": "--user=x"}, "job_id is '--user=x'"),
        ({"event": ledger.ENDED, "attempt": 1}, "outcome is missing"),
        (
            {"event": ledger.ENDED, "attempt": 1, "outcome": "failed", "cause": {"kind": {}}},
            "cause.kind is {}, not text",
        ),
    ],
)
def test_a_record_that_no_supervisor_wrote_is_named_with_its_line(
    run: RunPaths, record: dict[str, object], problem: str
) -> None:
    ledger.write(run, ledger.STARTED, 1)
    files.append(run.ledger, record)
    with pytest.raises(BrokenFile) as broken:
        ledger.read(run)
    assert broken.value.message.startswith(f"{run.ledger}:2: {problem}")


@pytest.mark.parametrize("data", [b"\0" * 4096, b"\0\0\n{}[\n", b"no ledger\n"])
def test_a_ledger_without_any_event_is_not_that_of_a_new_run(run: RunPaths, data: bytes) -> None:
    run.ledger.write_bytes(data)
    with pytest.raises(BrokenFile, match="it holds no event of a run"):
        ledger.read(run)


def test_an_intent_is_on_disk_until_it_is_taken_back(tmp_path: Path) -> None:
    run = RunPaths(tmp_path / "not" / "there" / "3")
    assert ledger.intent(run) is None
    ledger.set_intent(run, ledger.CANCELLED)
    assert ledger.intent(run) == "cancelled"
    ledger.set_intent(run, ledger.FINISHED)
    assert ledger.intent(run) == "finished"
    ledger.set_intent(run, None)
    assert ledger.intent(run) is None
    ledger.set_intent(run, None)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"intent":"dance"}', '{"other":1}', "\0\0"])
def test_an_intent_that_says_nothing_known_is_none(run: RunPaths, text: str) -> None:
    run.intent.write_text(text)
    assert ledger.intent(run) is None


def _role_event(what: str, ranks: list[int], **given: Any) -> dict[str, Any]:
    return {
        "role": "server",
        "what": what,
        "ranks": ranks,
        "why": "server 1 ended by SIGKILL",
        **given,
    }


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (_role_event("restarted", [5], node="n2"), "rank 5 started anew on n2"),
        (_role_event("moved", [4, 5], node="n2"), "ranks 4-5 moved to n2"),
        (_role_event("ignored", [5]), "the run goes on without rank 5"),
        (_role_event("promoted", [5]), "promoted"),
    ],
)
def test_what_became_of_ranks_in_words(event: dict[str, Any], words: str) -> None:
    assert ledger.role_sentence(event) == f"role server: server 1 ended by SIGKILL; {words}"


def test_a_summary_of_roles() -> None:
    events = [
        _role_event("restarted", [5]),
        _role_event("restarted", [4]),
        _role_event("moved", [4]),
    ]
    assert ledger.roles_summary(events) == "server restarted 2x, server moved 1x"


def _copies_record(**changed: object) -> dict[str, object]:
    found = {"nodes": 1, "files": 2, "bytes": 3_000_000, "copied": 3_000_000, "seconds": 4.2}
    return {**found, "slowest": "n1", "notes": [], "count": 0, **changed}


def test_the_ledger_takes_terabytes(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    ledger.write(run, ledger.STARTED, 1)
    ledger.write(run, ledger.COPIED, 1, **_copies_record(bytes=3 * 10**12, copied=6 * 10**13))
    [attempt] = ledger.read(run)
    assert attempt.copied is not None
    assert attempt.copied["bytes"] == 3 * 10**12


def test_copies_in_words() -> None:
    assert copies_sentence(_copies_record()) == "staged 3.0 MB in 2 files on 1 node in 4 s"
    assert copies_sentence(_copies_record(copied=0)).endswith("in 4 s: all of it was there already")
    text = copies_sentence(_copies_record(nodes=3, copied=6_000_000))
    assert text == (
        "staged 3.0 MB in 2 files on each of 3 nodes in 4 s (the longest, on n1), 6.0 MB of it "
        "copied now"
    )
