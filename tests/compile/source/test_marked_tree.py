"""Trees merge, and remember where each value was written."""

from __future__ import annotations

from pathlib import Path

from hpcrun.compile.source.marked_tree import SourceMark, Tree, get_at, keys, leaves, map_leaves

ONE = SourceMark("one.yaml", 1, Path("/one"))
TWO = SourceMark("two.yaml", 2, Path("/two"))


def test_mappings_merge_and_all_else_replaces() -> None:
    base = Tree({"a": {"x": 1, "y": [1]}, "b": {"c": 1}}, {("a",): ONE, ("b", "c"): ONE})
    top = Tree({"d": 4, "b": 3, "a": {"y": [2], "z": 3}}, {("a", "y"): TWO, ("b",): TWO})
    found = top.over(base)
    assert found.data == {"a": {"x": 1, "y": [2], "z": 3}, "b": 3, "d": 4}
    assert list(found.data) == ["a", "b", "d"]
    assert list(found.data["a"]) == ["x", "y", "z"]
    # What was replaced has lost its marks; the nearest key around counts.
    assert found.marks == {("a",): ONE, ("a", "y"): TWO, ("b",): TWO}
    assert found.mark(("a", "x")) == ONE
    assert found.mark(("b", "c")) == TWO
    assert base.data["a"] == {"x": 1, "y": [1]}


def test_a_tree_moves_below_a_key() -> None:
    found = Tree({"a": 1}, {("a",): ONE}).below(("x", "y"))
    assert found.data == {"x": {"y": {"a": 1}}}
    assert found.marks == {("x", "y", "a"): ONE}


def test_a_path_starts_at_the_directory_of_its_file() -> None:
    assert ONE.path("a/../b.py") == Path("/one/b.py")
    assert ONE.path("/c") == Path("/c")
    assert ONE.path("~/d") == Path.home() / "d"


def test_walks_name_each_value_by_its_key() -> None:
    data = {"a": {"b": 1, "c": [2, {"d": 3}]}, "e": {}}
    assert list(keys(data)) == [("a",), ("a", "b"), ("a", "c"), ("e",)]
    assert dict(leaves(data)) == {
        ("a", "b"): 1,
        ("a", "c", "0"): 2,
        ("a", "c", "1", "d"): 3,
    }
    doubled = map_leaves(lambda key, value: (key[-1], value * 2), data)
    assert doubled == {"a": {"b": ("b", 2), "c": [("0", 4), {"d": ("d", 6)}]}, "e": {}}
    assert get_at(data, ("a", "b")) == 1
    assert get_at(data, ("a", "x", "y"), 5) == 5
