"""The archive of code that was sent to a node is used if it is the one that was frozen."""

from __future__ import annotations

import gzip
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcrun.run.copies import sent_code
from tests.support.users import STRANGER, needs_root

CONTENT = os.urandom(50_000)
SHARED = Path("/shared") / f"{hashlib.sha256(CONTENT).hexdigest()}.tar.gz"
WHOLE = gzip.compress(CONTENT)


def _link(sent: Path) -> None:
    sent.with_name("x").write_bytes(WHOLE[:-1])
    sent.symlink_to("x")


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda sent: None, ""),
        (lambda sent: sent.write_bytes(WHOLE[:-1]), "Compressed file ended"),
        (lambda sent: sent.write_bytes(WHOLE[:20_000]), "Compressed file ended"),
        (lambda sent: sent.write_bytes(b""), "it is another one"),
        (lambda sent: sent.write_bytes(gzip.compress(CONTENT[1:])), "it is another one"),
        (lambda sent: sent.write_bytes(CONTENT), "Not a gzipped file"),
        (lambda sent: os.mkfifo(sent), "not a regular file"),
        (_link, "Compressed file ended"),
    ],
    ids=["none", "torn", "half", "empty", "other", "no gzip", "pipe", "link"],
)
def test_what_is_not_used(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    make: Callable[[Path], object],
    told: str,
) -> None:
    make(tmp_path / "code.tar.gz")
    assert sent_code.choose(tmp_path / "code.tar.gz", SHARED) == SHARED
    assert not os.path.lexists(tmp_path / "code.tar.gz")
    said = capfd.readouterr().out
    assert told in said
    assert ("the code is read from shared storage" in said) == bool(told)


def test_what_is_used(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "code.tar.gz").write_bytes(WHOLE)
    assert sent_code.choose(tmp_path / "code.tar.gz", SHARED) == tmp_path / "code.tar.gz"
    assert capfd.readouterr().out == ""


@needs_root
def test_another_users(tmp_path: Path) -> None:
    sent = tmp_path / "code.tar.gz"
    sent.write_bytes(WHOLE)
    os.chown(sent, STRANGER.uid, STRANGER.gid)
    assert sent_code.choose(sent, SHARED) == SHARED


def test_what_unpacks_to_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "code.tar.gz").write_bytes(WHOLE)
    monkeypatch.setattr(sent_code, "_MOST", 49_999)
    assert sent_code.choose(tmp_path / "code.tar.gz", SHARED) == SHARED
