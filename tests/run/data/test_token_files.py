"""Token files of other programs: each format by what its own writer makes, and what is cut off."""

from __future__ import annotations

import pickle
import struct
from pathlib import Path
from typing import Any

import pytest

from hpcrun.errors import UsageError
from hpcrun.run.data.packed_documents import PackedDocuments
from hpcrun.run.data.token_files import TokenFiles

numpy = pytest.importorskip("numpy")
DOCUMENTS = [[5, 3, 8], [2], [1, 1, 4, 9, 50_000]]


def _megatron(
    path: Path, documents: list[list[int]], code: int = 8, begins: list[int] | None = None
) -> Path:
    """Write a pair as Megatron-LM's IndexedDatasetBuilder does."""
    dtype = {8: "<u2", 4: "<i4"}[code]
    flat = numpy.array([token for one in documents for token in one], dtype)
    path.with_suffix(".bin").write_bytes(flat.tobytes())
    sizes = numpy.array([*map(len, documents)], "<i4")
    pointers = (numpy.cumsum(sizes) - sizes).astype("<i8") * flat.itemsize
    first = numpy.array(range(len(sizes) + 1) if begins is None else begins, "<i8")
    head = struct.pack("<9sQBQQ", b"MMIDIDX\x00\x00", 1, code, len(sizes), len(first))
    parts = (head, sizes.tobytes(), pointers.tobytes(), first.tobytes())
    path.with_suffix(".idx").write_bytes(b"".join(parts))
    return path


def _llmc(path: Path, tokens: list[int], magic: int = 20240520, version: int = 1) -> Path:
    dtype = "<u2" if magic == 20240520 else "<u4"
    header = numpy.zeros(256, "<i4")
    header[:3] = magic, version, len(tokens)
    path.write_bytes(header.tobytes() + numpy.array(tokens, dtype).tobytes())
    return path


def _lists(files: TokenFiles) -> list[list[int]]:
    return [files[index].tolist() for index in range(len(files))]


@pytest.mark.parametrize("code", [8, 4])
@pytest.mark.parametrize("name", ["text", "text.bin", "text.idx", "text.*", "te*"])
def test_megatron(tmp_path: Path, code: int, name: str) -> None:
    _megatron(tmp_path / "text", DOCUMENTS, code)
    files = TokenFiles(tmp_path / name)
    assert _lists(files) == DOCUMENTS
    assert files.lengths.tolist() == [3, 1, 5]


@pytest.mark.parametrize(
    ("begins", "expected"),
    [
        # Sentences, of which the first two are a document.
        ([0, 2, 3], [[5, 3, 8, 2], DOCUMENTS[2]]),
        # Writers of one document, and those that leave the last end out.
        ([0], [[5, 3, 8, 2, *DOCUMENTS[2]]]),
        ([0, 1, 2], DOCUMENTS),
    ],
)
def test_documents_of_several_sequences(tmp_path: Path, begins: Any, expected: Any) -> None:
    files = TokenFiles(_megatron(tmp_path / "text", DOCUMENTS, begins=begins))
    assert _lists(files) == expected


def test_files_without_an_index(tmp_path: Path) -> None:
    _llmc(tmp_path / "a_000001.bin", [1, 2, 3])
    _llmc(tmp_path / "a_000002.bin", [4, 5])
    assert _lists(TokenFiles(str(tmp_path / "a_*.bin"))) == [[1, 2, 3], [4, 5]]
    llama = _llmc(tmp_path / "llama.bin", [128_000, 7], 20240801, 7)
    assert _lists(TokenFiles(llama)) == [[128_000, 7]]
    numpy.save(tmp_path / "b.npy", numpy.array([9, 8], "uint16"))
    numpy.array([65_535, 1], "uint16").tofile(tmp_path / "train.bin")
    both = TokenFiles([tmp_path / "b.npy", tmp_path / "train.bin"], dtype="uint16")
    assert _lists(both) == [[9, 8], [65_535, 1]]


