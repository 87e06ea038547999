"""What holds for the whole suite."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests import operators

# A shell that starts the suite in the background has it ignore Ctrl-C, and every child inherits
# that: the tests that interrupt a command would test nothing.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Where several processes test: what shares a cluster or ranks stays together, in our order."""
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _scope(nodeid)

    config.option.loadscopereorder = False
    return Together(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where several processes test, what takes longest comes first, so that they end together."""
    if hasattr(config, "workerinput"):
        first = ("Slurm 24.11", "Slurm 22.05", "tests/test_training.py", "tests/run/")
        items.sort(key=lambda item: [not _scope(item.nodeid).startswith(one) for one in first])


def _scope(nodeid: str) -> str:
    if nodeid.startswith("tests/cluster/"):
        return "Slurm 24.11" if "24.11" in nodeid else "Slurm 22.05"
    trains = nodeid.startswith(("tests/run/", "tests/test_training"))
    return nodeid.partition("::")[0] if trains else nodeid


@pytest.fixture(scope="session")
def warm_operators() -> Path:
    """A root's cache of DeepSpeed's compiled operators."""
    pytest.importorskip("deepspeed")
    return operators.build()
