"""The submit lock: one submit of an experiment at a time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from hpcrun import activity, owner_lock, shared_look
from hpcrun.state import permissions
from hpcrun.state.layout import ExperimentPaths
from hpcrun.submission.submission_dir import unwritable
from hpcrun.text import Say

# Seconds after which the lock of an owner on another host, whose process is not visible, is stale.
LONGEST = 600.0
_PAUSE = 0.2


@contextlib.contextmanager
def hold(
    experiment: ExperimentPaths, say: Say, group: int | None = None
) -> Iterator[Callable[[], bool]]:
    """Hold the lock, after waiting while another submit holds it.

    Yields a function that renews the lock, which is due well within `LONGEST` seconds, and returns
    False if the lock was lost. Directories that are made for the lock and stay empty are removed
    with it; others are given to the group with the id ``group``. Raises UsageError if the
    experiment's directory cannot be written to, or is not this user's: then before any waiting, as
    the lock may be somebody else's too, and again once it is held. Says who could replace it.
    """
    permissions.check_mine(experiment, (), "change")
    if problem := permissions.exposed(experiment.root):
        say(problem)
    lock = experiment.submit_lock
    missing = [path for path in experiment.directory.parents if not path.exists()]
    mine: Path | None = None
    try:
        try:
            waiting = f"waiting for another submit of {experiment.name} to end"
            with permissions.owner_writes(), activity.doing(waiting):
                mine = _take(lock, experiment.name, say)
            permissions.check_mine(experiment, (), "change")
            if group is not None:
                permissions.give([*missing], group)
                permissions.adopt(experiment.directory, group)
        except OSError as error:
            raise unwritable(lock, error) from None
        yield partial(_renew, mine)
    finally:
        if mine is not None:
            owner_lock.leave(mine)
        for path in (experiment.directory, *missing):
            with contextlib.suppress(OSError):
                path.rmdir()


def _renew(owner: Path) -> bool:
    try:
        os.utime(owner)
    except OSError as error:
        # A file system may fail for a moment.
        return not shared_look.is_absence(error)
    return True


def _take(lock: Path, name: str, say: Say) -> Path:
    said: list[str] = []
    watch, vanished = owner_lock.OwnerWatch(lock.parent, LONGEST), 0
    is_left = partial(_is_left, watch, lock, name=name, say=say)

    def waits(other: str) -> None:
        if not said:
            host, pid, _ = owner_lock.parts(other)
            said.append(f"another submit of {name} is under way (process {pid} on {host})")
            say(f"{said[0]}; waiting for it")

    while True:
        lock.parent.mkdir(parents=True, exist_ok=True)
        try:
            return owner_lock.take(lock, is_left, waits, pause=_PAUSE)
        except FileNotFoundError:
            # Another submit removed the experiment's directory, as it was empty.
            vanished += 1
            if vanished > 100:
                raise


def _is_left(watch: owner_lock.OwnerWatch, lock: Path, owner: str, *, name: str, say: Say) -> bool:
    try:
        is_left = watch.is_left(owner, lock / owner)
        if is_left and (host := owner_lock.parts(owner)[0]) != os.uname().nodename:
            age, pid = watch.silence(lock / owner), owner_lock.parts(owner)[1]
            say(
                f"a submit of {name} on {host} (process {pid}) began {age / 60:.0f} minutes ago "
                "and was not seen to end; going on without it"
            )
    except OSError as error:
        if not shared_look.is_absence(error):
            raise
        return False
    return is_left
