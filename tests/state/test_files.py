"""Files on shared storage: whole lines, whole files, torn tails."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrun.state import files


def test_appended_lines_read_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    for number in range(3):
        files.append(path, {"number": number, "text": 'a "b"\nc', "path": Path("/x")})
    assert path.read_bytes().count(b"\n") == 3
    found = list(files.read_lines(path))
    assert [record["number"] for record in found] == [0, 1, 2]
    assert found[0] == {"number": 0, "text": 'a "b"\nc', "path": "/x"}


def test_a_file_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk was a launch error that said nothing of which."""

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*/launch.json'"):
        files.write_json(tmp_path / "launch.json", {})
    assert list(tmp_path.iterdir()) == []


def test_empty_files_are_removed_and_others_stay_whatever_is_known_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS may say for a minute that a file is empty, to whose node another has written."""
    for name, text in {"a.log": "", "b.log": "the only line\n", "empty": ""}.items():
        (tmp_path / name).write_text(text)
    before = (tmp_path / "empty").stat()
    monkeypatch.setattr(Path, "lstat", lambda _path: before)
    files.remove_if_empty(*(tmp_path / name for name in ("a.log", "b.log", "none")))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.log", "empty"]


def test_nothing_where_there_is_no_file(tmp_path: Path) -> None:
    assert list(files.read_lines(tmp_path / "none")) == []


@pytest.mark.parametrize("torn", [b'{"num', b"{", b'{"number":1', b'{"text":"\xc3'])
def test_a_torn_tail_costs_one_line_and_no_other(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "lines.jsonl"
    files.append(path, {"number": 0})
    with open(path, "ab") as stream:
        stream.write(torn)
    assert [record["number"] for record in files.read_lines(path)] == [0]
    files.append(path, {"number": 2})
    files.append(path, {"number": 3})
    assert [record["number"] for record in files.read_lines(path)] == [0, 2, 3]


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_whatever_a_file_holds_reading_yields_only_objects(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]
) -> None:
    path = tmp_path_factory.getbasetemp() / "anything.jsonl"
    path.write_bytes(b"\n".join([*pieces, b'{"kept":true}']))
    found = list(files.read_lines(path))
    assert all(isinstance(record, dict) for record in found)
    assert found[-1] == {"kept": True}


def test_lines_that_are_not_objects_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'1\n[2]\nnull\n\n"x"\n{"ok":1}\n')
    assert list(files.read_lines(path)) == [{"ok": 1}]


def _append_many(path: str, writer: int) -> None:
    for number in range(200):
        files.append(Path(path), {"writer": writer, "number": number, "fill": "x" * 300})


def test_lines_of_several_processes_never_interleave(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_append_many, args=(str(path), w)) for w in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    # A line that another process is just writing may look torn, which gives an empty line.
    lines = [line for line in path.read_bytes().split(b"\n") if line]
    assert len(lines) == 800
    found = [json.loads(line) for line in lines]
    for writer in range(4):
        own = [record["number"] for record in found if record["writer"] == writer]
        assert own == list(range(200))


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    files.write_json(path, {"b": 1, "a": [2]})
    files.write_json(path, {"b": 2, "a": []})
    assert path.read_text() == '{\n  "b": 2,\n  "a": []\n}\n'
    assert files.read_json(path) == {"b": 2, "a": []}
    assert [each.name for each in tmp_path.iterdir()] == ["value.json"]


def test_a_failed_replacement_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "value.json"
    files.write_json(path, {"old": True})

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output"):
        files.write_json(path, {"old": False})
    assert files.read_json(path) == {"old": True}
    assert [each.name for each in tmp_path.iterdir()] == ["value.json"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 256 KiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system takes root")
    directory = tmp_path / "disk"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(directory)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("this machine lets root mount nothing")
    yield directory
    subprocess.run(["umount", "--lazy", str(directory)], check=True)


def test_on_a_full_disk_the_old_file_stays(small_disk: Path) -> None:
    path = small_disk / "value.json"
    old = b"x" * 50_000
    files.write_bytes(path, old)
    with pytest.raises(OSError, match="No space left"):
        files.write_bytes(path, b"y" * 250_000)
    assert path.read_bytes() == old
    assert [each.name for each in small_disk.iterdir()] == ["value.json"]


def test_on_a_full_disk_an_append_fails_aloud_and_costs_no_other_line(small_disk: Path) -> None:
    path = small_disk / "lines.jsonl"
    files.append(path, {"number": 0})
    filler = small_disk / "filler"
    with open(filler, "wb", buffering=0) as stream, contextlib.suppress(OSError):
        while True:
            stream.write(b"z" * 4096)
    with pytest.raises(OSError, match=r"No space left|could be appended"):
        files.append(path, {"number": 1, "fill": "w" * 8192})
    filler.unlink()
    files.append(path, {"number": 2})
    assert [record["number"] for record in files.read_lines(path)] == [0, 2]


def test_reading_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.read_json(tmp_path / "none.json")
    (tmp_path / "torn.json").write_text('{"a":')
    with pytest.raises(ValueError, match="Expecting value"):
        files.read_json(tmp_path / "torn.json")


def test_lines_wait_while_a_disk_is_full(small_disk: Path) -> None:
    said: list[str] = []
    file = files.Appender(small_disk / "lines.jsonl", said.append)
    file.write({"number": 0})
    filler = small_disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as stream:
        while stream.write(bytes(4096)):
            pass
    long = "x" * 3000
    for number in (1, 2, 3):
        file.write({"number": number, "text": long})
    assert file.error is not None
    filler.unlink()
    file.write()
    assert file.error is None
    numbers = [record["number"] for record in files.read_lines(small_disk / "lines.jsonl")]
    assert numbers == [0, 1, 2, 3]
    assert len(said) == 2
    assert "No space left" in said[0] or "bytes could be appended" in said[0]
    assert "is written again" in said[1]


@pytest.mark.parametrize("torn", [b"", b'{"torn'])
def test_no_line_comes_twice_after_a_write_that_was_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torn: bytes
) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(torn)
    file = files.Appender(path, lambda said: None)
    write = os.write

    def cut(descriptor: int, data: bytes) -> int:
        monkeypatch.setattr(os, "write", write)
        return write(descriptor, data[:35])

    monkeypatch.setattr(os, "write", cut)
    file.write(*({"number": number} for number in range(4)))
    assert isinstance(file.error, files.ShortWrite)
    assert file.error.whole == 2
    file.write({"number": 4})
    assert [record["number"] for record in files.read_lines(path)] == [0, 1, 2, 3, 4]


def test_what_cannot_be_written_is_tried_again_and_told() -> None:
    said: list[str] = []
    left = [OSError("no space"), OSError("no space")]

    def write() -> None:
        if left:
            raise left.pop()

    assert not files.patiently(write, said.append, "the ledger")
    assert files.patiently(write, said.append, "the ledger", pauses=(0, 0))
    assert said == ["the ledger cannot be written: no space"] * 2


def test_a_byte_order_mark_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"step":1}\n{"step":2}\n')
    assert [record["step"] for record in files.read_lines(path)] == [1, 2]
    path.write_bytes(b'\xef\xbb\xbf{"step":1}')
    assert files.read_json(path) == {"step": 1}


def test_lines_across_blocks_are_whole_and_a_monstrous_one_costs_itself(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    long = "x" * (files.MOST_LINE - 100)
    with open(path, "wb") as stream:
        for number in range(3):
            stream.write(json.dumps({"number": number, "text": long}).encode() + b"\n")
        stream.write(b" " * 3 * files.MOST_LINE + b'{"number":3}\n{"number":4}')
    found = list(files.numbered_lines(path))
    assert [(line, isinstance(record, dict) and record["number"]) for line, record in found] == [
        *((1, 0), (2, 1), (3, 2), (4, False), (5, 4))
    ]


READERS = [
    files.read_bytes,
    files.read_json,
    *(lambda path: list(files.read_lines(path)), lambda path: files.read_on(path, 0)),
    *(lambda path: files.read_tail(path, 100), lambda path: files.open_stream(path).close()),
]


@pytest.mark.parametrize("read", READERS)
def test_what_is_no_regular_file_is_refused_in_words_at_once(
    tmp_path: Path, read: Callable[[Path], object]
) -> None:
    fifo, bound = tmp_path / "fifo", tmp_path / "socket"
    os.mkfifo(fifo)
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(bound))
        for path, kind in (
            *((fifo, "a FIFO"), (bound, "a socket"), (tmp_path, "a directory")),
            *((Path("/dev/zero"), "a device"), (tmp_path / "a\0b", "null byte")),
        ):
            with pytest.raises(files.Refused, match=kind) as refused:
                read(path)
            assert str(path) in str(refused.value)


@pytest.mark.parametrize("read", [*READERS[:2], lambda path: list(files.read_lines(path))])
def test_a_file_larger_than_such_files_are_is_not_read(
    tmp_path: Path, read: Callable[[Path], object]
) -> None:
    path = tmp_path / "sparse"
    with open(path, "wb") as stream:
        stream.truncate(30 << 30)
    with pytest.raises(files.Refused, match=r"32\.2 GB, and such a file has at most"):
        read(path)
    assert list(files.read_back(path)) == []


def test_a_file_that_cannot_be_written_is_named_and_not_its_temporary(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught, files.replacing(tmp_path / "gone" / "a.html"):
        pass
    assert caught.value.filename == str(tmp_path / "gone" / "a.html")
