"""What an attempt left behind, as evidence."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from hpcrun.errors import EXIT_SAVED
from hpcrun.run.checkpoint import checkpoint_files
from hpcrun.run.job import evidence
from hpcrun.run.job.rank_places import RankEnd
from hpcrun.state import files, ledger, session_log
from hpcrun.state.layout import AttemptPaths, RunPaths
from hpcrun.state.manifest import Manifest
from hpcrun.state.plan import Entry, RunPlan

KILLED = RankEnd(2, "n2", None, "SIGKILL")
EXITED = RankEnd(1, "n1", 3, None)


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptPaths:
    return AttemptPaths(tmp_path)


def _record(rank: int, time: float = 1.0, **fields: Any) -> dict[str, Any]:
    empty = {"exit_code": None, "signal": None, "exception": None, "message": None}
    return {"rank": rank, "node": f"n{rank}", "time": time, **empty, **fields}


RAISED = _record(1, exit_code=1, exception="ValueError", message="bad loss")
SAVED = _record(3, exit_code=75)

# name: (records, launcher's sighting) -> (rank, exit code, signal, exception) of the first failure
TABLE: dict[str, tuple[list[dict[str, Any]], RankEnd | None, tuple[Any, ...] | None]] = {
    "nothing went wrong": ([], None, None),
    "an exception": ([RAISED], RankEnd(1, "n1", 1, None), (1, 1, None, "ValueError")),
    "a child ended by a signal": (
        [_record(0, signal="SIGSEGV")],
        None,
        (0, None, "SIGSEGV", None),
    ),
    "only the launcher saw an exit": ([], EXITED, (1, 3, None, None)),
    "a killed rank leaves no record": ([], KILLED, (2, None, "SIGKILL", None)),
    "its peers fail after it": ([RAISED], KILLED, (2, None, "SIGKILL", None)),
    "the earliest record counts": (
        [_record(0, 9.0, exit_code=4), _record(5, 2.0, exit_code=6)],
        EXITED,
        (5, 6, None, None),
    ),
    "a record comes before an exit that was seen": (
        [_record(4, exit_code=9)],
        EXITED,
        (4, 9, None, None),
    ),
    "saved and wants more": ([SAVED], RankEnd(3, "n3", 75, None), (3, 75, None, None)),
    "one failed while the others had saved": (
        [SAVED, _record(1, 5.0, exit_code=1, exception="OSError")],
        RankEnd(3, "n3", 75, None),
        (1, 1, None, "OSError"),
    ),
    "Slurm ended them all after a rank had left": (
        [_record(1, exit_code=5)],
        RankEnd(0, "n1", None, "SIGKILL", by_slurm=True),
        (1, 5, None, None),
    ),
    "records of no use": ([{}, {"rank": "1"}], EXITED, (1, 3, None, None)),
}


@pytest.mark.parametrize("name", TABLE)
def test_the_first_failure(attempt: AttemptPaths, name: str) -> None:
    left, seen, expected = TABLE[name]
    for index, record in enumerate(left):
        files.write_json(attempt.exit_record(index), record)
    found = evidence.failure(attempt, seen)
    if expected is None:
        assert found is None
        return
    assert found is not None
    keys = ("rank", "exit_code", "signal", "exception")
    assert tuple(found.get(key) for key in keys) == expected


@pytest.mark.parametrize("ahead", [-30.0, -1.0, 1.0, 30.0])
def test_the_first_failure_where_clocks_are_apart(attempt: AttemptPaths, ahead: float) -> None:
    """Rank 1, whose node's clock is wrong, failed two seconds before its peer did for that."""
    for rank, after, wrong_by in ((0, 2.0, 0.0), (1, 0.0, ahead)):
        path, moment = attempt.exit_record(rank), 1_700_000_000.0 + after
        files.write_json(path, _record(rank, moment + wrong_by, exit_code=1))
        os.utime(path, (moment + 0.1, moment + 0.1))
    assert (evidence.failure(attempt, None) or {})["rank"] == 1


