"""What counts as a whole save, and what was cut off."""

from __future__ import annotations

import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest

from hpcrun.run.program.whole_saves import damage
from tests.support.saves import archive


def tensors(path: Path, cut: int = 0, header: int | None = None) -> Path:
    """A file of safetensors with two tensors, perhaps cut off."""
    found = {"__metadata__": {"format": "pt"}}
    places = {"b": {"data_offsets": [400, 1000]}, "a": {"data_offsets": [0, 400]}}
    head = json.dumps({**found, **places}).encode()
    length = len(head) if header is None else header
    whole = length.to_bytes(8, "little") + head + bytes(1000)
    path.write_bytes(whole[: len(whole) - cut])
    return path


def test_a_file_of_safetensors_is_whole(tmp_path: Path) -> None:
    name = tmp_path / "model.safetensors"
    why = "was cut off as it was written"
    assert damage(tensors(name)) is None
    assert [damage(tensors(name, cut)) for cut in (1, 999, 1005)] == [why] * 3
    assert damage(tensors(name, header=1 << 62)) == why
    tensors(name, cut=1)
    assert damage(tmp_path) == f"has model.safetensors, which {why}"


def test_an_archive_that_says_what_no_archive_can_ends_nothing(tmp_path: Path) -> None:
    """Python's zipfile raises for it; it was a launch error of every attempt."""
    locator = struct.pack("<4sLQL", b"PK\6\7", 7, 0, 9)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0, 0, 0, 0, 0)
    (tmp_path / "a.pt").write_bytes(b"PK\3\4" + bytes(100) + locator + end)
    with pytest.raises(zipfile.BadZipFile):
        zipfile.is_zipfile(tmp_path / "a.pt")
    assert damage(tmp_path / "a.pt") == "was cut off as it was written"


def _deepspeed(directory: Path, tag: str = "global_step4", cut: int = 0) -> Path:
    for rank in (0, 1):
        archive(directory / f"global_step4/zero_pp_rank_{rank}_optim_states.pt", cut=cut * rank)
    (directory / "latest").write_text(tag)
    return directory / "latest"


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda top: _deepspeed(top), None),
        (lambda top: _deepspeed(top, cut=40), "names global_step4, in which is zero_pp_rank_1_o"),
        (lambda top: _deepspeed(top, "global_step8"), "names 'global_step8', which is not there"),
        (lambda top: _deepspeed(top, ""), "names '', which is not there"),
        (lambda top: _deepspeed(top).parent, None),
        (lambda top: _deepspeed(top, cut=40).parent, "has zero_pp_rank_1_optim_states.pt, which"),
        (lambda top: top / "absent", "cannot be read: No such file"),
        (lambda top: top, "has nothing"),
    ],
)
def test_what_counts_as_a_whole_save(tmp_path: Path, make: Any, why: str | None) -> None:
    top = tmp_path / "saves"
    top.mkdir()
    found = damage(make(top))
    assert (found is None) if why is None else (found or "").startswith(why)


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"", "is empty"), (b'{"a": 1', "was cut off as it was written"), (b'{"a": 1}\n', None)],
)
def test_a_json_file_is_whole(tmp_path: Path, content: bytes, why: str | None) -> None:
    (tmp_path / "state.json").write_bytes(content)
    assert damage(tmp_path / "state.json") == why
