"""Measuring a directory: numbers, and nothing left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcrun.tools.doctor import storage_speed


@pytest.fixture(autouse=True)
def _little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_speed, "_WRITE_BYTES", 8 << 20)


def test_a_directory_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    facts = storage_speed.measure(tmp_path)
    assert facts.error is None
    assert facts.renames
    assert facts.sync is not None
    assert 0 < facts.sync < 5
    assert facts.write is not None
    assert facts.write > 0
    assert facts.kind
    assert [*tmp_path.iterdir()] == []


def test_a_root_that_is_not_there_yet(tmp_path: Path) -> None:
    facts = storage_speed.measure(tmp_path / "runs" / "ann")
    assert facts.path == str(tmp_path / "runs" / "ann")
    assert facts.sync is not None
    assert [*tmp_path.iterdir()] == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_of_somebody_else() -> None:
    assert storage_speed.measure(Path("/etc")).error == "/etc cannot be written by you"


def test_storage_that_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    facts = storage_speed.measure(tmp_path)
    assert facts.error == "No space left on device"
    assert facts.sync is None
    assert [*tmp_path.iterdir()] == []


def test_renames_that_do_not_replace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, count = os.replace, iter(range(1000))

    def lazy(new: Path, place: Path) -> None:
        if next(count) == 0:
            real(new, place)
        else:
            Path(new).unlink()

    monkeypatch.setattr(os, "replace", lazy)
    assert not storage_speed.measure(tmp_path).renames
