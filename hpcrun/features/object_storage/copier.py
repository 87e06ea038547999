"""Finished checkpoints of a run, copied to its place in an object store."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcrun import shared_look
from hpcrun.features.object_storage.copy_records import COPIED, TROUBLE, step_and_attempt
from hpcrun.features.object_storage.store import Store
from hpcrun.run.checkpoint import checkpoint_files
from hpcrun.run.checkpoint.checkpoint_files import Checksum
from hpcrun.state import files, manifest
from hpcrun.state.manifest import File, Manifest

Report = Callable[..., None]


class _Vanished(Exception):
    """The checkpoint is not there any more: retention has removed it, which is no error."""


class Copier:
    """The copying of one run's checkpoints, as long as one process lives.

    ``keep`` is how many copies stay, None for all; ``refused`` are the names of copies that were of
    no use, and are made again where the root still has the checkpoint. ``report(what, **fields)``
    gets the fields of the ledger's record. ``may_remove()`` tells whether this is still the run's
    own job.
    """

    def __init__(
        self,
        store: Store,
        checkpoints: Path,
        report: Report,
        *,
        keep: int | None = None,
        refused: set[str] | None = None,
        may_remove: Callable[[], bool] = lambda: True,
    ) -> None:
        self._store, self._checkpoints, self._report = store, checkpoints, report
        self._keep, self._refused, self._may_remove = keep, refused or set(), may_remove
        self._copied: set[str] = set()
        self._damaged: set[str] = set()
        # Of a copy that an error cut short: what is there already, put by this very process.
        self._put: dict[str, set[str]] = {}
        self._unchecked = False

    def copy_missing(self) -> None:
        """Copy what has no copy yet, the newest first; remove copies beyond ``keep``.

        Raises what the store raises; called again, it goes on where it was.
        """
        while (missing := self.missing()) is not None:
            path, found = missing
            try:
                self._copy(path, found)
            except _Vanished:
                self._drop(path.name)

    def missing(self) -> tuple[Path, Manifest] | None:
        """Return the newest complete checkpoint without a copy, of those that would be kept."""
        here = {name for name in shared_look.names(self._checkpoints) if step_and_attempt(name)}
        kept = 0
        for name in sorted((here | self._copied) - self._damaged, key=_key, reverse=True):
            if kept == self._keep:
                return None
            if name not in self._copied:
                entry = manifest.read(self._checkpoints / name)
                if entry is None or (entry.step, entry.attempt) != step_and_attempt(name):
                    continue
                return self._checkpoints / name, entry
            kept += 1
        return None

    def _copy(self, path: Path, found: Manifest) -> None:
        name, began = path.name, time.monotonic()
        data = self._manifest(path)
        if name in self._refused or self._store.manifest(name) != data:
            put = self._put.setdefault(name, set())
            for file, expected in sorted(found.files.items()):
                if file in put:
                    continue
                if (damage := self._damage(path, file, expected)) is not None:
                    self._damaged.add(name)
                    self._report(TROUBLE, message=f"{name} is damaged in the root: {damage}")
                    return
                self._send(path, file)
                put.add(file)
            self._compare(name, found)
            if self._manifest(path) != data:
                raise _Vanished
            self._store.finish(name, data)
        self._put.pop(name, None)
        self._refused.discard(name)
        self._copied.add(name)
        self._report(
            COPIED,
            checkpoint=name,
            step=found.step,
            place=self._store.place,
            digest=digest(data),
            bytes=sum(file.bytes for file in found.files.values()),
            seconds=time.monotonic() - began,
        )
        self._remove_old()

    def _send(self, path: Path, file: str) -> None:
        try:
            self._store.put(path.name, file, path / file)
        except FileNotFoundError:
            # Of this host's file, or of the bucket.
            if shared_look.is_there(path / file):
                raise
            raise _Vanished from None

    def _manifest(self, path: Path) -> bytes:
        try:
            return files.read_bytes(path / manifest.NAME)
        except (FileNotFoundError, NotADirectoryError):
            raise _Vanished from None

    def _damage(self, path: Path, file: str, expected: File) -> str | None:
        """Return what is wrong with a file in the root; what is damaged is not copied."""
        try:
            Checksum(like=expected)
        except ImportError:
            if not self._unchecked:
                self._unchecked = True
                self._report(None, message="without the package xxhash, files go unchecked")
            return None
        fault = checkpoint_files.damage(path, file, expected)
        if fault is None:
            return None
        self._manifest(path)
        if not fault.lasting:
            raise OSError(fault.message)
        return fault.message

    def _compare(self, name: str, found: Manifest) -> None:
        """Compare the sizes there with the manifest; raise OSError where one differs."""
        sizes = self._store.sizes(name)
        for file, expected in found.files.items():
            if sizes.get(file) != expected.bytes:
                self._put.pop(name, None)
                there = sizes.get(file, "no")
                raise OSError(f"{file} of {name} has {there} bytes there, not {expected.bytes}")

    def _drop(self, name: str) -> None:
        """Remove what this process has put there of a checkpoint that is gone meanwhile."""
        if self._put.pop(name, None) and self._may_remove():
            self._store.remove(name)

    def _remove_old(self) -> None:
        """Remove complete copies of this run beyond those that are kept."""
        if self._keep is None or not self._may_remove():
            return
        names = [name for name in self._store.names() if step_and_attempt(name) is not None]
        is_complete: dict[str, bool] = dict.fromkeys(self._copied, True)
        kept = 0
        for name in sorted(names, key=_key, reverse=True):
            if name not in is_complete:
                is_complete[name] = self._store.manifest(name) is not None
            kept += is_complete[name]
            if is_complete[name] and kept > self._keep:
                self._store.remove(name)
                # It is not copied again: `missing` takes the newest alone.
                self._copied.discard(name)


def digest(data: bytes) -> str:
    """Return the SHA-256 of a manifest's bytes, by which its copy is known."""
    import hashlib

    return hashlib.sha256(data).hexdigest()


def _key(name: str) -> Any:
    return step_and_attempt(name) or ()
