"""Saves of a program, told from files that only lie there or are still written."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from hpcrun.run.program.file_search import FoundFile, search
from hpcrun.run.program.save_watch import STAYS, USUAL, SaveWatch, step_of
from tests.support.nfs import Host


def _files(root: Path) -> list[FoundFile]:
    return list(search(root))


def _save(path: Path, text: str = "x", at: float = 0.0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (at, at))


def _watch(root: Path, globs: Sequence[str] = USUAL) -> SaveWatch:
    return SaveWatch(globs, [root], _files(root))


def test_a_save_counts_once_it_has_not_changed_for_a_moment(tmp_path: Path) -> None:
    _save(tmp_path / "out" / "checkpoint-100" / "model.bin")
    watch = _watch(tmp_path)
    assert watch.look(_files(tmp_path), 150, 1000.0) == []
    model = tmp_path / "out" / "checkpoint-200" / "model.bin"
    _save(model, "half")
    assert watch.look(_files(tmp_path), 200, 1000.0) == []
    _save(model, "all of it")
    assert watch.look(_files(tmp_path), 200, 1000.0 + STAYS) == []
    found = watch.look(_files(tmp_path), 260, 1000.0 + 2 * STAYS)
    assert [(one.path.name, one.step, one.bytes) for one in found] == [("checkpoint-200", 200, 9)]
    assert watch.look(_files(tmp_path), 260, 1000.0 + 9 * STAYS) == []


@pytest.mark.parametrize(
    "name",
    [
        *("snapshot.pt", "snapshots/snapshot_3.pth", "runs/train/weights/last.pt", "last.pth"),
        *("latest.pt", "ckpt.pt", "checkpoint.pth.tar", "version_0/epoch=1-step=20.ckpt"),
    ],
)
def test_what_common_programs_call_their_saves(name: str, tmp_path: Path) -> None:
    """PyTorch's tutorials write a snapshot, YOLO its last and best weights."""
    watch = _watch(tmp_path)
    _save(tmp_path / name)
    _save(tmp_path / "last_hidden_states.pt")
    watch.look(_files(tmp_path), 7, 1000.0)
    (save,) = watch.look(_files(tmp_path), 9, 1000.0 + STAYS)
    assert save.path == tmp_path / name


def test_a_directory_is_no_save_before_there_is_a_file(tmp_path: Path) -> None:
    """Ranks may gather for long what one of them then writes."""
    watch = _watch(tmp_path)
    (tmp_path / "checkpoint-10" / "global_step10").mkdir(parents=True)
    for now in (1000.0, 1000.0 + 2 * STAYS):
        assert watch.look(_files(tmp_path), 10, now) == []
    _save(tmp_path / "checkpoint-10" / "global_step10" / "a.pt")
    watch.look(_files(tmp_path), 11, 1020.0)
    (save,) = watch.look(_files(tmp_path), 11, 1020.0 + STAYS)
    assert (save.path.name, save.step, save.bytes) == ("checkpoint-10", 10, 1)


def test_the_newest_of_very_many_saves_is_seen(tmp_path: Path) -> None:
    for number in range(300):
        _save(tmp_path / f"{number}.ckpt", at=number)
    watch = _watch(tmp_path)
    _save(tmp_path / "new.ckpt", at=1000.0)
    newest, *others = sorted(_files(tmp_path), key=lambda one: -one.modified)
    found = [newest, *others]
    watch.look(found, 7, 1000.0)
    (save,) = watch.look(found, 7, 1000.0 + STAYS)
    assert (save.path.name, save.step) == ("new.ckpt", 7)


def test_one_file_that_is_written_again_and_again(tmp_path: Path) -> None:
    """Its step is the one that was known as it was seen first."""
    watch = _watch(tmp_path, ["ckpt.pt"])
    steps = []
    for number in (1, 2):
        at = 1000.0 + 100 * number
        _save(tmp_path / "ckpt.pt", "x" * number)
        watch.look(_files(tmp_path), 10 * number, at)
        steps += [one.step for one in watch.look(_files(tmp_path), 99, at + STAYS)]
    assert steps == [10, 20]


def test_one_file_that_is_replaced_faster_than_it_counts(tmp_path: Path) -> None:
    watch, steps = _watch(tmp_path, ["last.ckpt"]), []
    for number in (1, 2, 3):
        _save(tmp_path / "new", "x", at=number)
        (tmp_path / "new").rename(tmp_path / "last.ckpt")
        steps += watch.look(_files(tmp_path), 10 * number, 1000.0 + number)
    steps += watch.look(_files(tmp_path), 99, 1003.0 + STAYS)
    assert [one.step for one in steps] == [30]