BOOM = {"exit_code": 1, "exception": "ValueError", "message": "batch 17 is bad"}
WAITS = {**BOOM, "traceback": "/torch/distributed/barrier"}

# name: (first failure, records of others, ends that the launcher saw) -> who ended alike
ALIKE: dict[str, tuple[dict[str, Any], list[dict[str, Any]], list[RankEnd], dict[int, Any]]] = {
    "the same but for numbers": (
        _record(1, **BOOM),
        [_record(1, **BOOM), _record(4, **{**BOOM, "message": "batch 3 is bad"})],
        [RankEnd(1, "n1", 1, None), RankEnd(0, "n0", 1, None)],
        {4: "n4"},
    ),
    "another error": (_record(1, **BOOM), [_record(2, exception="KeyError")], [], {}),
    "killed on two nodes": (
        vars(KILLED),
        [],
        [KILLED, RankEnd(3, "n3", None, "SIGKILL"), RankEnd(4, "n4", None, "SIGTERM")],
        {3: "n3"},
    ),
    "killed as Slurm ended the step": (
        vars(KILLED),
        [],
        [KILLED, RankEnd(3, "n3", None, "SIGKILL", by_slurm=True)],
        {},
    ),
    "an exit code of its own": (vars(EXITED), [], [EXITED, RankEnd(5, "n5", 3, None)], {5: "n5"}),
    "an exit code that tells nothing": (
        vars(RankEnd(1, "n1", 1, None)),
        [],
        [RankEnd(5, "n5", 1, None)],
        {},
    ),
    "aborted as its peer was gone": (
        vars(RankEnd(1, "n1", None, "SIGABRT")),
        [],
        [RankEnd(5, "n5", None, "SIGABRT")],
        {},
    ),
    "what waited for it": (_record(1, **BOOM), [_record(2, **WAITS)], [], {}),
}


@pytest.mark.parametrize("name", ALIKE)
def test_ranks_that_ended_as_the_first_did(attempt: AttemptPaths, name: str) -> None:
    found, left, ends, expected = ALIKE[name]
    for record in left:
        files.write_json(attempt.exit_record(record["rank"]), record)
    assert evidence.alike(attempt, found, ends) == expected


def test_a_program_that_ended_alike_is_read_from_its_log(attempt: AttemptPaths) -> None:
    end = b'Traceback (most recent call last):\n  File "a.py", line 1\nValueError: batch 9 is bad\n'
    for rank in (0, 1):
        attempt.rank_log(rank).parent.mkdir(parents=True, exist_ok=True)
        attempt.rank_log(rank).write_bytes(end)
    ends = {rank: RankEnd(rank, f"n{rank}", 1, None) for rank in (0, 1)}
    found = evidence.failure(attempt, ends[0], ends)
    assert evidence.alike(attempt, found or {}, ends.values()) == {1: "n1"}


def test_a_torn_record_is_passed_over(attempt: AttemptPaths) -> None:
    attempt.exit_record(0).write_text('{"rank": 0, "exit')
    found = evidence.failure(attempt, EXITED)
    assert found is not None
    assert found["rank"] == 1


def test_the_end_of_the_ranks_log_is_kept(attempt: AttemptPaths) -> None:
    attempt.rank_log(2).write_bytes(b"".join(b"line %d\n" % n for n in range(5000)) + b"\xfflast")
    found = evidence.failure(attempt, KILLED)
    assert found is not None
    assert found["log_tail"] == [f"line {n}" for n in range(4981, 5000)] + ["\ufffdlast"]
    assert not found["out_of_memory"]


@pytest.mark.parametrize("end", ["\r", "\n"])
def test_a_progress_bar_does_not_push_the_cause_out(attempt: AttemptPaths, end: str) -> None:
    """The updates of tqdm after a traceback are many times what a log's tail has room for."""
    cause = ["Traceback (most recent call last):", '  File "a.py", line 3', "KeyError: 'lr'"]
    bars = [f" {n // 50}%|██▏   | {n}/5000 [00:01<00:07, 11.5it/s]" for n in range(5000)]
    attempt.rank_log(1).write_text("\n".join(cause) + "\n" + end.join(bars))
    found = evidence.failure(attempt, EXITED)
    assert found is not None
    assert found["log_tail"] == [*cause, f"{bars[-1]}  (the last of 5000 updates)"]


