"""The difference between two versions of the code."""

from __future__ import annotations

import difflib
import random

import pytest

from hpcrun.submission.code.code_diff import ADDED, CHANGED, REMOVED, CodeDiff


def test_names() -> None:
    diff = CodeDiff({"a": b"1", "b": b"2", "z": b""}, {"b": b"3", "c": b"", "z": b""})
    assert diff.files == {"a": REMOVED, "b": CHANGED, "c": ADDED}
    assert list(diff.files) == ["a", "b", "c"]
    assert diff.names(CHANGED) == ["b"]
    assert not CodeDiff({"a": b"1"}, {"a": b"1"}).files


def test_patch() -> None:
    before = {"a": b"one\ntwo\n", "gone": b"x"}
    patch = CodeDiff(before, {"a": b"one\n2\n", "new": b"y\n"}).patch()
    assert patch == (
        "--- a/a\n+++ b/a\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n"
        "--- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
        "--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+y\n"
    )


@pytest.mark.parametrize("content", [b"a\0b", b"x" * (1 << 20) + b"x"])
def test_what_is_not_compared_by_lines(content: bytes) -> None:
    assert CodeDiff({"f": content}, {"f": b"text\n"}).patch() == "f: binary or large files differ\n"


def test_patches_are_those_of_difflib() -> None:
    draw = random.Random(17)
    for _ in range(50):
        before = [draw.choice("abcdefgh") + "\n" for _ in range(draw.randrange(1, 40))]
        after = [line for line in before if draw.random() < 0.8] + ["x\n"]
        draw.shuffle(after[:10])
        found = CodeDiff({"f": "".join(before).encode()}, {"f": "".join(after).encode()}).patch()
        assert found == "".join(difflib.unified_diff(before, after, "a/f", "b/f"))
