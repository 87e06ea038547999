"""Conformance suites for what other packages add to hpcrun, to be called in their own tests.

In reading order: `expectation` (a failure that says what is wrong), `tracker_suite`,
`runtime_suite` (container runtimes), `command_suite`, `framework_suite` (frameworks, recipes of
resuming), `reader_suite` (progress readers). `rank_debugger` has ``breakpoint()`` in a rank wait
for a person.

    from hpcrun.testing import check_tracker

    def test_it_is_a_tracker():
        check_tracker(AimTracker)

A suite raises AssertionError, whose text says what the entry does and what is expected of it.

To add a suite for a kind of `hpcrun.extensions`, write a module that calls an entry as hpcrun does,
name its function below, and have hpcrun's own entries pass it in ``tests/testing``.
"""

from __future__ import annotations

from hpcrun.testing.command_suite import check_command
from hpcrun.testing.framework_suite import check_framework, check_resume_recipe
from hpcrun.testing.reader_suite import check_progress_reader
from hpcrun.testing.runtime_suite import check_container_runtime
from hpcrun.testing.tracker_suite import check_tracker

__all__ = [
    "check_command",
    "check_container_runtime",
    "check_framework",
    "check_progress_reader",
    "check_resume_recipe",
    "check_tracker",
]