@pytest.mark.parametrize(
    ("end", "raised"),
    [
        (RankEnd(1, "n1", 1, None), ("KeyError", "'lr'")),
        (RankEnd(1, "n1", 3, None), (None, None)),
        (RankEnd(1, "n1", None, "SIGKILL"), (None, None)),
    ],
)
def test_what_a_script_raised_is_read_from_its_log(
    attempt: AttemptPaths, end: RankEnd, raised: tuple[str | None, str | None]
) -> None:
    """A Python program that an exception ended has the exit code 1."""
    lines = ["Traceback (most recent call last):", '  File "a.py", line 3', "KeyError: 'lr'"]
    attempt.rank_log(1).write_text("\n".join(lines) + "\n")
    found = evidence.failure(attempt, end)
    assert found is not None
    assert (found.get("exception"), found.get("message")) == raised


@pytest.mark.parametrize(
    ("code", "line", "told"),
    [
        (1, "DeepSpeed [launch.py:2:x] [] exits with return code = -9", (None, "SIGKILL")),
        (1, "DeepSpeed [launch.py:2:x] [] exits with return code = 2", (2, None)),
        (
            1,
            f"DeepSpeed [launch.py:2:x] [] exits with return code = {EXIT_SAVED}",
            (EXIT_SAVED, None),
        ),
        (137, "", (None, "SIGKILL")),
        (3, "", (3, None)),
    ],
)
def test_a_launchers_process_ended_and_not_the_launcher(
    attempt: AttemptPaths, code: int, line: str, told: tuple[int | None, str | None]
) -> None:
    """The launcher's own exit code would hide the memory that ran out, the usage, the save."""
    attempt.rank_log(1).write_text(f"{line}\n")
    found = evidence.failure(attempt, RankEnd(1, "n1", code, None))
    assert found is not None
    assert found["signal"] == told[1]
    assert told[0] in (None, found["exit_code"])


def test_slurm_writes_into_the_ranks_log_that_the_kernel_killed_it(attempt: AttemptPaths) -> None:
    words = "slurmstepd: error: Detected 1 oom_kill event in StepId=5.1.\n"
    attempt.rank_log(2).write_text(words)
    found = evidence.failure(attempt, KILLED)
    assert found is not None
    assert found["out_of_memory"]
    attempt.rank_log(1).write_text(words)
    found = evidence.failure(attempt, EXITED)
    assert found is not None
    assert not found["out_of_memory"]


def test_a_tail_is_bounded_and_never_missed(attempt: AttemptPaths) -> None:
    assert (evidence.failure(attempt, EXITED) or {})["log_tail"] == []
    attempt.rank_log(1).write_bytes(b"x" * 10_000_000)
    (line,) = (evidence.failure(attempt, EXITED) or {})["log_tail"]
    assert line.startswith("xxx")
    assert len(line) < 2_100


def test_how_far_it_came(tmp_path: Path) -> None:
    run = RunPaths(tmp_path / "3")
    attempt = run.attempt(2)
    attempt.directory.mkdir(parents=True)
    assert evidence.progress(run, attempt) == evidence.AttemptProgress(None, None, None)
    files.append(attempt.metrics, {"step": 7})
    assert evidence.progress(run, attempt) == evidence.AttemptProgress(None, 7, None, first_step=7)
    files.append(attempt.session, {"event": "restored", "step": 4})
    assert evidence.progress(run, attempt) == evidence.AttemptProgress(4, 7, 0)
    directory = run.checkpoint(6, 2)
    directory.mkdir(parents=True)
    (directory / "model.pt").write_bytes(b"weights")
    Manifest(
        6, 2, 0.0, 1, 0, 8, {"model.pt": checkpoint_files.describe(directory / "model.pt")}
    ).write(directory)
    files.append(attempt.session, {"event": "saved", "step": 6})
    assert evidence.progress(run, attempt) == evidence.AttemptProgress(4, 7, 6)


