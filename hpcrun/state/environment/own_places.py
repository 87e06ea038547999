"""Which of several directories holds something of this user's that others share by its name.

The root's comes first, and may be another user's, whose files would be executed as this one: those
are passed over, and the experiment has a directory of its own.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hpcrun import shared_look
from hpcrun.state import permissions


def usable(places: Sequence[Path], name: str) -> Path:
    """Return the directory that holds ``name``, or else where it may be made.

    What another user made, or could change, is neither; the last of ``places`` is always usable.
    """
    for place in places:
        if is_own(place / name):
            return place
    for place in places[:-1]:
        with suppress(OSError):
            place.mkdir(parents=True, exist_ok=True)
            taken = os.path.lexists(place / name)
            if not taken and is_own(place.parent) and is_own(place) and os.access(place, os.W_OK):
                return place
    return places[-1]


def is_own(directory: Path) -> bool:
    """Check whether a directory is there, and is no stranger's to make or to change."""
    shared_look.refresh(directory)
    with suppress(OSError):
        everybody = directory.stat().st_mode & stat.S_IWOTH
        return not everybody and permissions.stranger(directory) is None
    return False
