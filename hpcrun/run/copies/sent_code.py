"""The archive of frozen code that the supervisor had sent to a node, judged before it is used."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import zlib
from pathlib import Path

from hpcrun.run.protocol.output import say
from hpcrun.state import files

_PART = 1 << 20
# More than any archive of frozen code unpacks to.
_MOST = 1 << 29


def choose(sent: Path, archive: Path) -> Path:
    """Return ``archive``, on shared storage, or ``sent``, on this node, if that is the same code.

    What is not is removed.
    """
    if not os.path.lexists(sent):
        return archive
    try:
        problem = "" if _digest(sent) == archive.name.partition(".")[0] else "it is another one"
    except (OSError, EOFError, ValueError, zlib.error) as error:
        problem = str(error)
    if not problem:
        return sent
    say(f"the code is read from shared storage: what was sent failed: {problem}")
    with contextlib.suppress(OSError):
        sent.unlink()
    return archive


def _digest(path: Path) -> str:
    """Return the SHA-256 of the uncompressed archive, which is this user's."""
    found, left = hashlib.sha256(), _MOST
    with files.open_stream(path) as stream:
        if os.fstat(stream.fileno()).st_uid != os.geteuid():
            raise ValueError(f"{path} is another user's")
        with gzip.GzipFile(fileobj=stream) as unpacked:
            while part := unpacked.read(_PART):
                left -= len(part)
                if left < 0:
                    raise ValueError(f"{path} is too large")
                found.update(part)
    return found.hexdigest()
