"""Frozen environments of a root that no submission refers to any more: found, and removed."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcrun import activity, shared_look
from hpcrun.control import removal
from hpcrun.control.cleanup import measure
from hpcrun.errors import BrokenFile
from hpcrun.state import files, layout, permissions
from hpcrun.state.environment import frozen_environment
from hpcrun.state.environment.frozen_environment import FrozenEnvironment
from hpcrun.state.layout import ExperimentPaths
from hpcrun.text import Say

# Seconds in which a submit that uses an environment has written that down, and far more.
LATELY = 600.0


@dataclass(frozen=True)
class UnusedEnvironment:
    """A frozen environment that may be removed."""

    path: Path
    source: str
    """The place that it was frozen from; empty for one that was left half way."""
    bytes: int

    @property
    def name(self) -> str:
        return self.path.name.lstrip(".")[:12]

    def to_data(self, removed: bool) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {**vars(self), "path": str(self.path), "removed": removed}


def referred(experiments: Collection[ExperimentPaths]) -> set[str]:
    """Return the digests of the environments that submissions of these experiments have.

    Raises
    ------
    BrokenFile
        The submissions of one of them cannot be listed.
    """
    found = (frozen_environment.recorded(one) for each in experiments for one in each.submissions())
    return {one.digest for one in found if one is not None}


def find(root: Path, say: Say, only: Collection[str] | None = None) -> list[UnusedEnvironment]:
    """Return this user's environments below a root that no submission has, and none used lately.

    Of the digests ``only``, where these are given; else what was left half way, too.
    """
    place = frozen_environment.shared_place(root)
    with activity.doing("looking which frozen environments no submission has"):
        there = [one for one in sorted(place.glob("*")) if permissions.owner(one) == os.geteuid()]
        if only is not None:
            there = [one for one in there if one.name in only]
        there += [] if only is not None else [*place.glob(".*.building"), *place.glob(".removed-*")]
        if not there:
            return []
        try:
            needed = referred(layout.experiments(root))
        except BrokenFile as error:
            say(f"which frozen environments are needed is not known: {error.message}")
            return []
        found = []
        for path in there:
            if path.name in needed or permissions.owner(path) != os.geteuid():
                continue
            with contextlib.suppress(OSError):
                if _is_used_lately(path):
                    name = path.name.lstrip(".")[:12]
                    say(
                        f"left alone: frozen environment {name}: made or used in the last ten "
                        "minutes; `hpcrun clean --environments` removes it later"
                    )
                    continue
                found.append(UnusedEnvironment(path, _source(path), measure(path)[0]))
        return found


def remove(found: Collection[UnusedEnvironment], root: Path, say: Say) -> list[UnusedEnvironment]:
    """Remove those that may still go, and return them.

    Raises
    ------
    HpcrunError
        Some could not be removed; all others were.
    """
    still = {one.path for one in find(root, lambda message: None)}
    removed, failed = [], []
    with activity.doing("removing frozen environments"):
        for one in found:
            if one.path not in still:
                say(f"left alone: frozen environment {one.name}: it is used again")
                continue
            try:
                removal.remove(one.path.parent.resolve(), one.path.parent.resolve() / one.path.name)
                removed.append(one)
            except FileNotFoundError:
                removed.append(one)
            except OSError as error:
                failed.append(f"{one.path}: {error.strerror or error}")
    removal.check_all_removed(failed)
    return removed


def _is_used_lately(path: Path) -> bool:
    """Check the times of an environment's record, or of one that is being made."""
    record = frozen_environment.record(path)
    parts = [path, record] if shared_look.is_there(record) else [path, *path.iterdir()]
    return time.time() - max(one.lstat().st_mtime for one in parts) < LATELY


def _source(path: Path) -> str:
    with contextlib.suppress(OSError, ValueError):
        found = FrozenEnvironment.of(files.read_json(frozen_environment.record(path)))
        return "" if found is None else found.source
    return ""
