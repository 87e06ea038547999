"""Checkpoints of other users: their weights are taken over, and nothing in them is executed."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

from hpcrun.run.checkpoint import checkpoint_files
from hpcrun.state import manifest
from hpcrun.state.layout import RunPaths, experiment
from hpcrun.state.manifest import File, Manifest
from tests.run.conftest import own_operators, worlds
from tests.run.ranks import ONE, THREE, Worlds
from tests.support.users import STRANGER, needs_root

__all__ = ["own_operators", "worlds"]

pytestmark = [pytest.mark.training]


class Bomb:
    """An object whose unpickling makes a directory."""

    def __init__(self, mark: Path, call: Any = exec) -> None:
        python = f"__import__('os').mkdir({str(mark)!r})"
        words = {exec: python, eval: python, os.system: f"mkdir {mark}", os.mkdir: str(mark)}
        self._pickled = call, (words[call],)

    def __reduce__(self) -> Any:
        return self._pickled


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    return tmp_path / "ran"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    for name in ("theirs", "mine"):
        (root / name / "submissions").mkdir(parents=True)
    _run(root, "mine").directory.mkdir(parents=True)
    return root


def _run(root: Path, name: str) -> RunPaths:
    return experiment(root, name).run(0)


def _poison(directory: Path, pattern: str, ran: Path, *, beside: bool) -> None:
    """Put a bomb into files of a checkpoint, with a manifest that fits."""
    import torch

    for path in directory.glob(pattern):
        state = torch.load(path, map_location="cpu", weights_only=False)
        torch.save({"bomb": Bomb(ran), **state} if beside else Bomb(ran), path)
    _fitting_manifest(directory)


def _fitting_manifest(directory: Path) -> None:
    entry = manifest.read(directory)
    assert entry is not None
    files: dict[str, File] = {
        name: checkpoint_files.describe(directory / name) for name in entry.files
    }
    Manifest(**{**vars(entry), "files": files}).write(directory)


@pytest.mark.parametrize("stage", [1, 3])
@pytest.mark.parametrize("beside", [True, False], ids=["beside weights", "instead of them"])
def test_a_strangers_weights_are_taken_and_their_pickles_are_not_executed(
    worlds: Worlds, root: Path, ran: Path, stage: int, beside: bool
) -> None:
    ranks = worlds(1)
    assert ranks.tell("mixed", stage=stage) == [None]
    ranks.tell("train_mixed", steps=3)
    ranks.tell("save", run=str(_run(root, "theirs").directory), step=3)
    (saved,) = ranks.tell("weights")
    _poison(_run(root, "theirs").checkpoints / THREE, "*_states.pt", ran, beside=beside)
    assert ranks.tell("mixed", stage=stage, seed=5) == [None]
    (found,) = ranks.tell("begin", run=str(_run(root, "mine").directory), origin="theirs/0")
    assert not ran.exists()
    if beside:
        assert found == [THREE, 3]
        (own,) = ranks.tell("weights")
        assert {name: parts[0] for name, parts in own.items()} == {
            name: parts[0] for name, parts in saved.items()
        }
    else:
        assert "cannot be read" in found


@needs_root
@pytest.mark.parametrize("planted", ["directory", "shard", "rank's state"])
def test_a_run_does_not_go_on_from_what_a_stranger_planted(
    worlds: Worlds, root: Path, ran: Path, planted: str
) -> None:
    ranks, run = worlds(1), _run(root, "mine")
    assert ranks.tell("mixed", stage=1) == [None]
    ranks.tell("train_mixed", steps=1)
    ranks.tell("save", run=str(run.directory), step=1)
    theirs = run.checkpoints / THREE
    shutil.copytree(run.checkpoints / ONE, theirs)
    entry = manifest.read(theirs)
    assert entry is not None
    Manifest(**{**vars(entry), "step": 3}).write(theirs)
    pattern = {"shard": "*optim_states.pt", "rank's state": "rank-*.pt"}.get(planted, "*.pt")
    _poison(theirs, pattern, ran, beside=True)
    STRANGER.owns(*([theirs] if planted == "directory" else theirs.glob(pattern)))
    (found,) = ranks.tell("restore", run=str(run.directory))
    assert not ran.exists()
    assert found == [1, ONE]
    (reports,) = ranks.tell("reports")
    assert [line for line in reports if f"belongs to {STRANGER.name}" in line]
    assert theirs.is_dir(), "what is another's is passed over, not renamed"


@pytest.mark.parametrize("call", [exec, eval, os.system, os.mkdir])
def test_no_callable_of_a_pickle_is_called(call: Any, tmp_path: Path, ran: Path) -> None:
    import torch

    from hpcrun.run.checkpoint.trust import load_tensors

    path = tmp_path / "states.pt"
    torch.save({"module": {"weight": torch.ones(3)}, "bomb": Bomb(ran, call)}, path)
    said = ""
    try:
        assert load_tensors(path)["module"]["weight"].tolist() == [1.0] * 3
    except pickle.UnpicklingError as error:
        said = str(error)
    # torch's own advice is to execute it.
    assert "weights_only" not in said
    assert "safe_globals" not in said
    assert not ran.exists()


def test_a_file_that_is_no_checkpoint_is_not_advised_to_be_executed(tmp_path: Path) -> None:
    from hpcrun.run.checkpoint.trust import load_tensors

    path = tmp_path / "states.pt"
    path.write_bytes(pickle.dumps(Bomb(tmp_path / "ran", os.mkdir)))
    with pytest.raises(Exception) as raised:  # noqa: PT011
        load_tensors(path)
    assert "weights_only" not in str(raised.value)
    assert not (tmp_path / "ran").exists()


def test_a_checkpoints_fifo_blocks_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "states.pt")
    fault = checkpoint_files.damage(tmp_path, "states.pt", File(0, sha256="0" * 64))
    assert fault is not None
    assert "not a regular file" in fault.message


@pytest.mark.timeout(30)
def test_a_fifo_that_no_manifest_names_blocks_nobody_either(tmp_path: Path) -> None:
    """DeepSpeed opens all files of a stranger's directory that are named like its own."""
    import torch

    from hpcrun.run.checkpoint import trust

    path = tmp_path / "zero_pp_rank_9_mp_rank_00_optim_states.pt"
    os.mkfifo(path)
    with trust.tensors_only(), pytest.raises(OSError, match="not a regular file"):
        torch.load(path, map_location="cpu", weights_only=False)