def test_the_saves_of_a_program_that_were_seen(tmp_path: Path) -> None:
    run = RunPaths(tmp_path / "3")
    first, second = run.attempt(1), run.attempt(2)
    for attempt in (first, second):
        attempt.directory.mkdir(parents=True)
    files.append(first.metrics, {"step": 10}, {"step": 20})
    files.append(first.session, {"event": "saved", "step": 10, "checkpoint": "out/checkpoint-10"})
    files.append(second.metrics, {"step": 15})
    files.append(second.session, {"event": "seen", "step": 15, "time": 50.0})
    found = evidence.progress(run, first)
    assert (found.first_step, found.reached_step) == (10, 20)
    assert (found.checkpoint_step, found.saves) == (10, 1)
    found = evidence.progress(run, second)
    assert (found.checkpoint_step, found.saves, found.logged) == (10, 0, 50.0)
    files.append(second.session, {"event": "saved", "checkpoint": "ckpt.pt"})
    found = evidence.progress(run, second)
    assert (found.checkpoint_step, found.saves) == (None, 1)


WAITED = 'File "/site-packages/torch/distributed/distributed_c10d.py", line 1, in all_reduce'
EXCHANGED = 'File "/jobs/hpcrun.zip/hpcrun/run/rank/async_allreduce.py", line 9, in wait'
SENT = 'File "/jobs/hpcrun.zip/hpcrun/run/rank/peer_messages.py", line 9, in wait'
OWN = 'File "/code/train.py", line 7, in step'
ABORTED = RankEnd(3, "n3", None, "SIGABRT")


@pytest.mark.parametrize(
    ("where", "ends", "gone", "expected"),
    [
        # Gone without a word: its launcher took that for a good end.
        (WAITED, {1: EXITED}, [2], (2, 0, None)),
        (EXCHANGED, {1: EXITED}, [2], (2, 0, None)),
        (SENT, {1: EXITED}, [0], (0, 0, None)),
        # The launcher told of its signal only after its peer had failed.
        (WAITED, {1: EXITED, 2: KILLED}, [2], (2, None, "SIGKILL")),
        (WAITED, {1: EXITED, 2: KILLED}, [0, 2], (2, None, "SIGKILL")),
        # A library aborts ranks whose peers are gone, and ranks whose peer has failed.
        (WAITED, {1: EXITED, 3: ABORTED}, [0, 3], (0, 0, None)),
        (WAITED, {1: EXITED, 3: ABORTED}, [3], (3, None, "SIGABRT")),
        (OWN, {1: EXITED, 3: ABORTED}, [3], (1, 1, None)),
        # It has left a record.
        (WAITED, {1: EXITED}, [1], (1, 1, None)),
        (WAITED, {1: EXITED}, [], (1, 1, None)),
    ],
)
def test_a_rank_that_was_gone_before_its_peers_failed(
    attempt: AttemptPaths,
    where: str,
    ends: dict[int, RankEnd],
    gone: list[int],
    expected: tuple[Any, ...],
) -> None:
    files.write_json(attempt.exit_record(1), {**RAISED, "traceback": where})
    found = evidence.failure(attempt, EXITED, ends, gone)
    assert found is not None
    assert (found["rank"], found["exit_code"], found["signal"]) == expected


def test_what_a_program_put_in_place_of_its_records_costs_what_they_would_have_told(
    tmp_path: Path,
) -> None:
    run = RunPaths(tmp_path)
    attempt = run.attempt(1)
    attempt.directory.mkdir(parents=True)
    attempt.metrics.symlink_to(attempt.metrics.name)
    os.mkfifo(attempt.session)
    assert evidence.progress(run, attempt) == evidence.AttemptProgress(None, None, None)
    assert not evidence.session(attempt).finished


