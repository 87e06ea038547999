"""The submit lock: one submit of an experiment at a time.

The lock is a directory with one file, whose name is its owner. It appears whole, by a rename, which
fails while the directory in its place holds a file. Whoever takes over a stale lock removes the
file of that very owner, so that two who do so at once cannot end the lock of a third.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
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
def held(
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
    owner = owner_lock.myself()
    missing = [path for path in experiment.directory.parents if not path.exists()]
    taken = False
    try:
        try:
            waiting = f"waiting for another submit of {experiment.name} to end"
            with permissions.owner_writes(), activity.doing(waiting):
                _take(lock, owner, experiment.name, say)
            taken = True
            permissions.check_mine(experiment, (), "change")
            if group is not None:
                permissions.give([*missing], group)
                permissions.adopt(experiment.directory, group)
        except OSError as error:
            raise unwritable(lock, error) from None
        yield lambda: _renew(lock / owner)
    finally:
        if taken:
            with contextlib.suppress(OSError):
                (lock / owner).unlink()
                lock.rmdir()
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


def _take(lock: Path, owner: str, name: str, say: Say) -> None:
    said, vanished, watch = False, 0, owner_lock.OwnerWatch(lock.parent, LONGEST)
    while True:
        other = next(iter(shared_look.names(lock)), None)
        if other is None:
            try:
                if _appears(lock, owner):
                    return
            except FileNotFoundError:
                # Another submit removed the experiment's directory, as it was empty.
                vanished += 1
                if vanished > 100:
                    raise
            else:
                # Its owner's name is not here yet, or it has just gone.
                time.sleep(_PAUSE)
            continue
        if _is_left(watch, lock, other, name, say):
            (lock / other).unlink(missing_ok=True)
            continue
        if not said:
            host, pid, _ = owner_lock.parts(other)
            say(f"another submit of {name} is under way (process {pid} on {host}); waiting for it")
            said = True
        time.sleep(_PAUSE)


def _appears(lock: Path, owner: str) -> bool:
    """Try to create the lock; return False if another submit was first."""
    # Hidden, as another submit that begins now takes other names for somebody's files.
    draft = lock.with_name(f".{lock.name}.{owner}.{threading.get_ident()}")
    try:
        draft.mkdir(parents=True)
        (draft / owner).touch()
        try:
            draft.rename(lock)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            return False
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return True


def _is_left(watch: owner_lock.OwnerWatch, lock: Path, owner: str, name: str, say: Say) -> bool:
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
