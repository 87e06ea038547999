"""Checkpoints of real DeepSpeed engines, saved and restored by two real ranks together."""

from __future__ import annotations

import errno
import math
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hpcrun.errors import CheckpointError
from hpcrun.policy.retention import Retention
from hpcrun.run.checkpoint import checkpoint_files
from hpcrun.run.checkpoint.restore import CheckpointStore, Damage, shares, verify
from hpcrun.run.protocol.attempt_fence import EXIT_STALE, AttemptFence
from hpcrun.run.rank.collectives import Collectives
from hpcrun.state import files as state_files
from hpcrun.state import manifest
from hpcrun.state.layout import RunPaths
from hpcrun.state.manifest import Fault, Manifest
from tests.run.ranks import DIED, ONE, THREE, TWO, Bench, Ranks, Worlds
from tests.support.nfs import Host
from tests.support.place import FakeEngine

pytestmark = [pytest.mark.training]


@pytest.fixture(scope="module")
def started(worlds: Worlds) -> Ranks:
    world = worlds(2)
    world.start()
    return world


@pytest.fixture
def bench(started: Ranks, tmp_path: Path) -> Bench:
    return Bench(started, RunPaths(tmp_path / "3"))


@pytest.mark.parametrize("stage", [1, 3])
def test_what_is_restored_is_what_was_saved_to_the_bit(bench: Bench, stage: int) -> None:
    bench.engine(stage)
    bench.train(3)
    saved = bench.digest()
    (first, second) = bench.save(3)
    assert first == second
    assert (first["world_size"], first["stage"]) == (2, stage)
    assert bench.names() == [THREE]
    after = bench.train(3)
    end = bench.digest()
    # A new engine, other weights, other generators.
    bench.engine(stage, seed=5)
    assert bench.digest() != saved
    assert bench.restore() == [[3, THREE], [3, THREE]]
    assert bench.digest() == saved
    assert bench.train(3) == after
    assert bench.digest() == end
    assert end[0]["weights"] == end[1]["weights"]
    assert [each["count"] for each in end] == [12, 112]


def test_every_file_of_every_rank_is_in_the_manifest(bench: Bench) -> None:
    bench.engine()
    bench.train(1)
    bench.save(1)
    directory = bench.run.checkpoints / ONE
    found = manifest.read(directory)
    assert found is not None
    files = {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}
    assert set(found.files) == files - {manifest.NAME}
    assert {"rank-00000.pt", "rank-00001.pt"} < set(found.files)
    assert found.train_batch_size == 8
    assert not (bench.run.checkpoints / "latest").exists()


def test_only_the_newest_are_kept(bench: Bench) -> None:
    bench.engine()
    for step in (1, 2, 3):
        bench.train(1)
        bench.save(step, keep=2)
    assert bench.names() == [TWO, THREE]
    assert bench.restore() == [[3, THREE], [3, THREE]]


def test_a_fresh_run_begins_at_step_0(bench: Bench) -> None:
    bench.engine()
    before = bench.digest()
    assert bench.restore() == [[0, None], [0, None]]
    assert bench.digest() == before


def test_progress_without_a_complete_checkpoint_is_an_error(bench: Bench) -> None:
    bench.engine()
    bench.train(1)
    bench.save(1)
    (bench.run.checkpoints / ONE / manifest.NAME).unlink()
    first, second = bench.restore(expected=True, seen_within=1.0)
    assert first == second
    assert first.startswith("CheckpointError: ")
    assert "no checkpoint that can be restored, but this run has made progress" in first


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("hook", ["full_disk", "full_disk_for_generators"])
def test_a_full_disk_on_one_rank_is_the_same_error_on_all(
    bench: Bench, hook: str, rank: int
) -> None:
    bench.engine()
    bench.train(1)
    bench.save(1)
    saved = bench.digest()
    bench.train(1)
    bench.hook(hook, rank=rank)
    first, second = bench.save(2)
    assert first == second
    assert first.startswith(f"CheckpointError: step 2 was not saved: rank {rank}: ")
    assert bench.names() == [ONE]
    # The run goes on, and the next save is well.
    bench.train(1)
    bench.save(3)
    assert bench.complete() == [THREE, ONE]
    (bench.run.checkpoints / THREE / manifest.NAME).unlink()
    assert bench.restore() == [[1, ONE], [1, ONE]]
    assert bench.digest() == saved


