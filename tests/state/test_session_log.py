"""The events of a session, from lines that crashes may have torn."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcrun.errors import BrokenFile
from hpcrun.state import files, session_log
from hpcrun.state.layout import AttemptPaths
from hpcrun.state.session_log import RESTORED, SAVED, SessionLog


def test_what_an_attempt_announced_restored_and_reached(tmp_path: Path) -> None:
    paths = AttemptPaths(tmp_path)
    for kind, details in (
        ("started", {"total_steps": 50, "world_size": 4, "versions": {"torch": "2"}}),
        (RESTORED, {"step": 20, "checkpoint": "step-00000020-a1", "seconds": 2.5}),
        (SAVED, {"step": 30, "seconds": 20.0, "blocked": 1.0}),
        ("saved_nearby", {"step": 35, "seconds": 1.0}),
        ("save_failed", {"step": 40, "message": "the disk is full"}),
    ):
        files.append(paths.session, session_log.record(kind, **details))
    with open(paths.session, "a") as stream:
        stream.write('{"event": "finished", "st')
    log = session_log.read(paths)
    assert (log.total_steps, log.restored_step, log.reached_step) == (50, 20, 30)
    assert not log.finished
    (saved,) = log.of(SAVED)
    assert (saved.seconds("blocked", "seconds"), saved.seconds("nothing")) == (1.0, 0.0)
    assert log.times == sorted(log.times)
    assert log.times[0] > 0


def test_a_plain_script_announces_nothing_and_may_finish(tmp_path: Path) -> None:
    paths = AttemptPaths(tmp_path)
    assert session_log.read(paths) == SessionLog()
    files.append(paths.session, session_log.record(session_log.FINISHED))
    log = session_log.read(paths)
    assert (log.total_steps, log.restored_step, log.reached_step) == (None, None, None)
    assert log.finished


def test_fields_of_another_type_are_passed_over() -> None:
    log = session_log.parse(
        [{"event": "started", "total_steps": "many"}, {"event": RESTORED, "step": None}, {}]
    )
    assert (log.total_steps, log.restored_step, log.times) == (None, None, [0.0, 0.0, 0.0])
    assert [event.kind for event in log] == ["started", RESTORED, None]


def test_a_file_that_is_no_file(tmp_path: Path) -> None:
    paths = AttemptPaths(tmp_path)
    paths.session.symlink_to(paths.session.name)
    with pytest.raises(BrokenFile, match=r"session[.]jsonl"):
        session_log.read(paths)
    assert session_log.read_any(paths) == SessionLog()


def test_the_unit_is_that_which_was_told_last() -> None:
    log = session_log.parse([{"event": "read_from", "unit": one} for one in ("steps", "epochs")])
    assert log.unit == "epochs"
    assert session_log.parse([{"event": "read_from", "unit": 5}]).unit is None
    assert session_log.parse([{"event": "started"}]).unit is None
