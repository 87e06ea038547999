"""A node's look at shared storage, repeated otherwise and later before it counts.

What fails is done again after its directories were opened (`hpcrun.shared_look`), at last when no
client keeps anything of before.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from hpcrun import shared_look
from hpcrun.errors import HpcrunError
from hpcrun.run.protocol.output import say
from hpcrun.state import plan_file
from hpcrun.state.layout import SubmissionPaths
from hpcrun.state.plan import Plan

# What a failure may be about, in an agent's word for it.
STORAGE, BUILD = "storage", "build"
# The exit code of an agent that cannot see its submission (EX_IOERR).
EXIT_STORAGE = 74
# Seconds between looks: together `shared_look.SEEN_WITHIN` and more.
PAUSES = (0.1, 0.5, 2.0, 5.0, 10.0, 20.0, 38.0)
# What no cache explains.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
# What a stream that was opened on shared storage says without a name, and what is said with one.
_NAMELESS = frozenset({errno.EIO, errno.ESTALE, errno.EREMOTEIO})
_NAMED = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ETIMEDOUT})
_TURN = 0.2
_Result = TypeVar("_Result")


def is_shared(error: BaseException, root: Path) -> bool:
    """Check whether an error, or what it came of, is of storage that other nodes see too."""
    return any(_is_shared(one, root) for one in _origins(error))


def about(submission: SubmissionPaths, kind: str, error: BaseException) -> str:
    """Return what an error is about that failed a question of this ``kind``; mostly nothing."""
    if is_shared(error, submission.experiment.root):
        return STORAGE
    return BUILD if kind == "build" else ""


def patiently(
    look: Callable[[], _Result],
    at: Path,
    submission: SubmissionPaths,
    given_up: Callable[[], bool] = lambda: False,
) -> _Result:
    """Return the result of a look into ``at``, a directory of the root's.

    An error of shared storage is raised once it stayed; any other at once.
    """
    root = submission.experiment.root
    for pause in PAUSES:
        try:
            return look()
        except (HpcrunError, OSError) as error:
            origins = [*_origins(error)]
            if not is_shared(error, root) or any(one.errno in FULL for one in origins):
                raise
            message = error.message if isinstance(error, HpcrunError) else error
            say(f"shared storage: {message}; looked at again in {pause:g} s")
            named = [one.filename for one in origins if one.filename]
            places = [at, *(Path(os.fsdecode(one)).parent for one in named)]
        until = time.monotonic() + pause
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(_TURN, left))
            if given_up():
                break
        for directory in places:
            shared_look.refresh(directory)
    return look()


def read_plan(submission: SubmissionPaths, run: int) -> Plan:
    """Return the plan with this run; leave with `EXIT_STORAGE` where it cannot be seen."""
    plan = submission.plan
    try:
        return patiently(lambda: plan_file.read(plan, run), plan.parent, submission)
    except (HpcrunError, OSError) as error:
        if not is_shared(error, submission.experiment.root):
            raise
        say(f"shared storage: {error}")
        sys.exit(EXIT_STORAGE)


def _origins(error: BaseException) -> Iterator[OSError]:
    """Yield those errors of the system that an error is, or came of."""
    found: BaseException | None = error
    for _ in range(10):
        if found is None:
            return
        if isinstance(found, OSError):
            yield found
            # The files that could not be copied, of `shutil`.
            if found.args and isinstance(found.args[0], list):
                for source, *_ in found.args[0]:
                    yield OSError(errno.EIO, "", str(source))
        found = found.__cause__ or found.__context__


def _is_shared(error: OSError, root: Path) -> bool:
    names = [Path(os.fsdecode(one)) for one in (error.filename, error.filename2) if one]
    if not names:
        return error.errno in _NAMELESS
    shared = [one.is_relative_to(root) for one in names]
    # A copy names both; where room is lacking, it is what it was written to.
    if error.errno in FULL:
        return shared[-1]
    return any(shared) and error.errno in _NAMED | _NAMELESS
