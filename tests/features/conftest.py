from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.place import Place


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """An experiment whose attempts are run by the local executor's processes."""
    made = Place(tmp_path)
    yield made
    made.close()