def test_deepspeeds_own_scripts_are_no_part_of_a_checkpoint(bench: Bench) -> None:
    """Rank 0 copies them while the other waits for it: an error there would leave it waiting."""
    bench.engine()
    bench.train(1)
    bench.run.checkpoints.mkdir(parents=True)
    (bench.run.checkpoints / "zero_to_fp32.py").symlink_to("/dev/full")
    first, second = bench.save(1)
    assert first == second
    assert bench.complete() == [ONE]


@pytest.fixture
def small_disk(bench: Bench) -> Iterator[Path]:
    """A real file system, of which a second checkpoint takes more than there is."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system takes root")
    bench.run.directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(bench.run.directory)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("this machine lets root mount nothing")
    yield bench.run.directory
    subprocess.run(["umount", "--lazy", str(bench.run.directory)], check=True)


def test_on_a_disk_that_is_really_full(bench: Bench, small_disk: Path) -> None:
    bench.engine()
    bench.train(1)
    bench.save(1)
    saved = bench.digest()
    used = sum(path.stat().st_size for path in small_disk.rglob("*") if path.is_file())
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * (256 * 1024 - used - 32 * 1024))
    bench.train(1)
    first, second = bench.save(2)
    assert first == second
    assert first.startswith("CheckpointError: ")
    # What was half written gives its room back.
    assert bench.names() == [ONE]
    state_files.append(bench.run.ledger, {"event": "a line"})
    assert [each["event"] for each in state_files.read_lines(bench.run.ledger)] == ["a line"]
    filler.unlink()
    bench.save(3, keep=1)
    assert bench.complete() == [THREE]
    assert bench.digest() != saved


@pytest.mark.parametrize(
    ("stage", "rank", "operation", "path", "found"),
    [
        (3, 1, "half save", "optim_states", ONE),
        (1, 0, "replace", manifest.NAME, ONE),
        (3, 0, "rename", f".trash-{ONE}", TWO),
        (1, 0, "unlink", f".trash-{ONE}", TWO),
    ],
)
def test_a_rank_killed_in_a_save(
    bench: Bench, stage: int, rank: int, operation: str, path: str, found: str
) -> None:
    """Before the manifest the older checkpoint is found, after it the new one."""
    bench.engine(stage)
    digests = {}
    for name, step in ((ONE, 1), (TWO, 2)):
        bench.train(1)
        digests[name] = bench.digest()
        if name == ONE:
            bench.save(step)
    bench.hook("die_at", rank=rank, operation=operation, path=path)
    assert DIED in bench.save(2, keep=1)
    assert bench.complete()[0] == found
    bench.engine(stage, seed=3)
    step = int(found[5:13])
    assert bench.restore(expected=True) == [[step, found]] * 2
    assert bench.digest() == digests[found]
    # The attempt that follows saves the same step, and what was left goes.
    bench.train(1)
    bench.save(2, attempt=2, keep=1)
    assert bench.names() == ["step-00000002-a2"]
    assert not list(bench.run.checkpoints.glob(".*"))


@pytest.mark.parametrize("stage", [1, 3])
def test_a_save_behind_the_training_has_the_state_of_its_step(bench: Bench, stage: int) -> None:
    bench.engine(stage)
    bench.train(3)
    saved = bench.digest()
    run = {"run": str(bench.run.directory)}
    bench.hook("save_behind", step=3, **run)
    after = bench.train(3)
    assert bench.hear("settle") == [[3, True]] * 2
    assert bench.names() == [THREE]
    bench.engine(stage, seed=5)
    assert bench.restore() == [[3, THREE], [3, THREE]]
    assert bench.digest() == saved
    assert bench.train(3) == after


def test_saves_behind_the_training_one_after_another(bench: Bench) -> None:
    """The second is smaller than the first, whose memory it takes."""
    run = {"run": str(bench.run.directory)}
    for step, stage in ((1, 0), (2, 3)):
        bench.engine(stage)
        bench.train(step)
        bench.hook("save_behind", step=step, keep=1, **run)
        assert bench.hear("settle") == [[step, True]] * 2
    saved = bench.digest()
    assert bench.names() == [TWO]
    bench.engine(3, seed=5)
    assert bench.restore() == [[2, TWO], [2, TWO]]
    assert bench.digest() == saved


@pytest.mark.parametrize("rank", [0, 1])
def test_a_full_disk_behind_the_training_is_the_same_error_on_all(bench: Bench, rank: int) -> None:
    bench.engine()
    bench.train(1)
    bench.save(1)
    bench.hook("full_disk_behind", rank=rank)
    bench.hook("save_behind", run=str(bench.run.directory), step=2)
    first, second = bench.hear("settle")
    assert first == second
    assert first.startswith(f"CheckpointError: step 2 was not saved: rank {rank}: OSError")
    assert bench.names() == [ONE]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_dies_behind_the_training_leaves_no_checkpoint(bench: Bench, rank: int) -> None:
    bench.engine()
    bench.train(1)
    bench.save(1)
    bench.hook("die_at", rank=rank, operation="fsync", path="rank-0000")
    assert DIED in [
        *bench.hear("save_behind", run=str(bench.run.directory), step=2),
        *bench.hear("settle"),
    ]
    assert bench.complete() == [ONE]


def _alone(run: RunPaths, **changes: Any) -> CheckpointStore:
    fence = AttemptFence(run.attempt(1))
    return CheckpointStore(run, 1, Collectives(0, 1), fence, Retention(**changes))


def _save(run: RunPaths, *arguments: Any) -> None:
    saver = _alone(run).saver
    saver.save(*arguments)
    saver.wait_for_removals()


def test_a_disk_that_is_full_for_the_manifest_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunPaths(tmp_path)
    _save(run, FakeEngine(), 1, {}, {})

    def full(path: Path, value: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(state_files, "write_json", full)
        with pytest.raises(CheckpointError, match=r"step 2 was not saved: rank 0: .*No space left"):
            _save(run, FakeEngine(), 2, {}, {})
    assert [path.name for path in run.checkpoints.iterdir()] == [ONE]


class _Broken:
    """A state of the user's that cannot be saved, or not be loaded."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        raise KeyError("position")


