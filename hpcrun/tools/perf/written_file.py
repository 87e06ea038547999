"""The files that these commands write for the user: what somebody else wrote is kept."""

from __future__ import annotations

from pathlib import Path

from hpcrun.errors import UsageError
from hpcrun.state import files


def check(path: Path, mark: str, command: str) -> None:
    """Raise UsageError if a file is there that does not begin with our mark, or no directory is."""
    if not path.parent.is_dir():
        raise UsageError(f"{path}: there is no directory {path.parent}", hint="-o another/FILE")
    if path.exists() and not _begins(path, mark):
        raise UsageError(
            f"{path}: a file of this name is there, which `hpcrun {command}` did not write",
            hint="choose another: -o FILE",
        )


def write(path: Path, text: str) -> None:
    """Replace the file; raise UsageError if that cannot be."""
    try:
        files.write_bytes(path, text.encode())
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be written: {error.strerror or error}", hint="choose another: -o FILE"
        ) from None


def _begins(path: Path, mark: str) -> bool:
    try:
        return files.read_bytes(path).startswith(mark.encode())
    except OSError:
        return False
