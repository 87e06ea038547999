"""Checkpoints that come back from a directory and from a real S3 server."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hpcrun.errors import HpcrunError
from hpcrun.features.object_storage import fetcher
from hpcrun.features.object_storage.copier import Copier
from hpcrun.features.object_storage.copy_records import FETCHED, PASSED_OVER, Record
from hpcrun.features.object_storage.store import Store
from hpcrun.state import manifest
from tests.features.object_storage.conftest import Reports, Storage
from tests.support.made_checkpoint import FILES, make_checkpoint

ONE, TWO = "step-00000001-a1", "step-00000002-a1"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


@pytest.fixture
def records(storage: Storage, run: Path) -> list[dict[str, Any]]:
    """Two checkpoints were copied."""
    made = Reports()
    for step in (1, 2):
        make_checkpoint(run, step)
    Copier(storage.store(), run, made).copy_missing()
    return made.records


def _fetch(storage: Storage, run: Path, records: Sequence[Record], reports: Reports) -> None:
    wanted = fetcher.newer_copies(run, records)
    fetcher.fetch_newest(wanted, run, lambda place: Store(place, storage.options), reports, 1.0)


def _names(run: Path) -> list[str]:
    return sorted(path.name for path in run.iterdir())


def test_nothing_is_lost_and_nothing_asked(
    run: Path, records: list[dict[str, Any]], reports: Reports
) -> None:
    assert fetcher.newer_copies(run, records) == []
    shutil.rmtree(run / ONE)
    assert fetcher.newer_copies(run, records) == []
    assert fetcher.newer_copies(run, []) == []


def test_the_newest_comes_back_whole(
    storage: Storage, run: Path, records: list[dict[str, Any]], reports: Reports
) -> None:
    shutil.rmtree(run)
    _fetch(storage, run, records, reports)
    assert _names(run) == [TWO]
    assert isinstance(manifest.inspect(run / TWO), manifest.Manifest)
    assert {name: (run / TWO / name).read_bytes() for name in FILES} == FILES
    [told] = reports.of(FETCHED)
    assert (told["checkpoint"], told["step"]) == (TWO, 2)
    assert fetcher.newer_copies(run, records) == []


def test_what_a_site_has_left_of_a_checkpoint_is_put_aside(
    storage: Storage, run: Path, records: list[dict[str, Any]], reports: Reports
) -> None:
    """Files that nobody has read for weeks are removed, and the manifest stays."""
    (run / TWO / "model.pt").unlink()
    assert fetcher.newest_whole(run) == (1, 1)
    _fetch(storage, run, records, reports)
    assert _names(run) == [f"bad-{TWO}", ONE, TWO]
    assert (run / TWO / "model.pt").read_bytes() == FILES["model.pt"]


@pytest.mark.parametrize("harm", ["object", "gone", "manifest", "foreign"])
def test_a_copy_that_is_not_what_was_copied_is_passed_over(
    storage: Storage, run: Path, records: list[dict[str, Any]], reports: Reports, harm: str
) -> None:
    shutil.rmtree(run)
    there = storage.of() / TWO
    if harm == "object":
        (there / "model.pt").write_bytes(b"WEIGHTS" * 1000)
        expected = "model.pt does not have the checksum that its manifest says"
    elif harm == "gone":
        storage.store().remove(TWO)
        expected = f"it is not in {storage.url}/study/3-aa any more"
    elif harm == "manifest":
        (there / "manifest.json").write_text("{}")
        expected = "its manifest is not the one that was copied"
    else:
        # Sound, and another run's: whoever could write there would have the run load it.
        make_checkpoint(run.parent / "other", 2, contents={"model.pt": b"evil"})
        shutil.rmtree(there)
        shutil.copytree(run.parent / "other" / TWO, there)
        expected = "its manifest is not the one that was copied"
    storage.look_again()
    _fetch(storage, run, records, reports)
    [told] = reports.of(PASSED_OVER)
    assert told["message"] == expected
    assert _names(run) == [ONE]
    # It is not tried again.
    assert [one["checkpoint"] for one in fetcher.copies([*records, *reports.records])] == [ONE]


def test_a_store_that_cannot_be_read_is_an_error(
    storage: Storage,
    run: Path,
    records: list[dict[str, Any]],
    reports: Reports,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shutil.rmtree(run)

    def down(place: str) -> Store:
        raise OSError("no route to host")

    monkeypatch.setattr(fetcher, "PAUSE", 0.1)
    wanted = fetcher.newer_copies(run, records)
    with pytest.raises(HpcrunError, match=f"has lost {TWO}, and its copy in .* no route") as found:
        fetcher.fetch_newest(wanted, run, down, reports, 0.3)
    assert "hpcrun requeue" in str(found.value)
    assert not run.exists()


def test_a_fetch_that_was_cut_short_goes_on(
    storage: Storage, run: Path, records: list[dict[str, Any]], reports: Reports
) -> None:
    shutil.rmtree(run)
    asked: list[str] = []

    class Falling(Store):
        def fetch(self, name: str, file: str, target: Path) -> None:
            asked.append(file)
            if len(asked) == 2:
                raise OSError("the server is gone")
            super().fetch(name, file, target)

    wanted = fetcher.newer_copies(run, records)
    for patience in (-1.0, 1.0):
        try:
            fetcher.fetch_newest(
                wanted, run, lambda place: Falling(place, storage.options), reports, patience
            )
        except HpcrunError:
            assert fetcher.newest_whole(run) is None
    assert asked == ["model.pt", "sub/rank-00000.pt", "sub/rank-00000.pt"]
    assert _names(run) == [TWO]


def test_a_root_without_room_is_told(
    storage: Storage,
    run: Path,
    records: list[dict[str, Any]],
    reports: Reports,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shutil.rmtree(run)
    monkeypatch.setattr("os.statvfs", lambda path: type("V", (), {"f_bavail": 1, "f_frsize": 512}))
    with pytest.raises(HpcrunError, match=r"has room for .* of the .* of its copy"):
        _fetch(storage, run, records, reports)
    assert _names(run) == []
