"""Files of a program, found within bounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcrun.run.program.file_search import DEEPEST, matcher, search, split


def test_no_link_is_followed_and_not_everything_is_looked_at(tmp_path: Path) -> None:
    root = tmp_path / "work"
    (root / "out").mkdir(parents=True)
    (root / "out" / "a").touch()
    (root / "tracking").mkdir()
    (root / "tracking" / "b").touch()
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "c").touch()
    (root / "linked").symlink_to(tmp_path / "code")
    (root / "loop").symlink_to(root)
    names = {one.path.name for one in search(root, frozenset({"tracking"}))}
    assert names == {"out", "a"}
    assert list(search(tmp_path / "absent")) == []
    deep = root
    for level in range(DEEPEST + 3):
        deep /= str(level)
    deep.mkdir(parents=True)
    (deep / "far").touch()
    assert "far" not in {one.path.name for one in search(root)}
    assert len(list(search(root, entries=3))) <= 3


@pytest.mark.parametrize(
    ("pattern", "base", "below", "matches", "others"),
    [
        ("out/checkpoint-*", "out", "checkpoint-*", ["checkpoint-5"], ["a/checkpoint-5"]),
        ("**/*.ckpt", "", "**/*.ckpt", ["a.ckpt", "x/y/a.ckpt"], ["a.ckpt.tmp", "a.ckpt/b"]),
        ("/abs/runs/[ab]/?.pt", "/abs/runs", "[ab]/?.pt", ["a/1.pt"], ["c/1.pt", "a/10.pt"]),
        ("ckpt.pt", "", "ckpt.pt", ["ckpt.pt"], ["ckptxpt"]),
    ],
)
def test_globs(pattern: str, base: str, below: str, matches: list[str], others: list[str]) -> None:
    directory = Path("/work")
    assert split(pattern, directory) == (directory / base, below)
    expression = matcher(below)
    assert all(expression.fullmatch(one) for one in matches)
    assert not any(expression.fullmatch(one) for one in others)