@pytest.mark.parametrize(
    "fields",
    [
        *({"rank": 1 << 70}, {"rank": -1}, {"rank": True}, {"rank": 1, "time": "now"}),
        *({"rank": 1, "exit_code": [1]}, {"rank": 1, "exception": {}}, {"rank": 1, "node": 5}),
    ],
    ids=str,
)
def test_a_record_of_a_rank_that_is_none_is_not_one(
    attempt: AttemptPaths, fields: dict[str, Any]
) -> None:
    files.write_json(attempt.exit_record(1), fields)
    assert evidence.failure(attempt, None) is None
    # One that is sound, beside it.
    files.write_json(attempt.exit_record(2), _record(2, exit_code=4))
    assert (evidence.failure(attempt, None) or {})["rank"] == 2


@pytest.mark.parametrize("record", [{"lost_nodes": 5}, {"lost_nodes": [1]}, []], ids=str)
def test_a_record_of_an_orphan_that_is_none(attempt: AttemptPaths, record: Any) -> None:
    files.write_json(attempt.orphaned, record)
    assert evidence.orphaned(attempt) is None


MISSING = {"exit_code": 1, "exception": "ModuleNotFoundError", "message": "No module named 'x'"}
ABSENT = "[Errno 2] No such file or directory: 'a.yaml'"
FILE = {"exit_code": 1, "exception": "FileNotFoundError", "message": ABSENT}


def _permanent(
    attempt: AttemptPaths, records: list[dict[str, Any]], **options: Any
) -> dict[str, Any]:
    run = RunPlan(3, "x", "", {}, Entry("script", file="t.py", argv=("a.yaml",)), {})
    for record in records:
        files.write_json(attempt.exit_record(record["rank"]), record)
    ends = {one["rank"]: RankEnd(one["rank"], one["node"], 1, None) for one in records}
    found = evidence.failure(attempt, None)
    assert found is not None
    options = {"one_machine": False, **options}
    return evidence.permanent(run, attempt, found, ends, **options)


@pytest.fixture
def of_run(tmp_path: Path) -> AttemptPaths:
    attempt = RunPaths(tmp_path / "study" / "runs" / "3").attempt(1)
    attempt.directory.mkdir(parents=True)
    return attempt


def test_an_error_of_all_nodes_is_told_from_one_of_a_node(of_run: AttemptPaths) -> None:
    first, second = _record(0, **MISSING), _record(1, 2.0, **MISSING)
    reason = "a module is missing (No module named 'x')"
    assert _permanent(of_run, [first]) == {"permanent": reason, "seen_on": ["n0"]}
    assert _permanent(of_run, [first], one_machine=True) == {"permanent": reason}
    other = {**second, "message": "No module named 'y'"}
    assert _permanent(of_run, [first, other])["seen_on"] == ["n0"]
    assert _permanent(of_run, [first, second])["seen_on"] == ["n0", "n1"]


@pytest.mark.parametrize(
    ("missing", "is_told"), [(["x", "z"], True), (["z"], False), (None, False), ("x", False)]
)
def test_a_module_that_was_missing_at_submission_is_no_fault_of_a_node(
    of_run: AttemptPaths, missing: Any, is_told: bool
) -> None:
    """The login node is a second machine that lacks it."""
    submission = of_run.run.experiment.submission(1)
    submission.directory.mkdir(parents=True)
    python = {"executable": "/x", **({} if missing is None else {"missing": missing})}
    files.write_json(submission.submission, {"number": 1, "python": python})
    ledger.write(of_run.run, ledger.STARTED, 1, submission=1)
    found = _permanent(of_run, [_record(0, **{**MISSING, "message": "No module named 'x.y'"})])
    assert ("seen_on" not in found) == is_told
    assert found["permanent"] == "a module is missing (No module named 'x.y')"


def test_a_file_that_rank_0_is_to_write_is_not_missing(of_run: AttemptPaths) -> None:
    """Another rank may have looked for it too early."""
    assert _permanent(of_run, [_record(1, **FILE)], one_machine=True) == {}
    both = [_record(1, **FILE), _record(0, 2.0, **FILE)]
    assert "a.yaml" in _permanent(of_run, both, one_machine=True)["permanent"]


