"""Classes whose methods are shared behave as those that `dataclasses.dataclass` makes."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import field
from functools import cached_property
from typing import Any, ClassVar

import pytest

from hpcrun import shared_dataclass
from hpcrun.shared_dataclass import dataclass


@dataclass(frozen=True)
class Shared:
    name: str
    count: int = 0
    others: list[int] = field(default_factory=list)
    most: ClassVar[int] = 3

    @cached_property
    def twice(self) -> int:
        return 2 * self.count


@dataclasses.dataclass(frozen=True)
class Original:
    name: str
    count: int = 0
    others: list[int] = field(default_factory=list)
    most: ClassVar[int] = 3


@dataclass
class Changing:
    seen: int = 0


@dataclass(frozen=True, kw_only=True)
class Named:
    name: str
    count: int = 0


@pytest.mark.parametrize(
    "about",
    [
        repr,
        dataclasses.asdict,
        lambda one: one == copy.copy(one),
        lambda one: one == type(one)("a", 2, [1]),
        lambda one: one == type(one)("b", 2, [1]),
        lambda one: one == 2,
        lambda one: dataclasses.asdict(dataclasses.replace(one, count=5)),
        lambda one: list(vars(type(one)(others=[], count=1, name="b"))),
        lambda one: [each.name for each in dataclasses.fields(one)],
    ],
)
def test_as_the_original(about: Callable[[Any], Any]) -> None:
    shared, original = Shared("a", 2, others=[1]), Original("a", 2, others=[1])
    assert str(about(shared)).replace("Shared", "Original") == str(about(original))


@pytest.mark.parametrize(
    ("values", "named", "message"),
    [
        ((), {}, "Shared is given no name"),
        (("a",), {"nam": 1}, "Shared has no field nam"),
        (("a", 1, [], 2), {}, "Shared has 3 fields, not 4"),
        (("a",), {"name": "b"}, "Shared is given name twice"),
        (("a",), {"most": 1}, "Shared has no field most"),
    ],
)
def test_wrong_arguments(values: tuple[Any, ...], named: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Shared(*values, **named)


def test_frozen() -> None:
    one: Any = Shared("a", 2)
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'count'"):
        one.count = 3
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'count'"):
        del one.count
    # What is kept beside the fields is no part of the value.
    assert one.twice == 4
    assert one == Shared("a", 2)
    assert pickle.loads(pickle.dumps(one)) == one  # noqa: S301
    assert hash(Named(name="a")) == hash(Named(name="a")) != hash(Named(name="b"))


def test_a_class_of_the_original_on_top() -> None:
    @dataclasses.dataclass(frozen=True)
    class More(Shared):
        last: str = "z"

    assert repr(More("a", 1)).endswith("More(name='a', count=1, others=[], last='z')")
    assert [one.name for one in dataclasses.fields(More)] == ["name", "count", "others", "last"]
    assert [one.kw_only for one in dataclasses.fields(Named)] == [True, True]


@dataclasses.dataclass(frozen=True)
class Upon(Shared):
    last: str = "z"


@pytest.mark.parametrize("one", [Shared("a"), Original("a"), Upon("a", last="b"), Named(name="a")])
def test_what_is_asked_of_either_kind(one: Any) -> None:
    assert shared_dataclass.names(type(one)) == tuple(vars(one))
    assert shared_dataclass.asdict(one) == dataclasses.asdict(one) == vars(one)
    assert shared_dataclass.replace(one, count=5) == dataclasses.replace(one, count=5) != one
    assert shared_dataclass.is_dataclass(one)
    assert shared_dataclass.is_dataclass(type(one))
    assert not shared_dataclass.is_dataclass("a")


def test_not_frozen() -> None:
    one = Changing()
    one.seen += 1
    assert one == Changing(1)
    assert repr(one) == "Changing(seen=1)"


def test_defaults_are_not_shared() -> None:
    Shared("a").others.append(1)
    assert Shared("a").others == []


def test_names_alone() -> None:
    unchecked: Any = Named
    with pytest.raises(TypeError, match="Named has 0 fields, not 1"):
        unchecked("a")
