"""Checkpoints of hundreds of ranks: agreed on and restored with work that does not grow, or torn.

The ranks are threads (`tests.run.thread_ranks`); the files and all of hpcrun are real.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.checkpoint_scale import engine_of
from hpcrun.errors import CheckpointError
from hpcrun.policy.retention import Retention
from hpcrun.run.checkpoint import resize
from hpcrun.run.checkpoint.restore import CheckpointStore
from hpcrun.run.protocol.attempt_fence import AttemptFence
from hpcrun.run.rank.collectives import Collectives
from hpcrun.state import files, manifest
from hpcrun.state.layout import RunPaths
from tests.run.thread_ranks import Wire, in_turn

pytest.importorskip("deepspeed")

WORLD = 96
OLD, NEW = "step-00000001-a1", "step-00000002-a1"


class Job:
    """Ranks of one run, with two checkpoints."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from deepspeed import comm

        self.wire = Wire(WORLD)
        self.run = RunPaths(directory)
        self.reports: list[str] = []
        monkeypatch.setattr(comm, "get_rank", lambda group=None: self.wire.here.rank)
        monkeypatch.setattr(resize, "refusal", lambda engine: None)
        self.run.attempt(1).directory.mkdir(parents=True)
        for step in (1, 2):
            self._step = step
            assert in_turn(self.wire, self._save) == [2 * WORLD + 1, *[None] * (WORLD - 1)]

    def _store(self, rank: int) -> CheckpointStore:
        fence, ranks = AttemptFence(self.run.attempt(1)), Collectives(rank, WORLD, self.wire)
        return CheckpointStore(self.run, 1, ranks, fence, Retention(newest=3))

    def _save(self, rank: int) -> int | None:
        saver = self._store(rank).saver
        saved = saver.save(engine_of(self.wire, rank), self._step, {}, {})
        saver.wait_for_removals()
        return len(saved.files) if rank == 0 else None

    def restore(self) -> list[Any]:
        """What each rank restored, or raised; the engine checks that the shard is its own."""

        def restore(rank: int) -> Any:
            return self._store(rank).restore(
                engine_of(self.wire, rank),
                {},
                expected=True,
                report=lambda event, checkpoint, message: self.reports.append(message),
            )

        return in_turn(self.wire, restore)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(tmp_path, monkeypatch)


def test_a_restore_reads_one_manifest_and_lists_no_directory_on_each_rank(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    original = files.read_json

    def read_json(path: Path, *arguments: Any) -> Any:
        read.append(f"{path.parent.name}/{path.name} by {job.wire.here.rank}")
        return original(path, *arguments)

    monkeypatch.setattr(files, "read_json", read_json)
    monkeypatch.setattr("glob.glob", lambda pattern: pytest.fail(pattern))
    assert job.restore() == [(2, NEW)] * WORLD
    assert read == [f"{NEW}/manifest.json by 0"]


def _edit(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = directory / manifest.NAME
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


SHARD = "zero_pp_rank_77_mp_rank_00_optim_states.pt"


@pytest.mark.parametrize(
    ("tear", "message"),
    [
        (lambda of: (of / SHARD).unlink(), f"{SHARD} is missing"),
        (lambda of: _cut(of / SHARD), f"{SHARD} has"),
        (lambda of: _flip(of / SHARD), f"{SHARD} does not have the checksum"),
        (lambda of: _flip(of / "rank-00095.pt"), "rank-00095.pt does not have the checksum"),
        (lambda of: _cut(of / manifest.NAME), None),
        (lambda of: _edit(of, lambda data: data["files"].pop(SHARD)), "does not have the SHA-256"),
        (lambda of: (of / manifest.NAME).write_bytes(b""), "manifest.json is not JSON"),
    ],
    ids=["missing", "cut", "flipped", "own state", "last byte", "lacks a rank", "no manifest"],
)
def test_a_torn_checkpoint_is_put_aside_by_all_ranks(
    job: Job, tear: Callable[[Path], object], message: str | None
) -> None:
    tear(job.run.checkpoints / NEW)
    # The last byte of a manifest is its newline.
    expected = (2, NEW) if message is None else (1, OLD)
    assert job.restore() == [expected] * WORLD
    if message is not None:
        (report,) = job.reports
        assert message in report
        assert report.startswith("is damaged and put aside: ")
        assert not (job.run.checkpoints / NEW).exists()


def test_what_vanishes_while_it_is_loaded_is_told_by_its_name(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a rank whose share the file is not: DeepSpeed's own error names none."""
    from hpcrun.run.checkpoint import restore

    monkeypatch.setattr(restore, "PAUSES", (0.0, 0.0))

    def refuse(*_: Any, **__: Any) -> Any:
        (job.run.checkpoints / NEW / SHARD).unlink(missing_ok=True)
        raise AssertionError

    original = CheckpointStore._load_as_saved

    def load_as_saved(store: Any, directory: Path, *arguments: Any) -> Any:
        if directory.name == NEW:
            store._engine.load_checkpoint = refuse
        else:
            store._engine = engine_of(job.wire, job.wire.here.rank)
        return original(store, directory, *arguments)

    monkeypatch.setattr(CheckpointStore, "_load_as_saved", load_as_saved)
    found = job.restore()
    assert found == [(1, OLD)] * WORLD
    assert [report for report in job.reports if SHARD in report] == job.reports


def test_all_fail_where_none_is_whole(job: Job) -> None:
    for name in (OLD, NEW):
        (job.run.checkpoints / name / SHARD).unlink()
    found = job.restore()
    assert {type(each) for each in found} == {CheckpointError}
    assert len({str(each) for each in found}) == 1
