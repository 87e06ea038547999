"""Caches what was made of a root's experiments, for this user on this host.

An entry is used again as long as its marks, which its server has just told, are the same. What
changed a moment ago is not kept, as a second change may leave the same time. A file that is torn,
of another hpcrun or of another root holds nothing; of two commands that write it, the last wins.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Generic, TypeVar

import hpcrun
from hpcrun import bounded_json, shared_look
from hpcrun.host import user_cache
from hpcrun.state import files

Entry = TypeVar("Entry")


class RootCache(Generic[Entry]):
    """The entries of one kind, by the experiment's name; ``entry`` is a dataclass of plain data.

    What an entry holds and by which rules has the number ``form``: another forgets all.
    """

    def __init__(self, root: Path, kind: str, entry: type[Entry], form: int) -> None:
        self.root, self._kind = root, kind
        self._identity = [form, hpcrun.__version__, os.path.realpath(root)]
        self._kept: dict[str, Entry] = {}
        self._used: dict[str, Entry] = {}
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
            head, _, body = files.read_bytes(self.path).partition(b"\n")
            if head == digest(body):
                found = bounded_json.parse(body)
                if found["of"] == self._identity:
                    self._kept = {name: entry(*one) for name, one in found["entries"].items()}

    @cached_property
    def path(self) -> Path:
        """The file, which the root need not let this user write."""
        name = hashlib.sha256(os.fsencode(os.path.realpath(self.root))).hexdigest()[:12]
        return user_cache() / f"{self._kind}-{name}.json"

    def write(self) -> None:
        """Write the entries that were used or made; ignore errors, since they are optional."""
        if self._used == self._kept:
            return
        entries = {name: list(vars(one).values()) for name, one in self._used.items()}
        data = {"of": self._identity, "entries": entries}
        body = json.dumps(data, separators=(",", ":")).encode()
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            files.write_bytes(self.path, digest(body) + b"\n" + body)


def are_old(marks: Iterable[list[int] | None], since: float) -> bool:
    """Check whether nothing has changed within the last moment before ``since``.

    Marks are those of `hpcrun.shared_look`, ``since`` is in seconds since the epoch.
    """
    limit = (since - shared_look.SEEN_WITHIN) * 1e9
    return all(mark is None or mark[2] < limit for mark in marks)


def digest(body: bytes) -> bytes:
    """Return the digest of a body, with which its file begins."""
    return hashlib.sha256(body).hexdigest().encode()
