from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcrun.run import extensions
from tests.run.factory import PATH, Place


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """An experiment whose attempts are run by the local executor's processes."""
    made = Place(tmp_path)
    yield made
    made.close()


BUILDERS = ["ShareMemCommBuilder"]


@pytest.fixture(scope="session")
def warm_operators() -> Path:
    """A root's cache of DeepSpeed's compiled operators.

    Compiling takes a minute of processor time, so what was compiled is kept for later sessions; the
    key tells versions apart.
    """
    pytest.importorskip("deepspeed")
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache = home / "hpcrun-tests" / "operators"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", PATH)
        extensions.build(cache, _key(), BUILDERS)
    return cache


@pytest.fixture(scope="session")
def own_operators(warm_operators: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A TORCH_EXTENSIONS_DIR of this session's own: who is killed leaves locks in it."""
    directory = tmp_path_factory.mktemp("operators")
    extensions.copy(warm_operators, _key(), directory)
    return directory


def _key() -> str:
    key = extensions.key(BUILDERS)
    assert key is not None
    return key
