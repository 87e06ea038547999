"""DeepSpeed's operators for processor ranks, compiled once for all tests of a machine.

Compiling takes a minute or two of processor time, so what was compiled is kept for later sessions;
the key tells versions apart.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from hpcrun.run.node import op_cache

# As a supervisor has it. Another ninja than the one that built would build again.
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])

_BUILDERS = ["ShareMemCommBuilder"]


def key() -> str:
    """The name of what is compiled within a cache."""
    found = op_cache.key(_BUILDERS)
    assert found is not None
    return found


def build() -> Path:
    """A root's cache that holds them."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache = home / "hpcrun-tests" / "operators"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", PATH)
        op_cache.build(cache, key(), _BUILDERS)
    return cache


def link(cache: Path, root: Path) -> None:
    """Have the experiments under a root use a cache."""
    (root / ".hpcrun").mkdir(parents=True)
    (root / ".hpcrun/torch_extensions").symlink_to(cache)
