"""What the attacks share; users are in `tests.support.users`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import users


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A directory that every user may reach and write to, as those of pytest are root's alone."""
    with users.open_place() as place:
        yield place
