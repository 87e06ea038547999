from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.run.conftest import made_worlds
from tests.run.ranks import Worlds


@pytest.fixture(scope="package")
def worlds(own_operators: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worlds]:
    """Worlds of ranks for all modules: to start one takes each of its ranks seconds."""
    yield from made_worlds(own_operators, tmp_path_factory.mktemp("ranks"))
