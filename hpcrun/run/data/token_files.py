"""Token files of other programs, mapped into memory: read, never written.

Formats, each told by what a file begins with: Megatron-LM's ``.bin`` beside its ``.idx``
(megatron/core/datasets/indexed_dataset.py), llm.c's ``.bin`` (dev/data/data_common.py), ``.npy``,
and tokens alone, as nanoGPT writes them.
"""

from __future__ import annotations

import glob
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcrun.errors import UsageError
from hpcrun.host import expand_home

if TYPE_CHECKING:
    from numpy import int64
    from numpy.typing import NDArray

_MEGATRON, _NUMPY = b"MMIDIDX\x00\x00", b"\x93NUMPY"
# By the code in a Megatron index.
_MEGATRON_TYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}
_INDEX_HEADER = struct.Struct("<9sQBQQ")
# By the first number of llm.c's header of 256 of them: its version, and what a token is.
_LLMC = {20240520: (1, "uint16"), 20240801: (7, "uint32")}
_LLMC_HEADER = struct.Struct("<iii1012x")


class TokenFiles:
    """The documents of token files, laid one after the other: a map-style dataset of arrays.

    Of Megatron's files these are the documents of the index, and each other file is one. Nothing is
    read before it is asked for; give it to `hpcrun.PackedDocuments` for windows.

    Parameters
    ----------
    paths
        A path, a glob such as ``train_*.bin``, or several, which are taken in their order (those of
        a glob by name). Of Megatron's pairs either file, or what their names begin with.
    dtype
        What a token is in files that do not say it: ``uint16`` in nanoGPT's.

    Raises
    ------
    UsageError
        There is no such file, or it is none of these, cut off, or without a token.
    """

    lengths: NDArray[int64]
    """Tokens of each document: (documents,)."""

    def __init__(
        self, paths: str | os.PathLike[str] | Iterable[Any], *, dtype: str | None = None
    ) -> None:
        import numpy

        given = [paths] if isinstance(paths, (str, os.PathLike)) else paths
        found = _without_pairs(named_files("TokenFiles", map(_index_beside, given)))
        self._files = [_open(path, dtype) for path in found]
        counts = [len(file.ends) for file in self._files]
        self._first = numpy.cumsum([0, *counts])
        self.lengths = numpy.concatenate([numpy.diff(file.ends, prepend=0) for file in self._files])

    def __len__(self) -> int:
        """Return the number of documents."""
        return len(self.lengths)

    def __getitem__(self, index: int) -> Any:
        """Return the tokens of a document: an array of shape (tokens,) that is not to be written.

        Raises IndexError for one that is not there, and UsageError if its file has changed.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"document {index} of {len(self)}")
        number = int(self._first.searchsorted(index, "right")) - 1
        file, place = self._files[number], index - int(self._first[number])
        start = int(file.ends[place - 1]) if place else 0
        return file.tokens()[start : int(file.ends[place])]


class _File:
    """One file of tokens, and where its documents end."""

    def __init__(self, path: Path, dtype: str, start: int, ends: NDArray[int64]) -> None:
        import numpy

        self._path, self._dtype, self._start, self.ends = path, dtype, start, ends
        self._size = start + int(ends[-1]) * numpy.dtype(dtype).itemsize if len(ends) else 0
        self._mapped: Any = None
        if self._size == start:
            raise _error(path, "has no token")
        self._check_size("it is cut off, or its header or index is another file's")

    def tokens(self) -> Any:
        """Return all tokens, mapped once a process."""
        import numpy

        if self._mapped is None:
            self._check_size("it has changed since it was opened")
            self._mapped = numpy.memmap(self._path, self._dtype, "r", self._start)
        return self._mapped

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process needs; a map that is pickled would be all of its tokens."""
        return {**self.__dict__, "_mapped": None}

    def _check_size(self, reason: str) -> None:
        try:
            size = self._path.stat().st_size
        except OSError as error:
            raise _error(self._path, f"cannot be read: {error.strerror}") from error
        if size != self._size:
            tokens = f"{int(self.ends[-1]):,} tokens of {self._dtype}"
            raise _error(
                self._path, f"has {size:,} bytes, and {tokens} take {self._size:,}: {reason}"
            )


def named_files(whose: str, paths: str | os.PathLike[str] | Iterable[Any]) -> list[Path]:
    """Return the files of paths and globs, in order; raise UsageError for one that has none."""
    given = [paths] if isinstance(paths, (str, os.PathLike)) else [*paths]
    found: list[Path] = []
    for path in given:
        text = str(expand_home(os.fspath(path)))
        matches = [text] if Path(text).exists() else sorted(glob.glob(text))  # noqa: PTH207
        if not matches:
            raise UsageError(
                f"{whose}: there is no file {text}", hint="give files, or globs of them"
            )
        found += map(Path, matches)
    if not found:
        raise UsageError(f"{whose}: no file is named")
    return found


