"""Locks of torch's builds: those that are held, and those that were left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcrun.run.node import build_locks


@pytest.mark.parametrize(
    ("variables", "where"),
    [
        ({"HOME": "{}"}, ".cache/torch_extensions/py311_cpu/adder"),
        ({"HOME": "/nowhere", "XDG_CACHE_HOME": "{}/c"}, "c/torch_extensions/py312_cu121/adder"),
        ({"HOME": "/nowhere", "TORCH_EXTENSIONS_DIR": "{}/own"}, "own/adder"),
    ],
    ids=["the user's cache", "another cache", "the user's own directory"],
)
def test_where_torch_builds(variables: dict[str, str], where: str, tmp_path: Path) -> None:
    environment = {name: text.format(tmp_path) for name, text in variables.items()}
    assert build_locks.left_behind(environment) == []
    directory = tmp_path / where
    directory.mkdir(parents=True)
    assert build_locks.left_behind(environment) == []
    (directory / "lock").touch()
    assert build_locks.left_behind(environment) == [directory / "lock"]
    build_locks.remove([directory / "lock", directory / "no-such"])
    assert build_locks.left_behind(environment) == []


def test_who_builds_holds_the_lock(tmp_path: Path) -> None:
    """As `torch.utils.file_baton.FileBaton` does."""
    for name in ("held", "left"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "lock").touch()
    environment = {"TORCH_EXTENSIONS_DIR": str(tmp_path)}
    held = os.open(tmp_path / "held/lock", os.O_RDONLY)
    assert build_locks.left_behind(environment) == [tmp_path / "left/lock"]
    os.close(held)
    assert len(build_locks.left_behind(environment)) == 2
