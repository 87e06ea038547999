"""The sockets of a DataLoader's workers, for whose paths TMPDIR may be too long.

Workers that cannot bind them print a traceback, and the rank waits for them for ever.
"""

from __future__ import annotations

import os
import tempfile

# A socket's path has 107 bytes, and workers send tensors over one below TMPDIR:
# ``pymp-xxxxxxxx/listener-xxxxxxxx``.
LONGEST_TMPDIR = 75
HINT = "environment.variables: {TMPDIR: /tmp}"


def too_long() -> int | None:
    """Return the bytes of this process's temporary directory if they are too many."""
    length = len(os.fsencode(tempfile.gettempdir()))
    return length if length > LONGEST_TMPDIR else None


def warning() -> str | None:
    """Return what to tell at the start of a rank; None if there is nothing."""
    length = too_long()
    if length is None:
        return None
    return (
        f"TMPDIR is {length} bytes long: workers of a DataLoader (num_workers) cannot send "
        f"tensors, and a rank waits for them for ever; {LONGEST_TMPDIR} are accepted, set {HINT}"
    )
