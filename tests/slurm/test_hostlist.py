"""Slurm's lists of numbers, of nodes and of array elements."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrun.errors import HpcrunError
from hpcrun.slurm.hostlist import expand, expand_job_id, parse_ranges, write_out


@pytest.mark.parametrize(
    ("nodelist", "names"),
    [
        ("n1", ["n1"]),
        ("n1,n2", ["n1", "n2"]),
        ("n[1-3],m7", ["n1", "n2", "n3", "m7"]),
        ("n[1,3-4,9]", ["n1", "n3", "n4", "n9"]),
        ("gpu[08-11]", ["gpu08", "gpu09", "gpu10", "gpu11"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        ("r1-n[1-2]-ib", ["r1-n1-ib", "r1-n2-ib"]),
        ("a[1-2],b[3],c-d", ["a1", "a2", "b3", "c-d"]),
        ("rack[1-2]n[08-09]", ["rack1n08", "rack1n09", "rack2n08", "rack2n09"]),
        ("r[1-2]n[1,3]-ib", ["r1n1-ib", "r1n3-ib", "r2n1-ib", "r2n3-ib"]),
        ("d[0][1-2]", ["d01", "d02"]),
        ("login,r[1]n[1-2],m7", ["login", "r1n1", "r1n2", "m7"]),
        (",n1,,n[2-3],", ["n1", "n2", "n3"]),
        ("", []),
    ],
)
def test_node_lists_are_expanded_in_slurms_order(nodelist: str, names: list[str]) -> None:
    assert list(expand(nodelist)) == names


@pytest.mark.parametrize(
    "nodelist",
    [
        *("n[1-x]", "n[]", "n[a]", "n[1-2,]", "n[-3]", "n[1-99999999]", "n[٣]", "n[3-1]"),
        *("n[1-2", "n1-2]", "n[[1-2]]", "n[0-4:2]", "a[0-999999]b[0-9]"),
    ],
)
def test_a_list_that_is_not_understood_is_shown(nodelist: str) -> None:
    with pytest.raises(HpcrunError, match="is not understood") as caught:
        expand(nodelist)
    assert nodelist in str(caught.value)


def _compressed(prefix: str, numbers: list[int], width: int, suffix: str) -> str:
    """The numbers as Slurm writes them, neighbours as ranges."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    words = [
        f"{first:0{width}d}" + (f"-{last:0{width}d}" if last > first else "")
        for first, last in ranges
    ]
    return f"{prefix}[{','.join(words)}]{suffix}"


_NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,6}[a-z]", fullmatch=True)


@given(
    st.lists(
        st.tuples(
            _NAMES,
            st.lists(st.integers(0, 400), min_size=1, max_size=20, unique=True).map(sorted),
            st.integers(1, 5),
            st.sampled_from(["", "-ib", "x"]),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_what_is_compressed_expands_to_the_same_names(
    groups: list[tuple[str, list[int], int, str]],
) -> None:
    text = ",".join(_compressed(*group) for group in groups)
    names = [
        f"{prefix}{number:0{width}d}{suffix}"
        for prefix, numbers, width, suffix in groups
        for number in numbers
    ]
    assert list(expand(text)) == names
    assert list(expand(",".join(names))) == names


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("123", ["123"]),
        ("123_4", ["123_4"]),
        ("123_[4]", ["123_4"]),
        ("123_[4-6,9%2]", ["123_4", "123_5", "123_6", "123_9"]),
        ("123_[0-8:4]", ["123_0", "123_4", "123_8"]),
        ("123.batch", []),
        ("123_4.0", []),
        ("123_[1,3...]", []),
        # More elements than any array has, a digit that is none of Slurm's, and a torn list.
        ("123_[0-999999999]", []),
        ("123_[0-999999,0-999999]", []),
        ("123_²", []),
        ("123_٣", []),
        ("123_[4,6-]", []),
        ("9" * 5000, []),
        ("", []),
    ],
)
def test_job_ids(text: str, expected: list[str]) -> None:
    assert expand_job_id(text) == expected


def test_lists_of_nodes_together_are_bounded_too() -> None:
    with pytest.raises(HpcrunError, match="is not understood"):
        expand(",".join([f"n{part}[0-99999]" for part in range(100)]))
    assert len(expand("n[0-99999],m[0-99999]")) == 200_000


def test_ranges_are_written_out_in_bounds() -> None:
    assert write_out(parse_ranges("0-3,7")) == [0, 1, 2, 3, 7]
    with pytest.raises(ValueError, match="more than 1,000,000"):
        write_out(parse_ranges("0-9999999999"))


def test_ranges() -> None:
    assert parse_ranges("0-3,7") == [range(4), range(7, 8)]
    assert parse_ranges("0-8:4", strides=True) == [range(0, 9, 4)]
    assert not any(parse_ranges("3-1"))


@pytest.mark.parametrize("text", ["", "1,", "a", "-1", "1-", "0-8:4", "1 2", "²", "9" * 19])
def test_no_ranges(text: str) -> None:
    with pytest.raises(ValueError, match="not a list"):
        parse_ranges(text)
