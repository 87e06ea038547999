"""Checkpoints that are damaged, unreadable or unmovable, and two real ranks that restore."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcrun.run.checkpoint import restore
from hpcrun.run.protocol import stop_flag
from hpcrun.run.session import Session
from hpcrun.state import files, manifest
from hpcrun.state.layout import RunPaths
from tests.run.ranks import ONE, THREE, TWO, Bench, Ranks, Worlds
from tests.support.place import FakeEngine, launch_of

pytestmark = [pytest.mark.training]

NOBODY = 65534
IMPATIENT = 20.0
TRIES = len(restore.PAUSES) + 1


@pytest.fixture(scope="module")
def started(worlds: Worlds) -> Ranks:
    world = worlds(2)
    world.start()
    return world


class Trained:
    """A run that has saved two checkpoints, to be copied; and what each of them holds."""

    def __init__(self, ranks: Ranks, stage: int, directory: Path) -> None:
        self.stage = stage
        self._ranks = ranks
        self._bench = Bench(ranks, RunPaths(directory))
        self._bench.engine(stage)
        self.digests: dict[str, list[Any]] = {}
        for step, name in ((1, ONE), (2, TWO)):
            self._bench.train(1)
            self._bench.save(step)
            self.digests[name] = self._bench.digest()

    def copied(self, directory: Path) -> Bench:
        """A run that stands where this one does; the engine has gone on by a step."""
        shutil.copytree(self._bench.run.directory, directory)
        self._bench.train(1)
        return Bench(self._ranks, RunPaths(directory))


@pytest.fixture(scope="module", params=[1])
def trained(
    started: Ranks, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Trained:
    return Trained(started, request.param, tmp_path_factory.mktemp("trained") / "3")


def _flip(pattern: str) -> Callable[[Path], None]:
    def act(directory: Path) -> None:
        (path,) = directory.glob(pattern)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 4
        path.write_bytes(data)

    return act


def _cut(pattern: str, share: float) -> Callable[[Path], None]:
    def act(directory: Path) -> None:
        (path,) = directory.glob(pattern)
        os.truncate(path, int(path.stat().st_size * share))

    return act


def _remove(pattern: str) -> Callable[[Path], None]:
    return lambda directory: next(directory.glob(pattern)).unlink()


def _write(text: str) -> Callable[[Path], None]:
    def act(directory: Path) -> None:
        (directory / manifest.NAME).write_text(text)

    return act


def _say(**changes: Any) -> Callable[[Path], None]:
    """Change the manifest, its own checksum left as it was or left out (``sha256=None``)."""

    def act(directory: Path) -> None:
        path = directory / manifest.NAME
        data = {**json.loads(path.read_text()), **changes}
        path.write_text(
            json.dumps({key: value for key, value in data.items() if value is not None})
        )

    return act


def _outside(name: str) -> Callable[[Path], None]:
    return _say(files={name: {"bytes": 1, "sha256": ""}}, sha256=None)


ROTTEN = {
    "a flipped bit in the weights": (_flip("mp_rank_00*"), "does not have the checksum"),
    "a flipped bit in rank 0's shard": (_flip("zero_pp_rank_0*"), "does not have the checksum"),
    "a flipped bit in rank 1's shard": (_flip("zero_pp_rank_1*"), "does not have the checksum"),
    "a flipped bit in a rank's file": (_flip("rank-00001.pt"), "does not have the checksum"),
    "a cut shard": (_cut("zero_pp_rank_1*", 0.5), "bytes, its manifest says"),
    "an empty shard": (_cut("mp_rank_00*", 0), "has 0 bytes, its manifest says"),
    "a missing shard": (_remove("zero_pp_rank_0*"), "optim_states.pt is missing"),
    "a missing rank's file": (_remove("rank-00000.pt"), "rank-00000.pt is missing"),
    "an empty manifest": (_write(""), "manifest.json is not JSON"),
    "a manifest of garbage": (_write("\0\0\0{"), "manifest.json is not JSON"),
    "a manifest of something else": (_write("[1]"), "manifest.json is not a mapping"),
    "a flipped bit in the manifest": (_say(world_size=3), "not have the SHA-256 that it says"),
    "a file above it": (_outside("../x"), "names a file outside the checkpoint: '../x'"),
    "a file elsewhere": (_outside("/etc/hosts"), "a file outside the checkpoint: '/etc/hosts'"),
    "another step's manifest": (_say(step=7, sha256=None), "is that of step 7 by attempt 1"),
}


@pytest.mark.parametrize("case", ROTTEN)
def test_a_rotten_one_is_put_aside_and_the_one_before_is_used(
    trained: Trained, tmp_path: Path, case: str
) -> None:
    act, message = ROTTEN[case]
    bench = trained.copied(tmp_path / "3")
    act(bench.run.checkpoints / TWO)
    assert bench.restore(expected=True) == [[1, ONE], [1, ONE]]
    assert bench.digest() == trained.digests[ONE]
    (said,), others = bench.reports()
    assert said.startswith(f"quarantined: {TWO} is damaged and put aside: ")
    assert message in said
    assert others == []
    assert bench.names() == [f"bad-{TWO}", ONE]


def test_one_that_was_never_completed_is_none(trained: Trained, tmp_path: Path) -> None:
    bench = trained.copied(tmp_path / "3")
    (bench.run.checkpoints / TWO / manifest.NAME).unlink()
    assert bench.restore(expected=True) == [[1, ONE], [1, ONE]]
    assert bench.digest() == trained.digests[ONE]
    assert bench.reports() == [[], []]
    assert bench.names() == [ONE, TWO]


def test_a_later_format_is_left_as_it_is(trained: Trained, tmp_path: Path) -> None:
    bench = trained.copied(tmp_path / "3")
    _say(format=2)(bench.run.checkpoints / TWO)
    assert bench.restore(expected=True) == [[1, ONE], [1, ONE]]
    assert "cannot be used this time and is passed over" in bench.reports()[0][0]
    assert bench.names() == [ONE, TWO]


@pytest.mark.parametrize("expected", [True, False])
def test_when_all_are_rotten_it_is_said_and_not_begun_anew(
    trained: Trained, tmp_path: Path, expected: bool
) -> None:
    """Also where nothing else says that there was progress, and also at the next attempt."""
    bench = trained.copied(tmp_path / "3")
    _flip("mp_rank_00*")(bench.run.checkpoints / TWO)
    _write("")(bench.run.checkpoints / ONE)
    began = time.monotonic()
    first, second = bench.restore(expected=expected)
    assert time.monotonic() - began < IMPATIENT
    assert first == second
    assert first.startswith("CheckpointError: ")
    assert "not started again at step 0 by itself" in first
    assert f"{TWO}: mp_rank_00_model_states.pt does not have" in first
    assert f"{ONE}: manifest.json is not JSON" in first
    assert bench.names() == [f"bad-{ONE}", f"bad-{TWO}"]
    (again, same) = bench.restore(expected=expected)
    assert again == same
    assert "not started again at step 0 by itself" in again


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A directory that an ordinary user can reach, as those of pytest are root's alone."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


@pytest.fixture
def as_nobody(started: Ranks) -> Iterator[Callable[[], None]]:
    """Have the ranks be one whom modes stop; root is stopped by none."""
    root = os.geteuid() == 0

    def become() -> None:
        if root:
            started.tell("become", user=NOBODY)

    yield become
    if root:
        started.tell("become", user=0)


def test_what_cannot_be_put_aside_is_passed_over(
    trained: Trained, elsewhere: Path, as_nobody: Callable[[], None]
) -> None:
    bench = trained.copied(elsewhere / "3")
    _flip("zero_pp_rank_1*")(bench.run.checkpoints / TWO)
    bench.run.checkpoints.chmod(0o555)
    as_nobody()
    assert bench.restore(expected=True) == [[1, ONE], [1, ONE]]
    assert bench.digest() == trained.digests[ONE]
    (said,), _ = bench.reports()
    assert f"{TWO} is damaged and passed over" in said
    assert "(it cannot be put aside: Permission denied)" in said
    assert bench.names() == [ONE, TWO]
    # Nor can anything be saved there, which is an error on all ranks.
    first, second = bench.save(3)
    assert first == second
    assert f"{THREE} cannot be made: rank 0: " in first
    assert "Permission denied" in first
    bench.run.checkpoints.chmod(0o755)


def test_what_cannot_be_read_is_passed_over_and_kept(
    trained: Trained, elsewhere: Path, as_nobody: Callable[[], None]
) -> None:
    """It may be whole: the storage may have been away for a moment."""
    bench = trained.copied(elsewhere / "3")
    (path,) = (bench.run.checkpoints / TWO).glob("zero_pp_rank_1*")
    path.chmod(0)
    as_nobody()
    assert bench.restore(expected=True) == [[1, ONE], [1, ONE]]
    assert "optim_states.pt cannot be read: Permission denied" in bench.reports()[0][0]
    assert bench.names() == [ONE, TWO]
    path.chmod(0o644)
    assert bench.restore(expected=True) == [[2, TWO], [2, TWO]]
    assert bench.digest() == trained.digests[TWO]


def test_a_directory_that_cannot_be_listed_is_an_error_on_all_ranks(
    trained: Trained, elsewhere: Path, as_nobody: Callable[[], None]
) -> None:
    bench = trained.copied(elsewhere / "3")
    bench.run.checkpoints.chmod(0)
    as_nobody()
    first, second = bench.restore()
    assert first == second
    assert "checkpoints cannot be read: " in first
    assert "Permission denied" in first
    bench.run.checkpoints.chmod(0o755)


# Last, as another stage is another training run.
@pytest.mark.parametrize("trained", [1, 3], indirect=True, ids=["zero-1", "zero-3"])
@pytest.mark.parametrize(
    ("rank", "file"),
    [(0, "model_states"), (1, "optim_states"), (1, "rank-00001.pt")],
)
def test_a_rank_that_cannot_load_takes_all_to_the_one_before(
    trained: Trained, tmp_path: Path, rank: int, file: str
) -> None:
    """The files were whole when they were checked, and one rank has I/O errors now."""
    bench = trained.copied(tmp_path / "3")
    bench.hook("fail_to_read", rank=rank, path=file, times=TRIES)
    began = time.monotonic()
    assert bench.restore(expected=True) == [[1, ONE], [1, ONE]]
    assert time.monotonic() - began < IMPATIENT
    assert bench.digest() == trained.digests[ONE]
    (said,), _ = bench.reports()
    assert said.startswith(f"passed_over: {TWO} cannot be used this time and is passed over")
    assert file in said
    assert "Input/output error" in said
    assert bench.names() == [ONE, TWO]
    assert bench.restore(expected=True) == [[2, TWO], [2, TWO]]
    assert bench.digest() == trained.digests[TWO]


def test_what_can_be_read_a_moment_later_is_used(trained: Trained, tmp_path: Path) -> None:
    bench = trained.copied(tmp_path / "3")
    bench.hook("fail_to_read", rank=1, path="optim_states", times=1)
    assert bench.restore(expected=True) == [[2, TWO], [2, TWO]]
    assert bench.digest() == trained.digests[TWO]
    assert bench.reports() == [[], []]


def test_when_nothing_can_be_read_nobody_is_told_to_begin_anew(
    trained: Trained, tmp_path: Path
) -> None:
    bench = trained.copied(tmp_path / "3")
    bench.hook("fail_to_read", rank=0, path="model_states", times=2 * TRIES)
    first, second = bench.restore(expected=True)
    assert first == second
    assert f"{TWO}, {ONE} may be whole: once it can be read, hpcrun requeue" in first
    assert "--new" not in first
    assert bench.restore(expected=True) == [[2, TWO], [2, TWO]]


@pytest.mark.parametrize("trained", [1, 3], indirect=True, ids=["zero-1", "zero-3"])
@pytest.mark.parametrize(
    "pattern", ["*model_states.pt", "zero_pp_rank_1*optim_states.pt", "rank-00000.pt"]
)
def test_files_that_vanish_between_check_and_load(
    trained: Trained, tmp_path: Path, pattern: str
) -> None:
    bench = trained.copied(tmp_path / "3")
    bench.hook("lose_after_check", pattern=pattern)
    assert bench.restore(expected=True) == [[1, ONE], [1, ONE]]
    assert bench.digest() == trained.digests[ONE]
    lost = [path.name for path in (bench.run.checkpoints / ONE).glob(pattern)]
    assert any(name in bench.reports()[0][0] for name in lost)


def test_the_session_records_what_is_put_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop_flag, "outlive_signals", lambda scratch: None)
    monkeypatch.setenv("HPCRUN_SCRATCH", "/scratch")

    def session(attempt: int) -> Session:
        launch = launch_of(tmp_path, attempt=attempt)
        launch.write()
        return Session(launch)

    first, engine = session(1), FakeEngine()
    first.restore(engine)
    for _ in first.steps(total=2):
        engine.step()
        first.save()
    run = RunPaths(launch_of(tmp_path).run_paths.directory)
    _flip("model.json")(run.checkpoints / TWO)
    assert session(2).restore(FakeEngine()) == 1
    events = list(files.read_lines(run.attempt(2).session))
    assert [event["event"] for event in events] == ["quarantined", "restored"]
    assert events[0]["checkpoint"] == TWO
    assert "model.json does not have the checksum" in events[0]["message"]
