"""The grammar of conditions."""

from __future__ import annotations

import time

import pytest

from hpcrun.errors import UsageError
from hpcrun.observe.read.expression import Combination, Comparison, Expression, parse, split_words


def _text(found: Expression) -> str:
    """An expression with all its brackets."""
    if isinstance(found, Comparison):
        return f"{found.key}{found.sign}{found.text}"
    assert isinstance(found, Combination)
    parts = [_text(part) for part in found.parts]
    return f"(not {parts[0]})" if found.word == "not" else f"({f' {found.word} '.join(parts)})"


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("lr=3e-4", "lr=3e-4"),
        (" lr >= 1e-3 ", "lr>=1e-3"),
        ("a==1", "a=1"),
        ("a=", "a="),
        ("a=1 or b=2 and not c!=3", "(a=1 or (b=2 and (not c!=3)))"),
        ("(a=1 or b<2) c>3", "((a=1 or b<2) and c>3)"),
        ("not not a=1", "(not (not a=1))"),
        # Values with spaces, brackets and words of the language.
        ("note=a b", "note=a b"),
        ("note=a b c=3", "(note=a b and c=3)"),
        ('note="this and that" or q=1', "(note=this and that or q=1)"),
        ("(opt=Adam(b=1, c=2) and y=[1, 2])", "(opt=Adam(b=1, c=2) and y=[1, 2])"),
        ("a=1)", "a=1)"),
        ("a=order", "a=order"),
        ('"metric.eval loss"<2', "metric.eval loss<2"),
    ],
)
def test_meaning(text: str, meaning: str) -> None:
    assert _text(parse(text)) == meaning


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr", "--where 'lr' is not of the form key=value"),
        ("=3", "is not of the form key=value"),
        ("a=1 and", "is not of the form key=value"),
        ("a=1 or dogs", "at 'dogs'"),
        ("(a=1", "a closing bracket is missing"),
        ("(" * 60 + "a=1", "more than 50 brackets"),
        ("not " * 5000 + "a=1", "more than 50 brackets"),
    ],
)
def test_errors(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert message in caught.value.message
    assert len(caught.value.message) < 500


def test_a_long_value_takes_no_long_time() -> None:
    began = time.process_time()
    for text in ("a=" + " b" * 50_000, "a=b" + " " * 100_000 + "c", "a=" + "(" * 100_000):
        assert isinstance(parse(text), Comparison)
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("words", "names", "condition"),
    [
        (["study", "fine*"], ["study", "fine*"], []),
        (["study", "state=failed"], ["study"], ["state=failed"]),
        (["not", "a=1", "or", "(b<2", ")", "study"], ["study"], ["not a=1 or (b<2 )"]),
        # Without a condition these are names, and a path is never a condition.
        (["and", "not"], ["and", "not"], []),
        (
            ["./lr=3", "/x/lr=3", "~/lr=3", "../lr=3"],
            ["./lr=3", "/x/lr=3", "~/lr=3", "../lr=3"],
            [],
        ),
        (["odd=1/", "a=1"], ["odd=1/"], ["a=1"]),
    ],
)
def test_words_of_where(words: list[str], names: list[str], condition: list[str]) -> None:
    assert split_words(words, ["odd=1/"]) == (names, condition)
