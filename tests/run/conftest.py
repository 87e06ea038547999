from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcrun.run.node import op_cache
from tests.run.ranks import Ranks, Worlds
from tests.support import operators
from tests.support.place import Place


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """An experiment whose attempts are run by the local executor's processes."""
    made = Place(tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="session")
def own_operators(warm_operators: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A TORCH_EXTENSIONS_DIR of this session's own: who is killed leaves locks in it."""
    directory = tmp_path_factory.mktemp("operators")
    op_cache.copy(warm_operators, operators.key(), directory)
    return directory


@pytest.fixture(scope="module")
def worlds(own_operators: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worlds]:
    yield from made_worlds(own_operators, tmp_path_factory.mktemp("ranks"))


def made_worlds(operators: Path, directory: Path) -> Iterator[Worlds]:
    """A function that returns the world of so many ranks; all of them are ended afterwards."""
    started: dict[int, Ranks] = {}

    def world(size: int) -> Ranks:
        if size not in started:
            own = directory / str(size)
            own.mkdir()
            started[size] = Ranks(size, operators, own)
        return started[size]

    yield world
    for ranks in started.values():
        ranks.stop()
