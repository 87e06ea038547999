"""Values and comments of others stay in their places."""

from __future__ import annotations

import pytest
import yaml

from hpcrun.tools.init.starter.starter_text import CommentedYaml, value

WORDS = [
    *("main", "train.py:train", "/home/ann/hpcrun", "${oc.env:HOME}/hpcrun", "1-00:00:00", "4000M"),
    *("true", "Null", "no", "12", "0x1f", "1e3", "a: b", "a #b", "x\ny", "- x", "{a}", "é", ""),
    *(
        "'",
        '"',
        "a\\b",
        "~",
        "=",
        "00:15:00",
        "2026-11-25",
        "on",
        "a:",
        "https://x",
        ".inf",
        "\x07",
    ),
]


@pytest.mark.parametrize("word", WORDS)
def test_a_text_is_read_back_as_it_was(word: str) -> None:
    out = CommentedYaml()
    out.add("key", word, "told\nby: others # {")
    out.add("keys", [word, "b"], "")
    assert yaml.safe_load(out.text()) == {"key": word, "keys": [word, "b"]}


def test_numbers_and_plain_words_have_no_quotes() -> None:
    assert [value(one) for one in (3, True, None, "main", "train.py:train")] == [
        *("3", "true", "null", "main"),
        "train.py:train",
    ]


def test_a_comment_never_becomes_a_line() -> None:
    out = CommentedYaml()
    out.line("a: 1", "x\nb: 2\x1b[31m")
    out.comment("y\nc: 3")
    out.section("title", ["z\nd: 4"])
    out.line("  long: 1", "w\n" * 100)
    assert yaml.safe_load(out.text().replace("  long", "long")) == {"a": 1, "long": 1}
    assert "\x1b" not in out.text()
    assert max(map(len, out.text().splitlines())) < 500


def test_an_empty_section_is_left_out() -> None:
    out = CommentedYaml()
    out.section("title", [])
    assert out.text() == "\n"
