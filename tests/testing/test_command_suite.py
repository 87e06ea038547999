"""The suite for commands: what is right passes, and what is wrong is named."""

from __future__ import annotations

import click
import pytest

from hpcrun.testing import check_command


@click.command()
@click.option("--root", help="The root.")
def right(root: str) -> None:
    """Count the runs."""


@click.command()
def mute() -> None:
    pass


@click.command()
@click.option("--root")
def unexplained(root: str) -> None:
    """Count the runs."""


def test_a_right_one() -> None:
    check_command(right)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (lambda: None, "has no main and no params"),
        (mute, "it has no help"),
        (unexplained, "its option --root has no help"),
    ],
)
def test_what_is_wrong_is_named(command: object, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_command(command)
