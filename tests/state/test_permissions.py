"""Of several directories the one that is used, and none that another user made or could change."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcrun.state import permissions
from tests.support.users import STRANGER, needs_root


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "root" / "kept", tmp_path / "root" / "e" / "kept"


def test_the_roots_comes_first(places: tuple[Path, Path]) -> None:
    assert permissions.usable_place(places, "name") == places[0]
    (places[0] / "name").mkdir()
    assert permissions.usable_place(places, "name") == places[0]


def test_what_everybody_may_change_is_passed_over(places: tuple[Path, Path]) -> None:
    (places[0] / "name").mkdir(parents=True)
    (places[0] / "name").chmod(0o777)
    assert not permissions.is_own(places[0] / "name")
    assert permissions.usable_place(places, "name") == places[1]
    assert permissions.usable_place(places, "other") == places[0]


@needs_root
def test_another_users_is_passed_over(places: tuple[Path, Path]) -> None:
    (places[0] / "name").mkdir(parents=True)
    os.chown(places[0] / "name", STRANGER.uid, STRANGER.gid)
    assert permissions.usable_place(places, "name") == places[1]
    os.chown(places[0], STRANGER.uid, STRANGER.gid)
    assert permissions.usable_place(places, "other") == places[1]
