"""hpcrun's own archive, which a process of a job reads once.

Python opens an archive anew for each module that it imports from there, in an agent 280 times. On
shared storage each time is a question to the server, and all processes of a job ask at once.
"""

from __future__ import annotations

import io
import sys
import zipimport
from types import ModuleType
from typing import Any, BinaryIO

# The module by which Python's importer of archives opens them.
_OPENER = "_io"


class _Opener:
    """Opens an archive whose ``content`` is known from memory, and all else as ``module`` does."""

    def __init__(self, module: ModuleType, archive: str, content: bytes) -> None:
        self._module, self._archive, self._content = module, archive, content

    def open_code(self, path: str) -> BinaryIO:
        if path == self._archive:
            return io.BytesIO(self._content)
        found: BinaryIO = self._module.open_code(path)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def read_once() -> None:
    """Read the archive into memory, from which this process imports hpcrun from now on.

    Nothing changes for what it starts, nor where hpcrun is not in an archive.
    """
    archive = getattr(sys.modules["hpcrun"].__loader__, "archive", None)
    module = getattr(zipimport, _OPENER, None)
    if archive is None or module is None or isinstance(module, _Opener):
        return
    try:
        with open(archive, "rb") as stream:
            content = stream.read()
    except OSError:
        # The next import finds the same, and says so.
        return
    setattr(zipimport, _OPENER, _Opener(module, archive, content))
