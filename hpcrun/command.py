"""A command of ``hpcrun``, as it is known before its module is imported."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

PLAN, LOOK, INSIDE, ACT, HOUSE = "Plan and submit", "Look", "Look inside", "Act", "House"
GROUPS = (PLAN, LOOK, INSIDE, ACT, HOUSE)
"""The titles of ``hpcrun --help``, in their order."""


class Command(NamedTuple):
    """A command's entry in ``--help``, completion, documentation and the names people mistype."""

    name: str
    group: str
    """One of `GROUPS`."""
    about: str
    """A line of ``hpcrun --help``."""
    place: str = ""
    """``module:attribute`` of the click command; of the core's, ``hpcrun.cli.NAME:command``."""
    after: str = ""
    """The command of its group that it is listed behind: the first without one, and the last where
    that one is not there."""
    other_names: str = ""
    """What people type who know other programs, with blanks between."""
    hurts: bool = False
    """It changes or ends runs: it is suggested to those who nearly typed it, to nobody else."""
    examples: Mapping[str, str] = MappingProxyType({})
    """Command line -> what it is for. tests/test_examples.py runs them."""
