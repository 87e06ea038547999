"""What a suite expects of an entry, and the failure that says what it does instead."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Collection, Iterator
from typing import Any

from hpcrun.extensions import missing


def expect(is_met: bool, found: str) -> None:
    """Raise AssertionError, which says what was found, unless an expectation is met."""
    if not is_met:
        raise AssertionError(found)


def expect_attributes(entry: Any, needs: Collection[str]) -> None:
    """Expect an entry to have attributes, as `hpcrun.extensions` does of each that it loads."""
    lacking = missing(entry, needs)
    expect(not lacking, f"{name_of(entry)} has no {' and no '.join(lacking)}")


def expect_call(function: Callable[..., Any], arguments: int, what: str) -> None:
    """Expect a function to take a number of positional arguments."""
    try:
        inspect.signature(function).bind(*[None] * arguments)
    except TypeError as error:
        raise AssertionError(f"{what} is called with {arguments} arguments: {error}") from None


@contextlib.contextmanager
def expecting(what: str) -> Iterator[None]:
    """Tell what was called when an entry raises."""
    try:
        yield
    except AssertionError:
        raise
    except Exception as error:
        raise AssertionError(f"{what} raises {type(error).__name__}: {error}") from error


def name_of(entry: Any) -> str:
    """Return how messages name an entry."""
    return str(getattr(entry, "__qualname__", None) or type(entry).__qualname__)
