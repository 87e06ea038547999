"""Packing: each token of each document in exactly one window, in order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrun.errors import UsageError
from hpcrun.run.data.packed_documents import PackedDocuments

torch = pytest.importorskip("torch")
KEYS = ("tokens", "positions", "documents")
DOCUMENTS = st.lists(st.lists(st.integers(1, 99), max_size=9), max_size=8)


@given(DOCUMENTS, st.integers(1, 12), st.booleans())
def test_no_token_is_lost_or_doubled(documents: Any, length: int, separated: bool) -> None:
    separator = 100 if separated else None
    packed = PackedDocuments(documents, length, separator=separator, boundaries=True)
    expected = [
        (token, position, number)
        for number, document in enumerate(documents)
        for position, token in enumerate([*document, *([100] if separated else [])])
    ]
    windows = [packed[index] for index in range(len(packed))]
    assert all(len(part) == length for window in windows for part in window.values())
    found = [
        one
        for window in windows
        for one in zip(*(window[key].tolist() for key in KEYS), strict=True)
    ]
    assert found[: len(expected)] == expected
    assert set(found[len(expected) :]) <= {(0, 0, -1)}
    assert 0 <= len(found) - len(expected) < length


def test_windows_are_read_alone_from_any_kind_of_tokens() -> None:
    read = []

    class Documents:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Any:
            read.append(index)
            return torch.arange(5, dtype=torch.int32) + 10 * index

    packed = PackedDocuments(Documents(), 4, lengths=[5, 5, 5], padding=7)
    assert (len(packed), packed[1].tolist(), read) == (4, [4, 10, 11, 12], [0, 1])
    assert packed[3].tolist() == [22, 23, 24, 7]
    assert packed[3].dtype == torch.int64
    with pytest.raises(IndexError, match="window 4 of 4"):
        packed[4]


def test_bad_input() -> None:
    with pytest.raises(UsageError, match="at least one token"):
        PackedDocuments([[1]], 0)
    with pytest.raises(UsageError, match="windows have fewer tokens in common"):
        PackedDocuments([[1]], 2, overlap=2)
    with pytest.raises(UsageError, match="left out without boundaries"):
        PackedDocuments([[1]], 2, last_token=1)
    with pytest.raises(UsageError, match="2 documents, and 1 lengths"):
        PackedDocuments([[1], [2]], 4, lengths=[1])
    with pytest.raises(UsageError, match="document 0 has 2 tokens, and had 1 when"):
        PackedDocuments([[1, 2]], 4, lengths=[1])[0]


def test_windows_that_overlap_have_each_token_as_a_target_once() -> None:
    for count in range(12):
        packed = PackedDocuments([[*range(1, count + 1)]], 4, overlap=1)
        windows = [packed[index].tolist() for index in range(len(packed))]
        targets = [token for window in windows for token in window[1:] if token]
        assert targets == [*range(2, count + 1)]


@pytest.mark.parametrize("given", [{"first_token": 9}, {"last_token": 8}])
def test_documents_are_found_by_their_tokens(given: dict[str, int]) -> None:
    documents = [[9, 1, 8, 9, 2, 3, 8, 9, 4], [9, 5, 8]]
    packed = PackedDocuments(documents, 5, boundaries=True, **given)
    windows = [packed[index] for index in range(len(packed))]
    assert [one["tokens"].tolist() for one in windows] == [
        [9, 1, 8, 9, 2],
        [3, 8, 9, 4, 9],
        [5, 8, 0, 0, 0],
    ]
    assert [one["documents"].tolist() for one in windows] == [
        [0, 0, 0, 1, 1],
        [0, 0, 1, 1, 2],
        [0, 0, -1, -1, -1],
    ]
    assert [one["positions"].tolist() for one in windows] == [
        [0, 1, 2, 0, 1],
        [0, 1, 0, 1, 0],
        [0, 1, 0, 0, 0],
    ]
