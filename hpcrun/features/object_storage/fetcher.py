"""Copies of checkpoints that the root of a run has lost, fetched before an attempt begins."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hpcrun import shared_look
from hpcrun.errors import HpcrunError
from hpcrun.features.object_storage.copier import Report, digest
from hpcrun.features.object_storage.copy_records import (
    FETCHED,
    PASSED_OVER,
    Record,
    copies,
    step_and_attempt,
)
from hpcrun.features.object_storage.store import Store, is_lasting, words
from hpcrun.run.checkpoint import checkpoint_files
from hpcrun.run.checkpoint.checkpoint_files import Checksum
from hpcrun.state import files, manifest
from hpcrun.state.manifest import Manifest
from hpcrun.text import size

# Seconds in which a store that is down is asked again, and between the questions.
PATIENCE, PAUSE = 120.0, 5.0


class _Unusable(Exception):
    """A copy cannot be used, now or later."""


def newest_whole(checkpoints: Path) -> tuple[int, int] | None:
    """Return step and attempt of the newest checkpoint whose files are all there; None without one.

    A site that removes old files may leave the manifest. A file that cannot be looked at counts as
    there: it is the ranks that judge it.
    """
    for path, entry in manifest.complete(checkpoints):
        if _is_whole(path, entry):
            return entry.step, entry.attempt
    return None


def newer_copies(checkpoints: Path, records: Sequence[Record]) -> list[Record]:
    """Return the copies that are newer than all that the root has, the newest first."""
    made = copies(records)
    newest = newest_whole(checkpoints) if made else None
    return [
        one
        for one in made
        if newest is None or (step_and_attempt(one["checkpoint"]) or ()) > newest
    ]


def fetch_newest(
    wanted: Sequence[Record],
    checkpoints: Path,
    store_at: Callable[[str], Store],
    report: Report,
    patience: float = PATIENCE,
) -> None:
    """Bring the first of these copies that is sound to the run's checkpoints.

    ``store_at`` opens a place. One that is damaged, gone, or not what the record says, is reported
    and passed over. Raises HpcrunError if the store cannot be read, or there is no room.
    """
    deadline = time.monotonic() + patience
    for record in wanted:
        name = record["checkpoint"]
        while True:
            try:
                began = time.monotonic()
                taken = _fetch(record, checkpoints, store_at(record["place"]))
                if taken is not None:
                    fields = {"place": record["place"], "step": taken.step}
                    spent = time.monotonic() - began
                    report(FETCHED, checkpoint=name, seconds=spent, bytes=record["bytes"], **fields)
                return
            except _Unusable as why:
                report(PASSED_OVER, checkpoint=name, place=record["place"], message=str(why))
                break
            except HpcrunError:
                raise
            except Exception as error:
                if is_lasting(error) or time.monotonic() > deadline:
                    raise HpcrunError(
                        f"the root has lost {name}, and its copy in {record['place']} cannot be "
                        f"read: {words(error)}",
                        hint="once the store answers, hpcrun requeue goes on from it",
                    ) from error
                time.sleep(PAUSE)


def _fetch(record: Record, checkpoints: Path, store: Store) -> Manifest | None:
    """Fetch one copy; None where the root turns out to have the checkpoint."""
    name = record["checkpoint"]
    data = store.manifest(name)
    if data is None:
        raise _Unusable(f"it is not in {record['place']} any more")
    if digest(data) != record["digest"]:
        raise _Unusable("its manifest is not the one that was copied")
    checkpoints.mkdir(parents=True, exist_ok=True)
    # What a kill leaves of it is removed as the rest of a removal is.
    aside = manifest.trashed(checkpoints / f"fetched-{name}")
    aside.mkdir(exist_ok=True)
    files.write_bytes(aside / manifest.NAME, data)
    try:
        found = manifest.inspect(aside)
        if not isinstance(found, Manifest) or (found.step, found.attempt) != step_and_attempt(name):
            raise _Unusable("its manifest is not that of such a checkpoint")
        _check_room(checkpoints, found, aside)
        for file in sorted(found.files):
            _fetch_file(store, name, file, found, aside)
        manifest.sync_tree(aside)
        return found if _put_in_place(aside, checkpoints / name) else None
    except (_Unusable, HpcrunError):
        shutil.rmtree(aside, ignore_errors=True)
        raise


def _fetch_file(store: Store, name: str, file: str, found: Manifest, aside: Path) -> None:
    """Fetch a file, unless it is there whole, of an earlier try; once more if it comes damaged."""
    target, expected = aside / file, found.files[file]
    try:
        Checksum(like=expected)
        is_checked = True
    except ImportError:
        is_checked = False  # the ranks check it, with the Python that made it

    def damage() -> str | None:
        if not is_checked:
            whole = _has_size(target, expected.bytes)
            return None if whole else f"{file} does not have the {expected.bytes} bytes of it"
        fault = checkpoint_files.damage(aside, file, expected)
        return None if fault is None else fault.message

    if damage() is None:
        return
    for is_last in (False, True):
        try:
            store.fetch(name, file, target)
        except FileNotFoundError:
            raise _Unusable(f"{file} is not there") from None
        if (wrong := damage()) is None:
            return
        if is_last:
            raise _Unusable(wrong)


def _put_in_place(aside: Path, target: Path) -> bool:
    """Rename a fetched checkpoint into its place; return False if the root has it after all."""
    entry = manifest.read(target)
    if entry is not None and _is_whole(target, entry):
        shutil.rmtree(aside, ignore_errors=True)
        return False
    if shared_look.is_there(target):
        rest = manifest.quarantine(target)
        shutil.rmtree(rest, ignore_errors=True)
        target.rename(rest)
    aside.rename(target)
    manifest.sync_directory(target.parent)
    return True


def _check_room(checkpoints: Path, found: Manifest, aside: Path) -> None:
    there = sum(path.stat().st_size for path in aside.rglob("*") if path.is_file())
    needed = sum(file.bytes for file in found.files.values()) - there
    room = os.statvfs(checkpoints)
    if room.f_bavail * room.f_frsize < needed:
        raise HpcrunError(
            f"the root has lost a checkpoint, and {checkpoints} has room for "
            f"{size(room.f_bavail * room.f_frsize)} of the {size(needed)} of its copy",
            hint="make room, then: hpcrun requeue",
        )


def _is_whole(path: Path, entry: Manifest) -> bool:
    return all(_has_size(path / name, file.bytes) for name, file in entry.files.items())


def _has_size(path: Path, expected: int) -> bool:
    try:
        with files.open_stream(path) as stream:
            return os.fstat(stream.fileno()).st_size == expected
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