def _cut(path: Path, size: int) -> Path:
    path.write_bytes(path.read_bytes()[:size])
    return path


def _bad(tmp_path: Path) -> dict[str, tuple[Any, str]]:
    def pair(name: str, **given: Any) -> Path:
        return _megatron(tmp_path / name, DOCUMENTS, **given)

    numpy.save(tmp_path / "square.npy", numpy.zeros((2, 2), "uint16"))
    numpy.save(tmp_path / "cut.npy", numpy.zeros(9, "uint16"))
    raw = tmp_path / "raw.bin"
    raw.write_bytes(b"abc")
    empty = tmp_path / "empty.bin"
    empty.touch()
    _cut(pair("tokens").with_suffix(".bin"), 16)
    _cut(pair("index").with_suffix(".idx"), 60)
    _cut(pair("head").with_suffix(".idx"), 20)
    pair("alone").with_suffix(".bin").unlink()
    return {
        "nothing": ([], "no file is named"),
        "absent": (tmp_path / "no.bin", "there is no file .*no.bin"),
        "a home of nobody": ("~no-such-user/a.bin", "there is no file ~no-such-user"),
        "a glob of nothing": (tmp_path / "no*.bin", "there is no file"),
        "a directory": (tmp_path, "cannot be read: Is a directory"),
        "no type": (raw, "does not say what a token is"),
        "an odd size": ((raw, "uint16"), "3 bytes, which is no whole number of uint16"),
        "a fraction": ((raw, "float32"), "tokens are whole numbers"),
        "empty": ((empty, "uint16"), "has no token"),
        "tokens cut": (tmp_path / "tokens", "16 bytes, and 9 tokens of uint16 take 18: it is cut"),
        "index cut": (tmp_path / "index.idx", "60 bytes, and 3 sequences .* take 102: it is cut"),
        "head cut": (tmp_path / "head.bin", "is no index of Megatron"),
        "an index alone": (tmp_path / "alone.idx", "alone.bin cannot be read: No such file"),
        "documents of others": (pair("more", begins=[0, 7]), "documents of other sequences"),
        "llm.c cut": (_cut(_llmc(tmp_path / "c.bin", [1, 2]), 1026), "1,026 bytes, and 2 tokens"),
        "llm.c's version": (_llmc(tmp_path / "v.bin", [1], version=3), "version 3 of llm.c"),
        "two dimensions": (tmp_path / "square.npy", "in 2 dimensions"),
        "NumPy cut": (_cut(tmp_path / "cut.npy", 140), "is cut off"),
    }


def test_what_cannot_be_read_says_why(tmp_path: Path) -> None:
    for case, (given, problem) in _bad(tmp_path).items():
        paths, dtype = given if isinstance(given, tuple) else (given, None)
        with pytest.raises(UsageError, match=problem):
            pytest.fail(f"{case}: {_lists(TokenFiles(paths, dtype=dtype))}")


def test_a_file_that_changes_is_told_and_a_process_gets_no_copy(tmp_path: Path) -> None:
    path = _llmc(tmp_path / "long.bin", [*range(20_000)])
    files = TokenFiles(path)
    assert files[0][7] == 7
    sent = pickle.dumps(files)
    assert len(sent) < 2_000
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(UsageError, match="it has changed since"):
        pickle.loads(sent)[0]  # noqa: S301


def test_windows_over_files(tmp_path: Path) -> None:
    files = TokenFiles(_megatron(tmp_path / "text", DOCUMENTS))
    packed = PackedDocuments(files, 4, overlap=1, vocabulary=50_001)
    windows = [packed[index].tolist() for index in range(len(packed))]
    assert windows == [[5, 3, 8, 2], [2, 1, 1, 4], [4, 9, 50_000, 0]]
    narrow = PackedDocuments(files, 4, vocabulary=50_000)
    with pytest.raises(UsageError, match=r"document 2 has token 50,000 in window 2"):
        narrow[2]
