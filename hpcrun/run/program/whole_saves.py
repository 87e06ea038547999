"""The check that a program's save is whole: files that were cut off are no saves."""

from __future__ import annotations

import itertools
import os
import re
import zipfile
from pathlib import Path
from typing import BinaryIO

from hpcrun import shared_look
from hpcrun.run.program.file_search import walk
from hpcrun.state import files, permissions

# The files of a checkpoint that are looked at.
_MOST_FILES = 2_000
# Where a tensor ends in a file of safetensors, by the file's header.
_TENSOR = re.compile(rb'"data_offsets"\s*:\s*\[\s*\d+\s*,\s*(\d{1,18})\s*\]')
_MOST_HEADER = 1 << 24


def damage(path: Path) -> str | None:
    """Return why a file or directory is no complete save of this user's; None if it is one."""
    try:
        if (owner := permissions.stranger(path)) is not None:
            return f"belongs to {owner}"
        if (whose := permissions.on_the_way(path.parent)) is not None:
            # Who may swap it between this look and the program's.
            return f"may be anybody's: {whose}"
        if path.is_dir():
            return _damage_inside(path, "has")
        if path.name == "latest":
            # DeepSpeed's: the name of the directory of the newest checkpoint.
            name = files.read_tail(path, 256).decode(errors="replace").strip()
            if not name or not shared_look.is_directory(path.parent / name):
                return f"names {name!r}, which is not there"
            return _damage_inside(path.parent / name, f"names {name}, in which is")
        return _damage_of_file(path)
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def _damage_inside(directory: Path, words: str) -> str | None:
    inside = (Path(place, name) for place, _, names in walk(directory) for name in names)
    number = 0
    for path in itertools.islice(inside, _MOST_FILES):
        number += 1
        # A file that is empty is usual in a directory.
        if path.is_file() and path.stat().st_size and (why := _damage_of_file(path)):
            return f"{words} {path.name}, which {why}"
    return None if number else f"{words} nothing"


def _damage_of_file(path: Path) -> str | None:
    if (owner := permissions.stranger(path)) is not None:
        # Programs execute what a pickle names.
        return f"belongs to {owner}"
    with files.open_stream(path) as stream:
        beginning = stream.read(4)
        if not beginning:
            return "is empty"
        # torch.save writes an archive, whose directory comes last.
        is_cut = beginning == b"PK\x03\x04" and not _is_archive(stream)
        if path.suffix == ".safetensors":
            is_cut = is_cut or _lacks_tensors(stream)
    if path.suffix == ".json":
        is_cut = is_cut or files.read_tail(path, 64).rstrip()[-1:] not in (b"}", b"]")
    return "was cut off as it was written" if is_cut else None


def _is_archive(stream: BinaryIO) -> bool:
    try:
        return zipfile.is_zipfile(stream)
    except zipfile.BadZipFile:
        return False


def _lacks_tensors(stream: BinaryIO) -> bool:
    """Check for a file of safetensors that ends before its last tensor does."""
    stream.seek(0)
    length = int.from_bytes(stream.read(8), "little")
    ends = map(int, _TENSOR.findall(stream.read(min(length, _MOST_HEADER))))
    return os.fstat(stream.fileno()).st_size < 8 + length + max(ends, default=0)
