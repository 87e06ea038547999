"""DeepSpeed's operators for processor ranks, compiled once for all tests of a machine.

Compiling takes a minute or two of processor time, so what was compiled is kept where hpcrun keeps
it for this user: runs of tests without a cache of their own find it, too, and later sessions.
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
    cache = op_cache.of_user()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", PATH)
        op_cache.build(cache, key(), _BUILDERS)
    return cache


def link(cache: Path, root: Path) -> None:
    """Have the experiments under a root use a cache."""
    (root / ".hpcrun").mkdir(parents=True)
    (root / ".hpcrun/torch_extensions").symlink_to(cache)
