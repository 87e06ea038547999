"""Which Slurm a test runs on."""

from __future__ import annotations

import pytest

FIXTURES = {"slurm22": "22.05", "slurm24": "24.11"}


def of(item: pytest.Item) -> str:
    """The version of Slurm that a test uses; the first where it brings up a cluster of its own."""
    assert isinstance(item, pytest.Function)
    names = item.fixturenames
    if "slurm" in names:
        return str(item.callspec.params["slurm"])
    return next((version for name, version in FIXTURES.items() if name in names), "22.05")
