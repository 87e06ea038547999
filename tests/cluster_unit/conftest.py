from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cluster_unit.shim import Shim


@pytest.fixture
def shim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shim:
    """Scripted Slurm commands (a shim, no Slurm) at the front of PATH."""
    directory = tmp_path / "shim"
    directory.mkdir()
    monkeypatch.setenv("PATH", f"{directory}{os.pathsep}{os.environ['PATH']}")
    return Shim(directory)
