"""What holds for the whole suite."""

from __future__ import annotations

import functools
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.support import by_day, light_python, no_slurm, slurm_version

# Before anything reads PATH, or starts a rank.
_LINKS = no_slurm.hide()
light_python.lighten()

from tests.support import operators  # noqa: E402
from tests.support.nfs import mount, nfs_program, two_hosts  # noqa: E402, F401
from tests.support.slurm_shim import Shim  # noqa: E402

# On a busy machine commands would say what takes them long; tests of that set it back.
os.environ.setdefault("HPCRUN_PROGRESS", "0")
# A shell that starts the suite in the background has it ignore Ctrl-C, and nohup that its terminal
# is closed, and every child inherits that: the tests that do so would test nothing.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
# On a busy machine an example takes as long as it takes; pytest's timeout ends what hangs.
hypothesis.settings.register_profile("busy", deadline=None)
hypothesis.settings.load_profile("busy")

# Their modules share ranks.
_OF_RANKS = ("tests/run/", "tests/test_training", "tests/tools/estimate/test_memory")
# Parts with single tests of half a minute and more, beside those that train.
_LONG = (
    "tests/frameworks/",
    "tests/security/test_fuzz",
    "tests/test_examples",
    "tests/tools/perf/test_tune",
)


def pytest_unconfigure() -> None:
    for directory in _LINKS:
        shutil.rmtree(directory, ignore_errors=True)


# Modules of tests/cluster that compare with what undisturbed runs end with.
_COMPARE = {
    *("beside", "containers", "faults", "hangs", "in_place", "recovery", "resize", "storage"),
    *("training", "unwarned"),
}
# They bring up beds of their own, or none.
_APART = {"nfs_client", "shared_storage"}


def _bed(nodeid: str) -> str:
    """Return which tests share a bed: beds stand side by side, as tests wait a lot."""
    module = nodeid.partition("::")[0].rpartition("/test_")[2].removesuffix(".py")
    if module in _APART:
        return module
    # A second bed of the newer Slurm would compile DeepSpeed's operators once more.
    return "Slurm 24.11" if "24.11" in nodeid else f"Slurm 22.05, {module in _COMPARE}"


def pytest_configure() -> None:
    by_day.choose()


def pytest_report_header() -> str | None:
    if os.environ.get("HPCRUN_THOROUGH") == "1":
        return None
    return f"left to another day (tests/support/by_day.py): {' '.join(by_day.left_to_others())}"


@functools.cache
def _has_fixtures(module: str) -> bool:
    """Check whether tests of a module share what one of them would make."""
    text = Path(__file__).parents[1].joinpath(module).read_text()
    return 'scope="module"' in text or 'scope="session"' in text


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Where several processes test: what shares a cluster, ranks or a fixture stays together."""
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith("tests/cluster/"):
                return _bed(nodeid)
            module = nodeid.partition("::")[0]
            return module if nodeid.startswith(_OF_RANKS) or _has_fixtures(module) else nodeid

    # They come as `_longest_first` has them.
    config.option.loadscopereorder = False
    return Together(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is `usually` shown on another Slurm or by hand, and another day's.

    HPCRUN_THOROUGH=1 runs all.
    """
    _longest_first(items)
    if os.environ.get("HPCRUN_THOROUGH") == "1":
        return
    left_out = set()
    for item in items:
        usually = item.get_closest_marker("usually")
        is_usual = usually is None or slurm_version.of(item) in usually.args
        if not (is_usual and by_day.is_of_today(item.nodeid, config.args)):
            left_out.add(item)
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def _longest_first(items: list[pytest.Item]) -> None:
    """Sort what takes minutes to the front, or one process would end long after the others."""

    def order(item: pytest.Item) -> int:
        if "tests/cluster/" in item.nodeid:
            return 0
        return 1 if item.nodeid.startswith(_LONG) or item.path in training else 2

    training = {item.path for item in items if item.get_closest_marker("training")}
    items.sort(key=order)


@pytest.fixture(scope="session")
def warm_operators() -> Path:
    """A root's cache of DeepSpeed's compiled operators."""
    pytest.importorskip("deepspeed")
    return operators.build()


@pytest.fixture
def shim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shim:
    """Scripted Slurm commands (a stand-in, no Slurm) at the front of PATH."""
    directory = tmp_path / "shim"
    directory.mkdir()
    monkeypatch.setenv("PATH", f"{directory}{os.pathsep}{os.environ['PATH']}")
    return Shim(directory)
