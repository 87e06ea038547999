"""Transfer of checkpoint files between two ranks, block by block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from hpcrun.run.rank import peer_messages
from hpcrun.state.manifest import File

Files: TypeAlias = tuple[Mapping[str, File], int]

_BLOCK = 1 << 24


def exchange(group: Any, directory: Path, out: Files | None, into: Files | None) -> str | None:
    """Send files of a directory to one rank, while receiving others from a second one.

    ``group`` is a gloo process group; ``out`` and ``into`` have the rank that the files go to or
    come from. Both ends know how many bytes will come, so that a read or write error stops nothing;
    the first is returned.
    """
    error: str | None = None
    for outgoing, incoming in zip_longest(_blocks(out), _blocks(into)):
        sent = []
        if outgoing is not None:
            data, wrong = _read(directory, outgoing)
            error = error or wrong
            sent.append(peer_messages.give(group, data, outgoing.peer))
        if incoming is not None:
            data = peer_messages.take(group, incoming.size, incoming.peer)
            error = error or _write(directory, incoming, data)
        peer_messages.wait(sent)
    return error


class _Block(NamedTuple):
    """A part of a file that is sent at once."""

    name: str
    offset: int
    size: int
    peer: int


def _blocks(files: Files | None) -> Iterator[_Block]:
    named, peer = files or ({}, 0)
    for name, file in sorted(named.items()):
        for offset in range(0, file.bytes, _BLOCK):
            yield _Block(name, offset, min(_BLOCK, file.bytes - offset), peer)


def _read(directory: Path, block: _Block) -> tuple[bytes, str | None]:
    """Return the bytes and an error, if any; on error they are zeros."""
    try:
        with open(directory / block.name, "rb") as stream:
            stream.seek(block.offset)
            return stream.read(block.size).ljust(block.size, b"\0"), None
    except OSError as error:
        return bytes(block.size), str(error)


def _write(directory: Path, block: _Block, data: Any) -> str | None:
    try:
        with open(directory / block.name, "r+b" if block.offset else "wb") as stream:
            stream.seek(block.offset)
            stream.write(data)
    except OSError as error:
        return str(error)
    return None
