"""A node's staging as its agent sees it, and as the ranks of a run find it."""

from __future__ import annotations

import collections
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hpcrun.run.staging import copied_files, node_staging
from hpcrun.run.staging.node_staging import NodeStaging
from hpcrun.state.node_layout import NodePaths
from tests.support.place import Place
from tests.support.waiting import until


@pytest.fixture
def data(tmp_path: Path) -> Path:
    made = tmp_path / "data"
    (made / "tokens").mkdir(parents=True)
    (made / "tokens" / "0.bin").write_bytes(os.urandom(2_000))
    (made / "index").write_text("0.bin")
    return made


@pytest.fixture
def node(tmp_path: Path) -> Path:
    made = tmp_path / "tmp" / "hpcrun-start"
    made.mkdir(parents=True)
    return made


def _answer(staging: NodeStaging) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What it says in the end, and before."""
    told: list[dict[str, Any]] = []
    staging.begin()
    until(lambda: (staging.turn(told.append), told and told[-1]["type"] != "staging")[1], timeout=9)
    return told[-1], told[:-1]


def test_it_is_kept_for_the_next_attempt_and_removed_at_the_end(data: Path, node: Path) -> None:
    staging = NodeStaging(node, [f"{data}/tokens", f"{data}/ind*"])
    staged = NodePaths(node).staged
    for copied in (2_005, 0):
        answer, _ = _answer(staging)
        assert answer["report"].items() >= {"files": 2, "bytes": 2_005, "copied": copied}.items()
        assert (staged / "tokens" / "0.bin").read_bytes() == (data / "tokens/0.bin").read_bytes()
        assert (staged / "index").resolve() != data / "index"
    (data / "index").write_text("other")
    assert _answer(staging)[0]["report"]["copied"] == 5
    assert (staged / "index").read_text() == "other"
    staging.close()
    assert os.listdir(node.parent) == [node.name]  # noqa: PTH208


def test_without_room_ranks_read_it_where_it_is(
    data: Path, node: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    usage = collections.namedtuple("usage", "total used free")(10_000, 8_500, 1_500)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    staging = NodeStaging(node, [f"{data}/tokens", f"{data}/index"])
    report = _answer(staging)[0]["report"]
    (note,) = report["notes"]
    assert "tokens is not copied, and read where it is: it has 2.0 kB" in note
    assert note in capfd.readouterr().out
    assert report["bytes"] == 5
    staged = NodePaths(node).staged
    assert (staged / "tokens").resolve() == data / "tokens"
    assert (staged / "index").resolve() != data / "index"
    staging.close()
    assert os.listdir(node.parent) == [node.name]  # noqa: PTH208


def test_a_source_that_keeps_changing_is_read_where_it_is(
    data: Path, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, times = copied_files._copy_file, 1

    def changes(source: Any, file: Any, place: Path, meter: Any) -> None:
        nonlocal times
        times -= 1
        if times >= 0:
            os.utime(data / "index", (times, times))
        before(source, file, place, meter)

    monkeypatch.setattr(copied_files, "_copy_file", changes)
    staging = NodeStaging(node, [f"{data}/index"])
    assert _answer(staging)[0]["report"]["notes"] == [], "it changed once"
    staging.close()
    times = 2
    staging = NodeStaging(node, [f"{data}/index"])
    (note,) = _answer(staging)[0]["report"]["notes"]
    assert note.endswith("index is another file than a moment ago, twice")
    assert (NodePaths(node).staged / "index").resolve() == data / "index"
    staging.close()


def test_what_this_node_does_not_see_fails(data: Path, node: Path) -> None:
    staging = NodeStaging(node, [f"{data}/nothing"])
    answer, _ = _answer(staging)
    assert answer["type"] == "failed"
    assert "nothing cannot be staged: No such file" in answer["message"]
    staging.close()


def test_a_slow_copy_says_how_far_it_is_and_can_be_stopped(
    data: Path, node: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(node_staging, "SAY_EVERY", 0.1)
    before = copied_files._copy_file

    def slowly(source: Any, file: Any, place: Path, meter: Any) -> None:
        before(source, file, place, meter)
        for _ in range(100):
            time.sleep(0.02)
            meter.add(0)

    monkeypatch.setattr(copied_files, "_copy_file", slowly)
    staging = NodeStaging(node, [f"{data}/tokens", f"{data}/index"])
    answer, told = _answer(staging)
    assert answer["type"] == "staged"
    assert {"type": "staging", "done": 2_000, "total": 2_005} in told
    assert "stages data: 2.0 kB of 2.0 kB" in capfd.readouterr().out
    staging.close()
    staging.begin()
    time.sleep(0.2)
    began = time.monotonic()
    staging.close()
    assert time.monotonic() - began < 1.5
    assert os.listdir(node.parent) == [node.name]  # noqa: PTH208


PROGRAM = """
import hpcrun, os, sys
session = hpcrun.session()
staged, local = sys.argv[1], session.staged("DATA/tokens/0.bin")
print("read", local.read_bytes() == open("DATA/tokens/0.bin", "rb").read(), flush=True)
assert str(local) == f"{staged}/tokens/0.bin" and staged == os.environ["HPCRUN_STAGED"]
assert str(session.staged("/etc/passwd")) == "/etc/passwd"
if session.attempt == 1:
    os._exit(3)
"""


def test_both_attempts_of_a_script_find_it(data: Path, place: Place) -> None:
    """A kill between: the second attempt copies nothing, and nothing is left at the end."""
    (place.code / "reading.py").write_text(PROGRAM.replace("DATA", str(data)))
    place.submit(
        f"exec {sys.executable} reading.py ${{hpcrun:staged}}",
        nodes=2,
        staging={"paths": [str(data / "tokens")]},
        recovery={"in_place": 2},
    )
    code, said = place.supervise(timeout=90)
    assert code == 0, said + place.output()
    assert "stages data on 2 nodes" in said
    for number in (1, 2):
        assert "read True" in place.output(attempt=number)
    first, second = (place.attempt(number).staged or {} for number in (1, 2))
    # Both nodes are this machine, which has one copy.
    assert (first["nodes"], first["bytes"], first["copied"], first["notes"]) == (
        2,
        2_000,
        2_000,
        [],
    )
    assert second["copied"] == 0
    assert "all of it was there already" in said
