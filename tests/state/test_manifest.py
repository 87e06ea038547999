"""A checkpoint is complete or it does not exist."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import xxhash

from hpcrun.run.checkpoint import checkpoint_files
from hpcrun.state import manifest
from hpcrun.state.manifest import Fault, File, Manifest
from tests.support.nfs import Host


def _checkpoint(checkpoints: Path, step: int, attempt: int = 1, **changes: Any) -> Path:
    directory = checkpoints / f"step-{step:08d}-a{attempt}"
    (directory / "sub").mkdir(parents=True)
    (directory / "shard.pt").write_bytes(bytes(range(256)) * 40)
    (directory / "sub" / "empty.pt").write_bytes(b"")
    files = {
        name: checkpoint_files.describe(directory / name) for name in ("shard.pt", "sub/empty.pt")
    }
    fields = {"step": step, "attempt": attempt, "time": 5.0, "world_size": 2, "zero_stage": 1}
    Manifest(**{**fields, "train_batch_size": 8, "files": files, **changes}).write(directory)
    return directory


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    directory = _checkpoint(tmp_path, 7)
    found = manifest.read(directory)
    assert found is not None
    assert (found.step, found.world_size, found.zero_stage, found.bytes) == (7, 2, 1, 10240)
    assert found.files["sub/empty.pt"] == File(0, xxh128="99aa06d3014798d86001c324468d497f")


def test_every_prefix_of_a_manifest_is_no_checkpoint(tmp_path: Path) -> None:
    directory = _checkpoint(tmp_path, 7)
    path = directory / manifest.NAME
    whole = path.read_bytes()
    # The last byte is the newline, without which it is whole as well.
    for cut in range(len(whole) - 1):
        path.write_bytes(whole[:cut])
        assert manifest.read(directory) is None, cut
    path.write_bytes(whole[:-1])
    assert manifest.read(directory) is not None


def _rewrite(directory: Path, without: str = "", **changes: Any) -> None:
    """Change what a manifest says, as one who did not make a mistake in its checksum."""
    data = {**json.loads((directory / manifest.NAME).read_text()), **changes}
    data.pop(without, None)
    del data["sha256"]
    (directory / manifest.NAME).write_text(json.dumps(data))


def _with(**changes: Any) -> dict[str, Any]:
    return changes


@pytest.mark.parametrize(
    "change",
    [
        _with(format=2),
        _with(format=None),
        _with(shape=[2, 2]),
        _with(files={"shard.pt": {"bytes": 1}}),
        _with(files={"shard.pt": {"bytes": 1, "sha256": "0", "more": 1}}),
        _with(files=["shard.pt"]),
        _with(files=None),
        _with(files={}),
        _with(files={"/etc/passwd": {"bytes": 1, "sha256": "0"}}),
        _with(files={"../step-00000001-a1/shard.pt": {"bytes": 1, "sha256": "0"}}),
        _with(files={"sub/../../x": {"bytes": 1, "sha256": "0"}}),
        _with(files={"a\0b": {"bytes": 1, "sha256": "0"}}),
        _with(files={"shard.pt": {"bytes": "1", "sha256": "0"}}),
        _with(files={"shard.pt": {"bytes": -1, "sha256": "0"}}),
        _with(step="7"),
        _with(step=7.0),
        _with(step=True),
        _with(world_size=None),
        _with(time="now"),
        _with(metrics={"loss": "low"}),
        _with(metrics={"loss": None}),
        _with(metrics=[1.0]),
    ],
)
def test_a_manifest_of_another_form_is_no_checkpoint(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    directory = _checkpoint(tmp_path, 7)
    _rewrite(directory, **change)
    assert manifest.read(directory) is None


@pytest.mark.parametrize(
    "key", ["format", "step", "attempt", "time", "world_size", "zero_stage", "files"]
)
def test_a_manifest_that_lacks_a_key_is_no_checkpoint(tmp_path: Path, key: str) -> None:
    directory = _checkpoint(tmp_path, 7)
    _rewrite(directory, without=key)
    assert manifest.read(directory) is None
    assert manifest.complete(tmp_path) == []


@pytest.mark.parametrize("text", ["", "[]", "null", "7", '"x"', "\xff"])
def test_what_is_no_mapping_is_no_checkpoint(tmp_path: Path, text: str) -> None:
    directory = _checkpoint(tmp_path, 7)
    (directory / manifest.NAME).write_text(text, encoding="latin-1")
    assert manifest.read(directory) is None


@pytest.mark.parametrize("place", range(0, 500, 7))
def test_one_flipped_bit_in_a_manifest_makes_it_none(tmp_path: Path, place: int) -> None:
    directory = _checkpoint(tmp_path, 7, metrics={"loss": 1.5, "lr": 3e-4})
    path = directory / manifest.NAME
    data = bytearray(path.read_bytes())
    before = json.loads(data)
    data[place % len(data)] ^= 1
    path.write_bytes(data)
    try:
        same = json.loads(data) == before
    except ValueError:
        same = False
    assert (manifest.read(directory) is not None) == same


def test_a_manifest_from_before_manifests_had_a_checksum_is_read(tmp_path: Path) -> None:
    directory = _checkpoint(tmp_path, 7)
    _rewrite(directory, without="metrics")
    found = manifest.read(directory)
    assert found is not None
    assert (found.step, found.metrics) == (7, {})


def test_what_is_wrong_with_a_manifest_is_said(tmp_path: Path) -> None:
    texts = {
        1: "",
        2: "[]",
        3: '{"format": 2}',
        4: '{"format": 1}',
        5: '{"format": 1, "sha256": "0"}',
        6: "[" * 100_000,
    }
    for step, text in texts.items():
        (_checkpoint(tmp_path, step) / manifest.NAME).write_text(text)
    _checkpoint(tmp_path, 7).rename(tmp_path / "step-00000008-a1")
    _rewrite(_checkpoint(tmp_path, 9), files={"../x": {"bytes": 1, "sha256": ""}})
    found = {path.name: fault for path, fault in manifest.scan(tmp_path)}
    assert list(found.values()) == [
        Fault("manifest.json names a file outside the checkpoint: '../x'"),
        Fault("manifest.json is that of step 7 by attempt 1"),
        Fault("manifest.json is not JSON"),
        Fault("manifest.json does not have the SHA-256 that it says"),
        Fault("manifest.json is not that of a checkpoint"),
        Fault("manifest.json has a format that this hpcrun does not know", lasting=False),
        Fault("manifest.json is not a mapping"),
        Fault("manifest.json is not JSON"),
    ]
    assert manifest.complete(tmp_path) == []


def test_the_complete_ones_newest_first(tmp_path: Path) -> None:
    assert manifest.complete(tmp_path / "none") == []
    for step, attempt in ((5, 1), (10, 1), (10, 2), (100, 1), (20, 1), (30, 1)):
        _checkpoint(tmp_path, step, attempt)
    (tmp_path / "step-00000020-a1" / manifest.NAME).unlink()
    (tmp_path / "step-00000030-a1").rename(tmp_path / "bad-step-00000030-a1")
    (tmp_path / "step-00000100-a1").rename(tmp_path / ".trash-step-00000100-a1")
    (tmp_path / "step-00000050-a1").mkdir()
    (tmp_path / "step-00000060-a1").write_text("a file")
    found = [(each.step, each.attempt) for _, each in manifest.complete(tmp_path)]
    assert found == [(10, 2), (10, 1), (5, 1)]


def test_what_earlier_attempts_left_half_done(tmp_path: Path) -> None:
    for step, attempt in ((5, 1), (10, 1), (15, 3), (20, 4)):
        _checkpoint(tmp_path, step, attempt)
    for name in ("step-00000010-a1", "step-00000015-a3", "step-00000020-a4"):
        (tmp_path / name / manifest.NAME).unlink()
    (tmp_path / "bad-step-00000001-a1").mkdir()
    (tmp_path / "notes").mkdir()
    found = sorted(path.name for path in manifest.abandoned(tmp_path, attempt=3))
    assert found == ["step-00000010-a1", "step-00000015-a3"]
    assert len(manifest.abandoned(tmp_path, attempt=4)) == 3
    assert [path.name for path in manifest.abandoned(tmp_path, step=10)] == [found[0]]


def _damage(directory: Path, name: str = "shard.pt") -> Fault | None:
    found = manifest.read(directory)
    assert found is not None
    return checkpoint_files.damage(directory, name, found.files[name])


def test_what_is_whole_has_no_damage(tmp_path: Path) -> None:
    directory = _checkpoint(tmp_path, 7)
    assert _damage(directory) is None
    assert _damage(directory, "sub/empty.pt") is None


@pytest.mark.parametrize("place", [0, 5000, 10239])
def test_one_flipped_bit_is_found(tmp_path: Path, place: int) -> None:
    directory = _checkpoint(tmp_path, 7)
    data = bytearray((directory / "shard.pt").read_bytes())
    data[place] ^= 1
    (directory / "shard.pt").write_bytes(data)
    assert _damage(directory) == Fault("shard.pt does not have the checksum that its manifest says")


@pytest.mark.parametrize("size", [0, 10239, 10241])
def test_a_cut_or_longer_file_is_found(tmp_path: Path, size: int) -> None:
    directory = _checkpoint(tmp_path, 7)
    with open(directory / "shard.pt", "r+b") as stream:
        stream.truncate(size)
    assert _damage(directory) == Fault(f"shard.pt has {size} bytes, its manifest says 10240")


def test_a_missing_file_is_found(tmp_path: Path) -> None:
    directory = _checkpoint(tmp_path, 7)
    (directory / "shard.pt").unlink()
    assert _damage(directory) == Fault("shard.pt is missing")


def test_what_cannot_be_read_may_be_whole(tmp_path: Path) -> None:
    directory = _checkpoint(tmp_path, 7)
    (directory / "shard.pt").unlink()
    (directory / "shard.pt").symlink_to("shard.pt")
    assert _damage(directory) == Fault(
        "shard.pt cannot be read: Too many levels of symbolic links", lasting=False
    )
    (directory / manifest.NAME).unlink()
    (directory / manifest.NAME).symlink_to(manifest.NAME)
    assert manifest.inspect(directory) == Fault(
        "manifest.json cannot be read: Too many levels of symbolic links", lasting=False
    )


def test_a_large_file_is_read_in_blocks(tmp_path: Path) -> None:
    """Longer than a block, and not a multiple of one."""
    path = tmp_path / "large"
    path.write_bytes(b"ab" * ((1 << 22) + 77))

    data = path.read_bytes()
    expected = File(len(data), xxh128=xxhash.xxh3_128(data).hexdigest())
    assert checkpoint_files.describe(path, sync=True) == expected


def test_without_xxhash_it_is_sha_256(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xxhash", None)
    directory = _checkpoint(tmp_path, 7)
    data = (directory / "shard.pt").read_bytes()
    found = manifest.read(directory)
    assert found is not None
    assert found.files["shard.pt"] == File(len(data), hashlib.sha256(data).hexdigest())
    assert _damage(directory) is None
    monkeypatch.delitem(sys.modules, "xxhash")
    assert _damage(directory) is None


def test_what_was_saved_with_xxhash_is_passed_over_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = _checkpoint(tmp_path, 7)
    monkeypatch.setitem(sys.modules, "xxhash", None)
    assert _damage(directory) == Fault(
        "shard.pt cannot be checked without the package xxhash", lasting=False
    )


def test_a_manifest_that_was_looked_for_too_early(two_hosts: tuple[Host, Host]) -> None:
    """Nothing that another host has completed is taken for a save that was never completed."""
    other, here = two_hosts
    checkpoints = here / "checkpoints"
    assert manifest.complete(checkpoints) == manifest.abandoned(checkpoints) == []
    step = other / "checkpoints" / "step-00000005-a1"
    step.mkdir(parents=True)
    assert manifest.abandoned(checkpoints) == [checkpoints / step.name]
    assert not (checkpoints / step.name / manifest.NAME).exists()
    _checkpoint(other / "checkpoints", 5, 1)
    assert not (checkpoints / step.name / manifest.NAME).exists()
    assert manifest.abandoned(checkpoints) == []
    assert [path.name for path, _ in manifest.complete(checkpoints)] == [step.name]


@pytest.mark.parametrize("count", [1, 1_000], ids=["few", "many"])
def test_a_checkpoint_is_removed_and_not_what_a_link_leads_to(tmp_path: Path, count: int) -> None:
    directory, elsewhere = _checkpoint(tmp_path, 7), tmp_path / "elsewhere"
    elsewhere.mkdir()
    for place in (directory, elsewhere, directory / "sub"):
        for number in range(count):
            (place / f"rank-{number:05d}.pt").write_bytes(b"")
    (directory / "linked").symlink_to(elsewhere)
    link = tmp_path / "step-00000008-a1"
    link.symlink_to(elsewhere)
    manifest.discard(directory)
    manifest.remove(link)
    manifest.remove(tmp_path / "none")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", link.name]
    assert len(list(elsewhere.iterdir())) == count


def test_manifests_are_read_when_their_turn_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2, 3):
        _checkpoint(tmp_path, step)
    original, read = manifest.inspect, list[str]()

    def inspect(directory: Path) -> Manifest | Fault | None:
        read.append(directory.name)
        return original(directory)

    monkeypatch.setattr(manifest, "inspect", inspect)
    newest = next(manifest.scan(tmp_path))
    assert [newest[0].name] == read == ["step-00000003-a1"]
    known = [path for path, _ in manifest.scan(tmp_path)][1:]
    (known[0] / manifest.NAME).unlink()
    assert manifest.abandoned(tmp_path) == known[:1]
    assert manifest.abandoned(tmp_path, known=known) == []
