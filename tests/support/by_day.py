"""Tests that CI runs every other day: what takes minutes and looks at one subject from all sides.

What any change may break runs each day. HPCRUN_THOROUGH=1 runs both parts, and so does a file that
is named on the command line; ``HPCRUN_TESTS_DAY=0`` or ``1`` chooses a part.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from datetime import date

VARIABLE = "HPCRUN_TESTS_DAY"
# The parts of the days 0 and 1, by the beginning of their paths.
PARTS = (
    (
        "tests/cluster/test_beside",
        "tests/cluster/test_containers",
        "tests/cluster/test_environment",
        "tests/cluster/test_faults",
        "tests/cluster/test_new_supervisor",
        "tests/cluster/test_roles",
        "tests/cluster/test_training",
        "tests/cluster/test_unwarned",
        "tests/frameworks/test_programs",
        "tests/run/checkpoint/test_resize",
        "tests/run/data/test_hurt_run",
        "tests/run/rank/test_model_blocks",
        "tests/run/test_fully_sharded.py::test_a_rank_of_a_tensor_group",
        "tests/run/test_jobs",
        "tests/security/test_fuzz",
    ),
    (
        "tests/cluster/test_doctor",
        "tests/cluster/test_forms",
        "tests/cluster/test_frameworks",
        "tests/cluster/test_fully_shard",
        "tests/cluster/test_hangs",
        "tests/cluster/test_in_place",
        "tests/cluster/test_init_from",
        "tests/cluster/test_mpi",
        "tests/cluster/test_parallel",
        "tests/cluster/test_profile",
        "tests/cluster/test_resize",
        "tests/cluster/test_tune",
        "tests/cluster/test_working_directory",
        "tests/features/point_search/test_killed",
        "tests/frameworks/test_third_party",
        "tests/run/test_compiled",
        "tests/run/weights/",
        "tests/tools/perf/",
    ),
)


def choose() -> None:
    """Choose the part of today for all processes of the suite, whenever midnight is."""
    os.environ.setdefault(VARIABLE, str(date.today().toordinal() % len(PARTS)))


def left_to_others() -> tuple[str, ...]:
    """Return the beginnings of the paths that are left to another day."""
    today = int(os.environ[VARIABLE])
    return tuple(path for day, part in enumerate(PARTS) if day != today for path in part)


def is_of_today(nodeid: str, arguments: Collection[str]) -> bool:
    """Check whether a test runs today, with these words on pytest's command line."""
    files = (word.partition("::")[0] for word in arguments)
    named = tuple(file for file in files if file.endswith(".py"))
    return not nodeid.startswith(left_to_others()) or nodeid.startswith(named)
