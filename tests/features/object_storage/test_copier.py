"""Checkpoints that go to a directory and to a real S3 server."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from hpcrun.features.object_storage.copier import Copier
from hpcrun.features.object_storage.copy_records import COPIED, TROUBLE
from hpcrun.features.object_storage.store import Store
from tests.features.object_storage.conftest import Reports, Storage
from tests.support.made_checkpoint import FILES, make_checkpoint

ONE, TWO, THREE = (f"step-0000000{step}-a1" for step in (1, 2, 3))


class Breaking(Store):
    """A store in which a call fails, or something happens before it."""

    before: Any = None

    def put(self, name: str, file: str, source: Path) -> None:
        if self.before is not None:
            self.before(name, file)
        super().put(name, file, source)


def test_complete_checkpoints_are_copied_newest_first(
    storage: Storage, tmp_path: Path, reports: Reports
) -> None:
    run = tmp_path / "checkpoints"
    for step in (1, 2):
        make_checkpoint(run, step)
    unfinished = make_checkpoint(run, 3)
    (unfinished / "manifest.json").unlink()
    copier = Copier(storage.store(), run, reports)
    copier.copy_missing()
    assert [one["checkpoint"] for one in reports.of(COPIED)] == [TWO, ONE]
    assert storage.names() == [ONE, TWO]
    for file, data in FILES.items():
        assert (storage.of() / TWO / file).read_bytes() == data
    assert (storage.of() / TWO / "manifest.json").read_bytes() == (
        run / TWO / "manifest.json"
    ).read_bytes()
    assert reports.of(COPIED)[0]["bytes"] == sum(map(len, FILES.values()))
    copier.copy_missing()
    assert len(reports) == 2
    # Another process finds what is there, and copies nothing again.
    again = Reports()
    store = Breaking(f"{storage.url}/study/3-aa", storage.options)
    store.before = lambda *_: pytest.fail("copied again")
    Copier(store, run, again).copy_missing()
    assert [one["checkpoint"] for one in again.of(COPIED)] == [TWO, ONE]


def test_no_checkpoints_no_copies(storage: Storage, tmp_path: Path, reports: Reports) -> None:
    Copier(storage.store(), tmp_path / "checkpoints", reports, keep=1).copy_missing()
    assert reports == []


def test_what_keep_leaves_is_this_runs_alone(
    storage: Storage, tmp_path: Path, reports: Reports
) -> None:
    run = tmp_path / "checkpoints"
    for step in (1, 2, 3):
        make_checkpoint(run, step)
    Copier(storage.store(), run, reports).copy_missing()
    other, strange = storage.of("study/3-bb") / ONE, storage.of() / "notes"
    for path in (other, strange):
        path.mkdir(parents=True)
        (path / "manifest.json").write_text("somebody's")
    # Incomplete, perhaps on its way by somebody else.
    unfinished = storage.of() / "step-00000000-a1"
    unfinished.mkdir()
    (unfinished / "model.pt").write_text("half")
    storage.look_again()
    make_checkpoint(run, 4)
    shutil.rmtree(run / ONE)
    Copier(storage.store(), run, reports, keep=2).copy_missing()
    assert storage.names() == ["notes", THREE, "step-00000004-a1"]
    assert not (storage.of() / TWO / "model.pt").exists()
    assert (other / "manifest.json").exists()
    assert (unfinished / "model.pt").exists()


def test_with_keep_older_ones_are_not_copied_at_all(
    storage: Storage, tmp_path: Path, reports: Reports
) -> None:
    for step in (1, 2, 3):
        make_checkpoint(tmp_path, step)
    (tmp_path / THREE / "manifest.json").unlink()
    copier = Copier(storage.store(), tmp_path, reports, keep=1)
    copier.copy_missing()
    assert storage.names() == [TWO]
    make_checkpoint(tmp_path, 3)
    copier.copy_missing()
    assert storage.names() == [THREE]
    copier.copy_missing()
    assert [one["checkpoint"] for one in reports.of(COPIED)] == [TWO, THREE]


def test_a_job_that_was_replaced_removes_nothing(
    storage: Storage, tmp_path: Path, reports: Reports
) -> None:
    for step in (1, 2):
        make_checkpoint(tmp_path, step)
    Copier(storage.store(), tmp_path, reports).copy_missing()
    make_checkpoint(tmp_path, 3)
    Copier(storage.store(), tmp_path, reports, keep=1, may_remove=lambda: False).copy_missing()
    assert storage.names() == [ONE, TWO, THREE]


def test_a_copy_that_was_cut_short_goes_on(
    storage: Storage, tmp_path: Path, reports: Reports
) -> None:
    make_checkpoint(tmp_path, 1)
    store = Breaking(f"{storage.url}/study/3-aa", storage.options)
    sent = []

    def break_once(name: str, file: str) -> None:
        sent.append(file)
        if len(sent) == 2:
            raise OSError("the server is gone")

    store.before = break_once
    copier = Copier(store, tmp_path, reports)
    with pytest.raises(OSError, match="gone"):
        copier.copy_missing()
    assert storage.names() == []
    copier.copy_missing()
    assert storage.names() == [ONE]
    assert sent == ["model.pt", "sub/rank-00000.pt", "sub/rank-00000.pt"]


def test_a_checkpoint_that_retention_removes_meanwhile_is_no_error(
    storage: Storage, tmp_path: Path, reports: Reports
) -> None:
    for step in (1, 2):
        make_checkpoint(tmp_path, step)
    store = Breaking(f"{storage.url}/study/3-aa", storage.options)

    def vanish(name: str, file: str) -> None:
        if name == TWO and file != "model.pt":
            shutil.rmtree(tmp_path / TWO)

    store.before = vanish
    Copier(store, tmp_path, reports).copy_missing()
    assert storage.names() == [ONE]
    assert not (storage.of() / TWO / "model.pt").exists()
    assert [what for what, _ in reports] == [COPIED]


def test_a_damaged_checkpoint_is_not_copied_as_if_it_were_whole(
    storage: Storage, tmp_path: Path, reports: Reports
) -> None:
    for step in (1, 2):
        make_checkpoint(tmp_path, step)
    (tmp_path / TWO / "model.pt").write_bytes(b"weighty" * 1000)
    copier = Copier(storage.store(), tmp_path, reports)
    copier.copy_missing()
    copier.copy_missing()
    assert storage.names() == [ONE]
    [told] = reports.of(TROUBLE)
    assert told["message"].startswith(f"{TWO} is damaged in the root: model.pt does not have")


def test_a_copy_that_was_of_no_use_is_made_again(
    storage: Storage, tmp_path: Path, reports: Reports
) -> None:
    make_checkpoint(tmp_path, 1)
    Copier(storage.store(), tmp_path, reports).copy_missing()
    (storage.of() / ONE / "model.pt").write_bytes(b"x")
    storage.look_again()
    Copier(storage.store(), tmp_path, reports).copy_missing()
    assert (storage.of() / ONE / "model.pt").read_bytes() == b"x"
    Copier(storage.store(), tmp_path, reports, refused={ONE}).copy_missing()
    assert (storage.of() / ONE / "model.pt").read_bytes() == FILES["model.pt"]


def test_an_object_of_another_size_is_no_copy(
    storage: Storage, tmp_path: Path, reports: Reports
) -> None:
    make_checkpoint(tmp_path, 1)

    class Short(Store):
        broken = True

        def put(self, name: str, file: str, source: Path) -> None:
            super().put(name, file, source)
            if self.broken and file == "model.pt":
                (storage.of() / name / file).write_bytes(b"half")
                storage.look_again()

    store = Short(f"{storage.url}/study/3-aa", storage.options)
    copier = Copier(store, tmp_path, reports)
    with pytest.raises(OSError, match=r"model\.pt of .* has 4 bytes there, not 7000"):
        copier.copy_missing()
    assert storage.names() == []
    store.broken = False
    copier.copy_missing()
    assert storage.names() == [ONE]
