"""hpcrun's own archive, which a process of a job reads once.

Python opens an archive anew for each module that it imports from there, in an agent 280 times. On
shared storage each time is a question to the server, and all processes of a job ask at once.
"""

from __future__ import annotations

import io
import sys
import zipimport
from types import ModuleType, SimpleNamespace
from typing import BinaryIO

# The module by which Python's importer of archives opens them.
_OPENER = "_io"


def read_once() -> None:
    """Read the archive into memory, from which this process imports hpcrun from now on.

    Nothing changes for what it starts, nor where hpcrun is not in an archive.
    """
    archive = getattr(sys.modules["hpcrun"].__loader__, "archive", None)
    module = getattr(zipimport, _OPENER, None)
    if archive is None or not isinstance(module, ModuleType):
        return
    try:
        with open(archive, "rb") as stream:
            content = stream.read()
    except OSError:
        # The next import finds the same, and says so.
        return

    def open_code(path: str) -> BinaryIO:
        return io.BytesIO(content) if path == archive else module.open_code(path)

    setattr(zipimport, _OPENER, SimpleNamespace(**{**vars(module), "open_code": open_code}))