def test_a_state_that_cannot_be_pickled_is_an_error_of_the_save(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    with pytest.raises(CheckpointError, match=r"step 1 was not saved: rank 0: .*lambda"):
        _save(run, FakeEngine(), 1, {"loader": _Broken(lambda: None)}, {})
    assert list(run.checkpoints.iterdir()) == []


def test_a_state_that_cannot_be_loaded_is_no_reason_to_go_further_back(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    for step in (1, 2):
        _save(run, FakeEngine(), step, {"loader": _Broken(7)}, {})
    with pytest.raises(CheckpointError, match=f"{TWO} cannot be loaded: rank 0: KeyError"):
        _alone(run).restore(FakeEngine(), {"loader": _Broken(0)}, expected=True)
    assert len(manifest.complete(run.checkpoints)) == 2


def test_a_state_that_was_not_saved_is_said_to_begin_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunPaths(tmp_path)
    _save(run, FakeEngine(), 1, {}, {})
    assert _alone(run).restore(FakeEngine(), {"ema": _Broken(0)}, expected=True) == (1, ONE)
    assert "no state of 'ema' was saved; it begins anew" in capsys.readouterr().out


def test_the_loss_scale_of_autocast_without_zero_is_restored(tmp_path: Path) -> None:
    """DeepSpeed keeps it in the engine and does not save it; fp16 itself needs a GPU."""
    run = RunPaths(tmp_path)
    engine = FakeEngine()
    engine.torch_autocast_z0_gradscaler = torch.amp.GradScaler("cpu", init_scale=128.0)
    engine.torch_autocast_z0_gradscaler.scale(torch.ones(()))
    _save(run, engine, 1, {}, {})
    fresh = FakeEngine()
    fresh.torch_autocast_z0_gradscaler = torch.amp.GradScaler("cpu")
    assert _alone(run).restore(fresh, {}, expected=True) == (1, ONE)
    assert fresh.torch_autocast_z0_gradscaler.state_dict()["scale"] == 128.0


def test_what_deepspeed_copies_from_nvme_is_in_the_manifest(tmp_path: Path) -> None:
    """A stand-in for the swapper, which needs an accelerator."""
    run = RunPaths(tmp_path)

    class Offloading(FakeEngine):
        def zero_nvme_offload_optimizer(self) -> bool:
            return True

        def save_checkpoint(self, directory: str, tag: str, *rest: Any, **named: Any) -> None:
            super().save_checkpoint(directory, tag, *rest, **named)
            for rank in (0, 10):
                own = Path(directory, tag, "offloaded_tensors", f"rank{rank:04d}", "optimizer")
                own.mkdir(parents=True)
                (own / "exp_avg.swp").write_bytes(b"moments")

    _save(run, Offloading(), 1, {}, {})
    found = manifest.read(run.checkpoints / ONE)
    assert found is not None
    name = "offloaded_tensors/rank0000/optimizer/exp_avg.swp"
    assert set(found.files) == {"model.json", "rank-00000.pt", name}
    (run.checkpoints / ONE / name).write_bytes(b"moment!")
    with pytest.raises(CheckpointError, match=r"exp_avg\.swp does not have the checksum"):
        _alone(run).restore(Offloading(), {}, expected=True)


def test_what_is_complete_is_not_saved_over(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    _save(run, FakeEngine(), 1, {}, {})
    with pytest.raises(CheckpointError, match="it is a complete checkpoint"):
        _save(run, FakeEngine(), 1, {}, {})
    assert manifest.read(run.checkpoints / ONE) is not None


def test_metrics_of_the_save_are_in_its_manifest(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    metrics = {"loss": 1.5, "grad_norm": math.inf, "accuracy": math.nan}
    _save(run, FakeEngine(), 1, {}, metrics)
    found = manifest.read(run.checkpoints / ONE)
    assert found is not None
    assert found.metrics == {"loss": 1.5}


def test_the_best_checkpoints_stay(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    store = _alone(run, newest=1, best=1)
    for step, loss in ((1, 3.0), (2, 1.0), (3, 2.0), (4, math.nan)):
        store.saver.save(FakeEngine(), step, {}, {"loss": loss})
        store.saver.wait_for_removals()
    assert [found.step for _, found in manifest.complete(run.checkpoints)] == [4, 2]


def test_a_replaced_attempt_neither_begins_nor_completes_a_save(tmp_path: Path) -> None:
    """It ends there and then; the attempt that came after it saves as it likes."""
    run = RunPaths(tmp_path)
    for claimed in ("before the save", "before the manifest"):
        child = os.fork()
        if child == 0:
            engine = FakeEngine()
            write = engine.checkpoint_engine.save

            def save_and_lose_the_run(state: Any, path: str, write: Any = write) -> None:
                write(state, path)
                run.attempt(2).directory.mkdir(parents=True, exist_ok=True)

            if claimed == "before the save":
                run.attempt(2).directory.mkdir(parents=True)
            engine.checkpoint_engine.save = save_and_lose_the_run  # type: ignore[method-assign]
            _save(run, engine, 1, {}, {})
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == EXIT_STALE
        assert run.checkpoints.exists() == (claimed == "before the manifest")
        assert manifest.complete(run.checkpoints) == []
        run.attempt(2).directory.rmdir()


def test_a_file_that_was_looked_for_too_early_is_whole(two_hosts: tuple[Host, Host]) -> None:
    other, here = two_hosts
    for place in (here / "step" / "sub" / "shard", here / "step", here / "shard"):
        assert not place.exists()
    (here / "shard").write_bytes(b"1")
    (other / "shard").write_bytes(b"1234")
    (other / "step" / "sub").mkdir(parents=True)
    (other / "step" / "sub" / "shard").write_bytes(b"1234")
    whole = checkpoint_files.describe(other / "shard")
    assert (here / "shard").stat().st_size == 1
    assert checkpoint_files.damage(here.path, "shard", whole) is None
    assert checkpoint_files.damage(here / "step", "sub/shard", whole) is None


@pytest.mark.parametrize("damaged", [False, True])
def test_what_another_node_alone_finds_wrong_does_not_last(tmp_path: Path, damaged: bool) -> None:
    """A sound checkpoint is not put aside for what one node believes."""
    (tmp_path / "shard").write_bytes(b"1234")
    whole = Manifest(1, 1, 0.0, 2, 1, 8, {"shard": checkpoint_files.describe(tmp_path / "shard")})
    entry, _ = shares(whole, 2)
    if damaged:
        (tmp_path / "shard").unlink()

    class OfTwo(Collectives):
        def all_reduce(self, value: Any, merge: Any) -> Any:
            return merge(value, Damage(Fault("shard is missing"), 1, "shard", entry.files["shard"]))

        def from_rank_0(self, ask: Any, what: str) -> Any:
            return ask()

    assert verify(tmp_path, entry, OfTwo(0, 2)) == Fault("shard is missing", lasting=damaged)