def _without_pairs(paths: Iterable[Path]) -> list[Path]:
    """Return paths with one file of each Megatron pair, whose names differ in the last part."""
    found = [*paths]
    return [one for one in found if one.suffix != ".idx" or one.with_suffix(".bin") not in found]


def _index_beside(path: Any) -> Any:
    """Return the index of the Megatron pair whose names begin so; else the path."""
    index = expand_home(f"{path}.idx")
    return index if index.is_file() else path


def _open(path: Path, dtype: str | None) -> _File:
    """Return a file of any of the formats."""
    import numpy

    index = path.with_suffix(".idx")
    try:
        if index.is_file():
            return _File(path.with_suffix(".bin"), *_read_index(index))
        with path.open("rb") as stream:
            head = stream.read(_LLMC_HEADER.size)
        size = path.stat().st_size
    except OSError as error:
        raise _error(path, f"cannot be read: {error.strerror}") from error
    if head.startswith(_NUMPY):
        try:
            saved = numpy.load(path, mmap_mode="r")
        except ValueError as error:
            raise _error(path, f"is cut off, or no array of NumPy ({error})") from error
        if saved.ndim != 1 or saved.dtype.kind not in "iu":
            raise _error(
                path, f"has numbers of {saved.dtype} in {saved.ndim} dimensions, no tokens"
            )
        return _File(path, saved.dtype.str, saved.offset, numpy.array([len(saved)]))
    if len(head) == _LLMC_HEADER.size:
        magic, version, count = _LLMC_HEADER.unpack(head)
        if (known := _LLMC.get(magic)) is not None:
            if version != known[0]:
                raise _error(path, f"has version {version} of llm.c's format, not {known[0]}")
            return _File(path, known[1], _LLMC_HEADER.size, numpy.array([count]))
    if dtype is None:
        raise _error(
            path,
            "does not say what a token is in it: it begins as no format that does",
            hint='pass dtype="uint16" for nanoGPT\'s files, or the type that wrote it',
        )
    wide = numpy.dtype(dtype)
    if wide.kind not in "iu":
        raise UsageError(f"TokenFiles(dtype={dtype!r}): tokens are whole numbers")
    if size % wide.itemsize:
        raise _error(path, f"has {size:,} bytes, which is no whole number of {dtype}")
    return _File(path, dtype, 0, numpy.array([size // wide.itemsize]))


def _read_index(path: Path) -> tuple[str, int, NDArray[int64]]:
    """Return what a token is in a Megatron pair, where tokens begin, and where documents end."""
    import numpy

    raw = path.read_bytes()
    if len(raw) < _INDEX_HEADER.size or not raw.startswith(_MEGATRON):
        raise _error(path, "is no index of Megatron")
    _, version, code, sequences, documents = _INDEX_HEADER.unpack_from(raw)
    if version != 1 or code not in _MEGATRON_TYPES:
        raise _error(path, f"has version {version} and type {code}, which are not known")
    expected = _INDEX_HEADER.size + 12 * sequences + 8 * documents
    if len(raw) != expected:
        raise _error(
            path,
            f"has {len(raw):,} bytes, and {sequences:,} sequences in {documents:,} documents take "
            f"{expected:,}: it is cut off, or of sequences with modes, which are not read",
        )
    at = _INDEX_HEADER.size
    sizes = numpy.frombuffer(raw, "<i4", sequences, at).astype(numpy.int64)
    pointers = numpy.frombuffer(raw, "<i8", sequences, at + 4 * sequences)
    begins = numpy.frombuffer(raw, "<i8", documents, at + 12 * sequences)
    dtype, ends = _MEGATRON_TYPES[code], numpy.cumsum(sizes)
    width = numpy.dtype(dtype).itemsize
    if (sizes < 0).any() or (pointers != (ends - sizes) * width).any():
        raise _error(path, "has sequences that do not follow each other in the file of tokens")
    if len(begins) and (begins.min() < 0 or begins.max() > sequences):
        raise _error(path, f"has documents of other sequences than its {sequences:,}")
    # A document is one sequence or several. Writers differ in whether the last one's end is there.
    last = numpy.unique(numpy.append(begins, sequences))
    return dtype, 0, ends[last[last > 0] - 1]


def _error(path: Path, problem: str, hint: str | None = None) -> UsageError:
    return UsageError(f"TokenFiles: {path} {problem}", hint=hint)