@pytest.mark.parametrize(
    ("restored", "reached", "is_told"),
    [(None, None, True), (0, None, True), (5, None, True), (5, 6, False), (None, 1, False)],
)
def test_an_error_after_a_step_may_mend_itself(
    of_run: AttemptPaths, restored: int | None, reached: int | None, is_told: bool
) -> None:
    if restored is not None:
        files.append(of_run.session, session_log.record(session_log.RESTORED, step=restored))
    if reached is not None:
        files.append(of_run.metrics, {"step": reached, "time": 1.0, "loss": 1.0})
    found = _permanent(of_run, [_record(0, **MISSING)], one_machine=True)
    assert bool(found) == is_told


def test_a_record_cannot_say_that_its_error_is_permanent(of_run: AttemptPaths) -> None:
    """A program that writes it itself would make the ledger unreadable."""
    record = _record(0, exit_code=1, exception="ValueError", permanent=7, seen_on="n1")
    files.write_json(of_run.exit_record(0), record)
    found = evidence.failure(of_run, None)
    assert found is not None
    assert not {"permanent", "seen_on"} & {*found}


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (
            ["Traceback (most recent call last):", '  File "a.py"', "KeyError: 'lr'"],
            "KeyError: 'lr'",
        ),
        (["Traceback (most recent call last):", '  File "a.py"', "KeyError: 'lr'", "done"], "KeyE"),
        (["run.sh: line 3: 123 Killed      python a.py"], "SIGKILL"),
        (["slurmstepd: error: Detected 1 oom_kill event in StepId=5.1."], "memory ran out"),
        (["step 1", "saved"], None),
        (["run.sh: line 3: 123 Terminated  tensorboard"], None),
        (["error: one file of 7 is left out"], None),
        (["Exception ignored in: <f>", "Traceback (most recent call last):", "OSError: x"], None),
        (["Traceback (most recent call last):", "  File", "OSError: x", *["step"] * 30], None),
    ],
)
def test_what_speaks_against_an_exit_code_of_zero(
    attempt: AttemptPaths, lines: list[str], told: str | None
) -> None:
    attempt.rank_log(0).write_text("".join(f"{line}\n" for line in lines))
    found = evidence.doubt(attempt)
    assert found is None if told is None else told in str(found), found


@pytest.mark.parametrize("step", [None, 3])
def test_a_program_that_goes_on_in_the_background_was_ended(
    attempt: AttemptPaths, step: int | None
) -> None:
    files.append(
        attempt.session, session_log.record(session_log.LEFT_RUNNING, command="python a.py")
    )
    if step:
        files.append(attempt.metrics, {"step": step, "time": 1.0})
    told = evidence.doubt(attempt)
    assert told is None if step else "its `python a.py` went on" in str(told)


def test_a_session_that_was_asked_to_stop_left_nothing_running(attempt: AttemptPaths) -> None:
    files.append(attempt.session, session_log.record("left", step=3))
    assert evidence.doubt(attempt) is None


MPICH_ABORT = "Abort(7) on node 1 (rank 1 in comm 0): application called MPI_Abort(WORLD, 7)\n"
OPEN_MPI_ABORT = """\
MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD
with errorcode 7.
"""
RAISES = 'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\nKeyError: 1\n'


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (MPICH_ABORT, (1, 7, None, None)),
        (OPEN_MPI_ABORT, (1, 7, None, None)),
        (RAISES, (1, 1, None, "KeyError")),
        (RAISES.replace("KeyError: 1\n", "KeyError: 1\n") + MPICH_ABORT, (1, 7, None, None)),
        ("step 1\n", (0, None, "SIGKILL", None)),
    ],
    ids=["MPICH", "Open MPI", "raised", "raised and aborted", "nothing told"],
)
def test_the_rank_for_which_slurm_ended_all(
    attempt: AttemptPaths, log: str, expected: tuple[Any, ...]
) -> None:
    attempt.rank_log(0).write_text("step 1\n")
    attempt.rank_log(1).write_text(f"step 1\n{log}")
    found = evidence.failure(attempt, RankEnd(0, "n1", None, "SIGKILL", by_slurm=True))
    assert found is not None
    assert tuple(found.get(key) for key in ("rank", "exit_code", "signal", "exception")) == expected
    assert found["by_slurm"] == (expected[2] is not None)