@pytest.mark.parametrize(("well", "age", "counts"), [(True, 0, 1), (False, 0, 0), (False, 60, 1)])
def test_a_save_at_the_end_counts_unless_its_program_was_killed_in_it(
    tmp_path: Path, well: bool, age: float, counts: int
) -> None:
    watch = _watch(tmp_path)
    _save(tmp_path / "last.ckpt", at=1000.0 - age)
    found = watch.look(_files(tmp_path), 7, 1000.0, is_last=True, ended_well=well)
    assert len(found) == counts


def test_a_save_without_a_number_has_the_step_of_the_time_at_which_it_was_written(
    tmp_path: Path,
) -> None:
    watch = _watch(tmp_path)
    _save(tmp_path / "ckpt.pt", "weights")
    written = (tmp_path / "ckpt.pt").stat().st_mtime
    known = {written - 1: 9, written + 1: 10}

    def step_at(moment: float) -> int:
        return max(step for at, step in known.items() if at <= moment)

    assert watch.look(_files(tmp_path), 10, 0.0, step_at=step_at) == []
    (save,) = watch.look(_files(tmp_path), 15, STAYS, step_at=step_at)
    assert save.step == 9


@pytest.mark.parametrize(
    ("name", "text", "step"),
    [
        ("checkpoint-500", None, 500),
        ("global_step120", None, 120),
        ("epoch=2-step=300.ckpt", "", 300),
        ("ckpt_iter_1000.pt", "", 1000),
        ("000250.pt", "", 250),
        ("checkpoint_epoch_3.pt", "", 42),
        ("checkpoint.pth.tar", "", 42),
        ("ckpt.pt", "", 42),
        ("latest", "global_step77\n", 77),
        ("latest", "x" * 5000, 42),
    ],
)
def test_the_step_of_a_save(tmp_path: Path, name: str, text: str | None, step: int) -> None:
    path = tmp_path / name
    if text is None:
        path.mkdir()
    else:
        path.write_text(text)
    (one,) = _files(tmp_path)
    assert step_of(one, 42) == step


def test_the_trainers_own_state_says_the_step(tmp_path: Path) -> None:
    state = tmp_path / "checkpoint-9" / "trainer_state.json"
    _save(state, json.dumps({"global_step": 450}))
    one = next(one for one in _files(tmp_path) if one.is_directory)
    assert step_of(one, None) == 450
    state.write_text("{")
    assert step_of(one, None) == 9


@pytest.mark.parametrize(
    ("path", "text", "step"),
    [
        ("out/checkpoint-9/trainer_state.json", '{"global_step": 450}', 450),
        ("out/checkpoint-9/trainer_state.json", "{", 9),
        ("step_500/random_states_0.pkl", "", 500),
        ("epoch_2/random_states_0.pkl", "", 42),
    ],
)
def test_a_file_of_several_in_one_save(tmp_path: Path, path: str, text: str, step: int) -> None:
    _save(tmp_path / path, text)
    one = next(one for one in _files(tmp_path) if not one.is_directory)
    assert step_of(one, 42) == step


@pytest.mark.parametrize("name", ["checkpoint-8/model.pt", "ckpt8.pt"])
def test_a_save_that_another_node_still_writes(two_hosts: tuple[Host, Host], name: str) -> None:
    """Its size, as this node remembers it, stays the same meanwhile."""
    other, here = two_hosts
    watch = _watch(here.path)
    (other / name).parent.mkdir(exist_ok=True)
    (other / name).write_text("a half")
    assert watch.look(_files(here.path), 8, 0.0) == []
    (other / name).write_text("a half and the other")
    assert (here / name).stat().st_size == 6
    assert watch.look(_files(here.path), 8, STAYS) == []
    assert watch.look(_files(here.path), 8, STAYS + 1) == []
    (done,) = watch.look(_files(here.path), 8, 2 * STAYS + 1)
    assert (done.bytes, done.step) == (20, 8)


def test_what_is_no_file_is_no_save(tmp_path: Path) -> None:
    watch = _watch(tmp_path)
    os.mkfifo(tmp_path / "a.ckpt")
    (tmp_path / "b.ckpt").symlink_to("/nowhere")
    _save(tmp_path / ".hidden" / "c.ckpt")
    assert watch.look(_files(tmp_path), 1, 9e9, is_last=True, ended_well=True) == []
