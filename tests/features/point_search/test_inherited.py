"""A parent's checkpoint in the directory of a trial: by links, by copies, whole or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from hpcrun.features.point_search import inherited
from hpcrun.run.checkpoint import checkpoint_files
from hpcrun.state import chosen_point, manifest, permissions
from hpcrun.state.chosen_point import ChosenPoint
from hpcrun.state.layout import RunPaths
from hpcrun.state.manifest import Manifest
from tests.support.experiment import TRAIN
from tests.support.made_checkpoint import FILES, make_checkpoint

POINT = ChosenPoint("", {}, {}, TRAIN, {"run": 3, "step": 7, "checkpoint": "step-00000007-a2"})
NAME = "step-00000007-a0"


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "3" / "checkpoints", 7, 2)


def _link(parent: Path, place: Path) -> Path:
    entry = manifest.read(parent)
    assert entry is not None
    place.mkdir()
    inherited.link(parent, entry, place)
    return place / NAME


def _damage(directory: Path) -> list[str]:
    entry = manifest.inspect_named(directory)
    assert isinstance(entry, Manifest)
    assert (entry.step, entry.attempt) == (7, manifest.INHERITED)
    looks = [checkpoint_files.damage(directory, name, file) for name, file in entry.files.items()]
    return [look.message for look in looks if look is not None]


@pytest.mark.parametrize("error", [None, errno.EPERM, errno.EXDEV, errno.EMLINK, errno.ENOTSUP])
def test_it_is_whole_without_the_parents(
    parent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int | None
) -> None:
    """Where a file system has no hard links between two directories, files are copied."""
    if error is not None:

        def fail(*_: Any, **__: Any) -> None:
            raise OSError(error, os.strerror(error))

        monkeypatch.setattr(os, "link", fail)
    found = _link(parent, tmp_path / "new")
    assert (found / "model.pt").samefile(parent / "model.pt") == (error is None)
    manifest.discard(parent)
    assert _damage(found) == []


def _without_a_file(parent: Path) -> None:
    (parent / "sub/rank-00000.pt").unlink()


def _cut_short(parent: Path) -> None:
    (parent / "model.pt").write_bytes(b"weights")


@pytest.mark.parametrize(
    ("hurt", "expected"),
    [
        (_without_a_file, "has been removed meanwhile"),
        (manifest.discard, "has been removed meanwhile"),
        (_cut_short, "model.pt has 7 bytes, not 7000"),
    ],
)
def test_what_is_not_whole_is_not_taken(
    parent: Path, tmp_path: Path, hurt: Any, expected: str
) -> None:
    entry = manifest.read(parent)
    assert entry is not None
    hurt(parent)
    (tmp_path / "new").mkdir()
    with pytest.raises(inherited.NotThere, match=expected):
        inherited.link(parent, entry, tmp_path / "new")
    assert manifest.read(tmp_path / "new" / NAME) is None


def test_what_another_user_owns_is_not_taken(
    parent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy would be mine, and to load it would execute what is in it."""

    def stranger(path: str | os.PathLike[str]) -> str | None:
        return "mallory" if Path(path).name == "model.pt" else None

    monkeypatch.setattr(permissions, "stranger", stranger)
    with pytest.raises(inherited.NotThere, match=r"model\.pt belongs to mallory"):
        _link(parent, tmp_path / "new")


def test_it_comes_with_the_values_and_is_moved_once(parent: Path, tmp_path: Path) -> None:
    run, entry = RunPaths(tmp_path / "9"), manifest.read(parent)
    assert entry is not None
    inherited.settle(run)  # of a run that has no values yet
    # A kill left a checkpoint's links.
    (run.directory / ".point.0a1b2c3d.tmp" / NAME).mkdir(parents=True)
    chosen_point.write(run, POINT, lambda place: inherited.link(parent, entry, place))
    assert chosen_point.read(run) == POINT
    assert {path.name for path in run.directory.iterdir()} == {"point"}
    inherited.settle(run)
    inherited.settle(run)
    assert _damage(run.checkpoints / NAME) == []
    assert not (run.point.parent / NAME).exists()
    # The run has removed it for newer ones of its own: it does not come back.
    manifest.discard(run.checkpoints / NAME)
    inherited.settle(run)
    assert manifest.newest_first(run.checkpoints) == []


def test_who_comes_second_leaves_the_first_ones_alone(parent: Path, tmp_path: Path) -> None:
    run, entry = RunPaths(tmp_path / "9"), manifest.read(parent)
    assert entry is not None
    chosen_point.write(run, POINT, lambda place: inherited.link(parent, entry, place))
    other = ChosenPoint("x", {"a": 1}, {}, TRAIN)
    chosen_point.write(run, other, lambda place: (place / NAME).mkdir())
    assert chosen_point.read(run) == POINT
    assert {path.name for path in (run.point.parent / NAME).iterdir()} == {
        manifest.NAME,
        *(name.partition("/")[0] for name in FILES),
    }
